"""``make bench-spark``: its loops do what they claim to, its past is one, and what it measured adds up. Without Spark."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from bench import billion
from bench.spark import loops
from bench.spark.figures import Figures, in_turns, keep
from bench.spark.fill import fill

from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


class Row(NamedTuple):
    value: str = ""
    begin: int = 0
    end: int = 0
    wanted: int = 0


def address(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_loops_push_list_follow_and_pull_all_there_is(server: ServerProcess) -> None:
    url = address(server)
    rows = [Row(json.dumps({"n": number})) for number in range(150)]
    loops.push_each(url, "one")(rows[:20])
    loops.push_hundreds(url, "hundreds")(rows)
    listed = list(loops.list_jobs(url, "hundreds", 40)([Row(begin=0, end=100), Row(begin=100, end=150)]))
    assert sorted(json.loads(each[-1])["n"] for each in listed) == list(range(150))
    events = list(loops.follow_events(url, "default")([Row(begin=0, wanted=100)]))
    assert {each[1] for each in events} >= {"job:pushed"}
    assert len({each[0] for each in events}) == len(events) == 100
    pulled = [*loops.pull_each(url, "one", 15)([]), *loops.pull_each(url, "one", 15)([])]
    assert [json.loads(each[-1])["n"] for each in pulled] == list(range(20))
    assert len(list(loops.pull_hundreds(url, "hundreds", 1_000)([]))) == 150
    with server.client() as client:
        for queue in ("one", "hundreds"):
            counts = client.get(f"/queues/{queue}/counts").json()["counts"]
            assert (counts["waiting"], counts["active"], counts["completed"]) == (0, 0, 20 if queue == "one" else 150)


@pytest.mark.slow
def test_the_past_is_in_the_journal(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "data", 3_000))
    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        shard = client.get("/bulk", headers={"X-Namespace": "*"}).json()["shards"][0]
        waiting = client.get("/queues/queue00/counts", headers={"X-Namespace": "tenant0"}).json()["counts"]["waiting"]
    assert shard["journal_first"] == 1
    assert 2_500 < shard["vouched"] < 4_500
    assert waiting < 20  # what failed in the last minute


def test_ratios_are_taken_round_by_round(tmp_path: Path) -> None:
    figures = Figures(1)
    seconds = iter(range(10))
    figures.processor = lambda: {"the server": float(next(seconds))}
    with figures.timed("timed", 1_000):
        pass
    assert figures.medians_spent("timed") == {"the server": 1_000}
    in_turns(
        3, lambda number: figures.add("ours", 100, number + 1), lambda number: figures.add("loop", 10, 2 * (number + 1))
    )
    assert figures.ratio("ours", "loop") == 20
    figures.beats("ours", "loop", 21)
    assert [goal.met for goal in figures.goals] == [False]
    keep(tmp_path / "kept" / "f.json", "one", figures)
    keep(tmp_path / "kept" / "f.json", "two", Figures(0.5))
    kept = json.loads((tmp_path / "kept" / "f.json").read_text(encoding="utf-8"))
    assert set(kept) == {"one", "two"}
    assert (kept["one"]["rates"]["ours"], kept["one"]["goals"][0]["met"], kept["two"]["scale"]) == (50, False, 0.5)


def measured(path: Path, **changed: Any) -> billion.Measured:
    rates = {
        "enqueue": {"df.write.format('penstock')": 200_000, "loop over POST /queues/q/jobs/bulk of 100": 20_000},
        "lease": {"spark.readStream": 100_000, "loop over pull-batch and ack-batch of 100": 10_000},
        "disturb": {"pushes, undisturbed": 5_000, "pulls with their acknowledgements, undisturbed": 2_500},
        "snapshot": {"spark.read.format": 400_000},
        "journal": {"spark.read.format": 500_000},
        "lake": {"whole run": 100_000, "gold from bronze": 500_000},
    }
    layers = {f"bytes for an event in {layer}": size for layer, size in (("bronze", 15), ("silver", 10))}
    layers |= {f"files of a batch in {layer}": 4 for layer in billion.LAYERS}
    layers |= {f"files in {layer} after compaction": 8 for layer in billion.LAYERS}
    values = {
        "lake": layers | {"events for a job": 3.0, "bytes for a queue and minute in gold": 2_000},
        "journal": {"bytes on disk for an event": 50},
    }
    # The server has a half of what all take, and there are as many as one core can do.
    spent = {
        name: {what: {billion.SERVER: 1e6 / rate, "Spark's JVM": 1e6 / rate} for what, rate in each.items()}
        for name, each in rates.items()
    }
    common = {"cores": 2, "scale": 1, "busy_before": 0.1} | changed
    kept = {
        name: common | {"rates": each, "processor_us": spent[name], "values": values.get(name, {})}
        for name, each in rates.items()
    }
    path.write_text(json.dumps(kept), encoding="utf-8")
    return billion.Measured(path)


def test_a_billion_jobs_a_day_are_worked_out(tmp_path: Path) -> None:
    plan = billion.Plan(measured(tmp_path / "f.json"))
    assert plan.jobs == pytest.approx(11_574, rel=1e-3)
    assert plan.mixed_s == pytest.approx(0.1 * (1 / 5_000 + 1 / 2_500) + 0.9 * (1 / 20_000 + 1 / 10_000))
    assert plan.shards == 12  # 34,722 a second, 195 µs each, busy for 60 %
    assert plan.core_hours == pytest.approx(3e9 / 100_000 * 2 / 3_600)
    assert plan.bytes["bronze"] == pytest.approx(90e9)
    assert plan.compacted("bronze") == 336
    assert plan.compacted("gold") == 11
    assert sum(plan.cost_a_day().values()) == pytest.approx(
        12 * 24 * 0.04 + plan.core_hours / 0.6 * 0.04 + (90 * 30 + 60 * 90 + 2.88 * 730) * 0.023 / 30
    )


@pytest.mark.parametrize(
    ("changed", "doubt"), [({}, None), ({"scale": 0.05}, "0.05 of the full size"), ({"busy_before": 0.5}, "25% of the time")]
)
def test_figures_that_are_not_to_be_relied_on_are_marked(tmp_path: Path, changed: dict[str, Any], doubt: str | None) -> None:
    text = billion.text(measured(tmp_path / "f.json", **changed))
    assert ("Preliminary" in text) is (doubt is not None)
    assert doubt is None or doubt in text
    assert "| jobs a second | 11,574 | 34,722 |" in text


def test_what_was_not_measured_is_not_made_up(tmp_path: Path) -> None:
    assert billion.text(billion.Measured(tmp_path / "none.json")).startswith("Not measured yet")
