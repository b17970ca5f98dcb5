"""Works out what a billion jobs a day take, from what ``make bench-spark`` has measured: ``python -m bench.billion [FILE]``.

docs/scale-spark.md has the outcome; ``make docs`` puts it there. Everything that was not measured but chosen is a name in
capitals below.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS: Final = Path(__file__).parent / "results" / "spark.json"

JOBS_A_DAY: Final = 1_000_000_000
#: How many queues they are spread over. Gold has rows for queues and minutes, however many jobs there are.
QUEUES: Final = 1_000
#: The busiest minute, compared with the mean of the day.
PEAK: Final = 3.0
#: How busy a shard, or a core of Spark, may be at the peak.
BUSY: Final = 0.6
#: Jobs that come and go in requests of their own; the rest does so in hundreds, or by Spark.
SINGLE_SHARE: Final = 0.1
#: The benchmark's events are more alike than real ones, whose bytes are so many times theirs in bronze and silver.
REAL: Final = 2.0
#: The pipeline runs once in so many seconds.
TRIGGER_S: Final = 60
#: How long the servers keep their journals: the pipeline may stand still for as long.
JOURNAL_HOURS: Final = 24
#: How long the lake keeps each layer, in days.
BRONZE_DAYS, SILVER_DAYS, GOLD_DAYS = 30, 90, 730
#: Prices, in whatever is paid with; these are round figures of the size that clouds ask for.
PRICE_CORE_HOUR: Final = 0.04
PRICE_GB_MONTH: Final = 0.023
#: Files that compaction makes, in bytes.
COMPACTED_BYTES: Final = 256 << 20
#: A machine whose cores were busy for a larger share of the time than this before a part began was not quiet.
QUIET_LOAD: Final = 0.1
#: As penstock.spark.journal cuts a batch.
EVENTS_PER_PARTITION: Final = 250_000
#: As bench.spark.place calls it.
SERVER: Final = "the server"
LAYERS: Final = ("bronze", "silver", "gold")


class Part(NamedTuple):
    """The figures of one part of the benchmark."""

    name: str
    kept: dict[str, Any]

    def rate(self, begins: str) -> float:
        """Return the rate whose name begins so."""
        return float(_named(self.kept["rates"], self.name, begins))

    def spent(self, begins: str, *kinds: str) -> float:
        """Return the processor time for a row, in seconds, of the kinds of processes that are named, or of all."""
        spent: dict[str, float] = _named(self.kept["processor_us"], self.name, begins)
        return sum(each for kind, each in spent.items() if not kinds or kind in kinds) / 1e6

    def value(self, begins: str) -> float:
        """Return the figure whose name begins so."""
        return float(_named(self.kept["values"], self.name, begins))


class Measured:
    """What was measured. Raises KeyError for what was not."""

    def __init__(self, path: Path = RESULTS) -> None:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.parts = {name: Part(name, each) for name, each in kept.items()}

    def __getitem__(self, part: str) -> Part:
        return self.parts[part]

    @property
    def cores(self) -> int:
        return int(self["lake"].kept["cores"])

    def doubts(self) -> list[str]:
        """Return why these figures are not to be relied on."""
        found = []
        for scale in sorted({part.kept["scale"] for part in self.parts.values()} - {1}):
            small = sorted(name for name, part in self.parts.items() if part.kept["scale"] == scale)
            found.append(f"{', '.join(small)} with {scale:g} of the full size")
        if any("busy_before" not in part.kept for part in self.parts.values()):
            found.append("what else the machine did was not noted")
        busy = max((part.kept.get("busy_before", 0) / part.kept["cores"] for part in self.parts.values()), default=0)
        if busy > QUIET_LOAD:
            found.append(f"others kept cores busy for up to {busy:.0%} of the time")
        return found


def _named(figures: dict[str, Any], part: str, begins: str) -> Any:
    for name, value in figures.items():
        if name.startswith(begins):
            return value
    raise KeyError(f"{part}: {begins}")


class Plan:
    """A billion jobs a day, worked out."""

    def __init__(self, measured: Measured) -> None:
        self.jobs = JOBS_A_DAY / 86_400
        self.events_a_job = measured["lake"].value("events for a job")
        self.events = self.jobs * self.events_a_job
        self.events_a_day = JOBS_A_DAY * self.events_a_job
        # Servers: processor time of one for a job, from its push to its acknowledgement.
        pushing, taking, still = measured["enqueue"], measured["lease"], measured["disturb"]
        self.job_s = {
            "one by one": still.spent("pushes, undisturbed", SERVER)
            + still.spent("pulls with their acknowledgements, undisturbed", SERVER),
            "in hundreds": pushing.spent("loop over POST /queues/q/jobs/bulk", SERVER)
            + taking.spent("loop over pull-batch", SERVER),
            "through Spark": pushing.spent("df.write", SERVER) + taking.spent("spark.readStream", SERVER),
        }
        self.mixed_s = SINGLE_SHARE * self.job_s["one by one"] + (1 - SINGLE_SHARE) * self.job_s["in hundreds"]
        self.shards = math.ceil(self.jobs * PEAK * self.mixed_s / BUSY)
        self.journal_bytes = measured["journal"].value("bytes on disk for an event") * self.events_a_day * JOURNAL_HOURS / 24
        self.default_lasts_s = (256 << 20) / (self.journal_bytes / JOURNAL_HOURS / 3_600 / self.shards)
        # The lake.
        lake = measured["lake"]
        self.event_core_s = lake.spent("whole run")
        self.gold_core_s = lake.spent("gold")
        self.batch_mean, self.batch_peak = self.events * TRIGGER_S, self.events * TRIGGER_S * PEAK
        self.partitions = max(self.shards, math.ceil(self.batch_peak / EVENTS_PER_PARTITION))
        self.spark_cores = math.ceil(self.events * PEAK * self.event_core_s / BUSY)
        self.core_hours = self.events_a_day * self.event_core_s / 3_600
        self.bytes = {layer: REAL * lake.value(f"bytes for an event in {layer}") * self.events_a_day for layer in LAYERS[:2]}
        self.bytes["gold"] = lake.value("bytes for a queue and minute in gold") * QUEUES * 1_440
        self.files = {layer: lake.value(f"files of a batch in {layer}") * 86_400 / TRIGGER_S for layer in LAYERS}
        self.least_files = {layer: int(lake.value(f"files in {layer} after compaction")) for layer in LAYERS}
        self.files["bronze"] = max(self.files["bronze"], self.partitions * 86_400 / TRIGGER_S / PEAK)

    def compacted(self, layer: str) -> int:
        """Return how many files a day of a layer has after compaction."""
        return max(self.least_files[layer], math.ceil(self.bytes[layer] / COMPACTED_BYTES))

    def cost_a_day(self) -> dict[str, float]:
        """Return what a day costs."""
        days = dict(zip(LAYERS, (BRONZE_DAYS, SILVER_DAYS, GOLD_DAYS), strict=True))
        kept = sum(self.bytes[layer] * days[layer] for layer in LAYERS) / 1e9
        return {
            "servers": self.shards * 24 * PRICE_CORE_HOUR,
            "Spark": self.core_hours / BUSY * PRICE_CORE_HOUR,
            "lake": kept * PRICE_GB_MONTH / 30,
        }


def _table(head: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    columns = head.split("|")
    lines = ["| " + " | ".join(each.strip() for each in columns) + " |", "|" + "---|" * len(columns)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:,.3g} TB"


def text(measured: Measured) -> str:
    """Return the tables of the page."""
    try:
        plan = Plan(measured)
    except KeyError as missing:
        return f"Not measured yet ({missing.args[0]}): run `make bench-spark`, then `make docs`.\n"
    lines: list[str] = []
    if doubts := measured.doubts():
        lines += [f"**Preliminary figures**, to be measured again: {'; '.join(doubts)}.", ""]
    head = f"What was measured | a second, on {measured.cores} shared cores | processor time for a row | of it the server's"
    lines += _table(head, _rates(measured))
    lines += _table(
        "Load | mean | peak",
        [
            ("jobs a second", f"{plan.jobs:,.0f}", f"{plan.jobs * PEAK:,.0f}"),
            (f"events a second ({plan.events_a_job:.2f} for a job)", f"{plan.events:,.0f}", f"{plan.events * PEAK:,.0f}"),
            ("events a day", f"{plan.events_a_day:,.0f}", ""),
            (f"events of a micro-batch, one in {TRIGGER_S} s", f"{plan.batch_mean:,.0f}", f"{plan.batch_peak:,.0f}"),
        ],
    )
    lines += _table(
        "Servers | processor time of a server for a job | shards at the peak",
        [
            (f"all jobs {name}", f"{each * 1e6:,.0f} µs", f"{math.ceil(plan.jobs * PEAK * each / BUSY):,}")
            for name, each in plan.job_s.items()
        ]
        + [
            (f"{SINGLE_SHARE:.0%} one by one, the rest in hundreds", f"{plan.mixed_s * 1e6:,.0f} µs", f"**{plan.shards:,}**")
        ],
    )
    lines += _table(
        "Spark | ",
        [
            ("partitions of a micro-batch at the peak", f"{plan.partitions:,}"),
            ("cores at the peak", f"{plan.spark_cores:,}"),
            ("core-hours a day of work", f"{plan.core_hours:,.0f}"),
            ("core-hours to make all gold of a day anew from bronze", f"{plan.events_a_day * plan.gold_core_s / 3600:,.0f}"),
            (f"journals of all shards, kept for {JOURNAL_HOURS} h", _size(plan.journal_bytes)),
            ("how long the 256 MiB last that a shard keeps by default", f"{plan.default_lasts_s / 60:,.0f} min"),
        ],
    )
    lines += _table(
        "Lake | for an event | a day | files a day | their size | after compaction | their size",
        [
            (
                layer,
                f"{plan.bytes[layer] / plan.events_a_day:.3g} B"
                if layer != "gold"
                else f"by queue and minute, {QUEUES:,} queues",
                _size(plan.bytes[layer]),
                f"{plan.files[layer]:,.0f}",
                _size(plan.bytes[layer] / plan.files[layer]),
                f"{plan.compacted(layer):,}",
                _size(plan.bytes[layer] / plan.compacted(layer)),
            )
            for layer in LAYERS
        ],
    )
    cost = plan.cost_a_day()
    lines += _table(
        "Cost of a day | how it is worked out | ",
        [
            ("servers", f"{plan.shards} shards x 24 h x {PRICE_CORE_HOUR:g}", f"{cost['servers']:,.2f}"),
            ("Spark", f"{plan.core_hours:,.0f} core-hours ÷ {BUSY:g} x {PRICE_CORE_HOUR:g}", f"{cost['Spark']:,.2f}"),
            (
                "lake",
                f"{BRONZE_DAYS} days of bronze, {SILVER_DAYS} of silver, {GOLD_DAYS} of gold x {PRICE_GB_MONTH:g} ÷ 30",
                f"{cost['lake']:,.2f}",
            ),
            ("**together**", "", f"**{sum(cost.values()):,.2f}**"),
            ("for a million jobs", "", f"{sum(cost.values()) / JOBS_A_DAY * 1e6:,.4f}"),
        ],
    )
    return "\n".join(lines)


def _rates(measured: Measured) -> list[tuple[str, ...]]:
    wanted = {
        "pushes, one by one": ("disturb", "pushes, undisturbed"),
        "pulls with their acknowledgements, one by one": ("disturb", "pulls with their acknowledgements, undisturbed"),
        "rows pushed in hundreds, by a loop in Spark": ("enqueue", "loop over POST /queues/q/jobs/bulk"),
        "jobs pulled and acknowledged in hundreds, by a loop in Spark": ("lease", "loop over pull-batch"),
        "rows enqueued by `df.write`": ("enqueue", "df.write"),
        "jobs of a snapshot": ("snapshot", "spark.read.format"),
        "events of the journal": ("journal", "spark.read.format"),
        "jobs leased, read and acknowledged": ("lease", "spark.readStream"),
        "events into the lake, bronze to gold, from the journal": ("lake", "whole run"),
        "events of gold made anew from bronze": ("lake", "gold"),
    }
    return [
        (
            name,
            f"{measured[part].rate(begins):,.0f}",
            f"{measured[part].spent(begins) * 1e6:,.3g} µs",
            f"{measured[part].spent(begins, SERVER) * 1e6:,.3g} µs",
        )
        for name, (part, begins) in wanted.items()
    ]


if __name__ == "__main__":
    print(text(Measured(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)))
