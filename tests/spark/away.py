"""A driver that is killed, with everything it started, and away for longer than its leases go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from tests.spark.chaos import Chaos, counts, until, values_of
from tests.spark.driver import to_delta, to_queue
from tests.spark.tap import Tap

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server import ServerProcess

#: At these the batch is in the sink, or may be. What happens before leaves nothing behind.
IN_SINK = frozenset({"/commits", "/ack", "queue/commits/{}", "delta/commits/{}", "table/_delta_log/{:020}.json", ""})
#: Leases of those who come back, which have all the time of the world. Not those of the others: these make no keys.
LONG = "2h"


class Away(Chaos):
    """Chaos with leases that end. Those who come back are told; with ``skip`` they go on."""

    lease = "5s"
    params: ClassVar[dict[str, int]] = {"max_attempts": 100, "backoff": 0}

    def __init__(self, spark: SparkSession, server: ServerProcess, place: Path, names: list[str], seed: str) -> None:
        super().__init__(server, place, names, seed)
        self._spark = spark
        self.told: Counter[str] = Counter()
        self.twice: Counter[str] = Counter()

    def run(self, kills: int) -> None:
        """Kill it so many times, wait until its leases have ended, and have somebody else go on."""
        # A batch that is done and was not acknowledged is the hardest: nothing of it is read again.
        moments = [("/ack", False), *(moment for moment in self.moments if moment != ("/ack", False))]
        with Tap(self.server.port) as tap:
            for number in range(kills):
                moment = moments[number % len(moments)]
                for _ in range(5):
                    self.more(2)
                    came = self._round(tap, *moment, everything=True)
                    for name in self.names:
                        until(lambda name=name: counts(self.server, f"in-{name}")["active"] == 0)  # type: ignore[misc]
                        self._come_back(name, moment[0])
                    if came:
                        break
                else:
                    raise AssertionError(f"it always finished before {moment}: {self.log.read_text()[-2000:]}")

    def _come_back(self, name: str, what: str) -> None:
        """Go on where a query was. Nothing comes twice that nobody was told of."""
        before = self._table()
        told = self._is_told(name)
        if told:
            if name == "delta":
                assert self._is_told(name), "it is told again, until somebody decides"
            assert self._table() == before
            self.told[what] += 1
        self._go(name, "skip")
        if name == "queue":  # its jobs have keys
            until(lambda: counts(self.server, "out")["waiting"] >= self.made)
            assert values_of(self.server, "out") == self.wanted
        else:
            found = self._table()
            assert sorted(set(found)) == self.wanted
            twice = found.total() - self.made - self.twice.total()
            if not told or (self.names == ["delta"] and what not in IN_SINK):
                assert not twice, what
            self.twice[what] += twice
        if what == "/claim" and self.names == [name]:
            assert not told, "nobody has read what was claimed, so nothing is wrong"

    def _go(self, name: str, lost: str) -> None:
        (to_queue if name == "queue" else to_delta)(self._spark, self.server.url, self.place, LONG, lost)()

    def _is_told(self, name: str) -> bool:
        said = ""
        try:
            self._go(name, "fail")
        except StreamingQueryException as error:
            said = str(error)
            if "onLeaseLost=skip" not in said or "same job_id" not in said:
                raise
        return bool(said)

    def _table(self) -> Counter[str]:
        """Return the values in the Delta table, and how often each is there."""
        table = str(self.place / "table")
        return Counter(DeltaTable(table).to_pyarrow_table()["value"].to_pylist() if DeltaTable.is_deltatable(table) else [])

    def check(self) -> None:
        """Nothing is held. Every job is in the queue once, thanks to its key, and in the table at least once: its id tells."""
        self._check_queues()
        if "delta" in self.names:
            rows = DeltaTable(str(self.place / "table")).to_pyarrow_table().to_pylist()
            assert sorted({row["job_id"]: row["value"] for row in rows}.values()) == self.wanted
            assert len({(row["job_id"], row["attempt"]) for row in rows}) == len(rows)
