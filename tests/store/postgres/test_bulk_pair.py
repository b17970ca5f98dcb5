"""What one server begins in bulk, another one on the same database finishes, whether the first one lives or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from penstock.core.bulk_records import EntryKind
from penstock.engine.bulk.consumer_groups import ConsumerGroups, GroupClaim
from penstock.engine.bulk.epoch_commands import SettleSlice, SliceOutcome
from penstock.store.contract import Search
from tests.support.arrow import rows_of, values
from tests.support.engines import push_many
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.engine.engine import Engine

ROWS = 2_500
LEASE_MS = 600_000  # nothing may have to wait for that


class Couple:
    """Two servers; the first one dies at a step."""

    def __init__(self, directory: Path, url: str, moment: str) -> None:
        self.died = directory / "died"
        env = {"PENSTOCK_STORES": url, "DIE_AT": moment, "DIED_FILE": str(self.died)}
        self.first = ServerProcess(directory / "first", env=env, launcher=("-m", "tests.support.dying_server"))
        self.second = ServerProcess(directory / "second", env={"PENSTOCK_STORES": url})

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the first server, and if it is dead, or dies of it, the second."""
        for server in (self.first, self.second):
            try:
                with server.client() as client:
                    response = client.post(path, json=body)
            except httpx2.TransportError:
                assert server is self.first
                continue
            assert response.status_code == 200, response.text
            reply: dict[str, Any] = response.json()
            return reply
        raise AssertionError


@pytest.fixture
def couple(request: pytest.FixtureRequest, tmp_path: Path, databases: list[str]) -> Iterator[Couple]:
    made = Couple(tmp_path, databases[0], request.param)
    with made.first, made.second:
        yield made


@pytest.mark.parametrize(
    "couple",
    ["CommitStages:before", "CommitStages:after", "RecordEpoch:before", "RecordEpoch:after", "SettleSlice:after"],
    indirect=True,
)
def test_each_step_is_finished_by_whoever_lives(couple: Couple) -> None:
    with couple.first.client() as client:
        staged = client.post("/bulk/stages/t", params={"queue": "load"}, content=values(range(ROWS)))
        assert staged.json()["rows"] == ROWS
    commit = couple.ask("/bulk/commits", {"key": "k", "txns": ["t"], "wait_ms": 60_000})
    assert (commit["rows"], commit["state"]) == (ROWS, "published")
    assert commit["duplicate"] is (couple.first.env["DIE_AT"] == "CommitStages:after")
    done: list[int] = []
    for epoch in (1, 2, 3):
        wish = {"epoch": epoch, "queues": ["load"], "max": 1_200, "lease_ms": LEASE_MS, "wait_ms": 1_000}
        assert couple.ask("/bulk/groups/g/claim", wish)["rows"] == (100 if epoch == 3 else 1_200)
        with couple.second.client() as client:  # whoever has claimed it
            done += [int(row["value"]) for row in rows_of(client.get("/bulk/groups/g/read", params={"epoch": epoch}))]
        assert couple.ask("/bulk/groups/g/heartbeat", {"lease_ms": LEASE_MS}) == {"epochs": [epoch], "lost": 0}
        assert couple.ask("/bulk/groups/g/ack", {"epoch": epoch}) == {"acked": 100 if epoch == 3 else 1_200, "lost": 0}
    assert couple.died.exists()
    assert sorted(done) == list(range(ROWS))
    with couple.second.client() as client:
        (group,) = client.get("/bulk/groups").json()
    assert (group["epochs"], group["in_flight"], group["lag"]) == ([], 0, 0)


@pytest.mark.anyio
async def test_two_servers_that_claim_the_same_epoch_get_the_same_jobs(pair: tuple[Engine, Engine]) -> None:
    here, there = (ConsumerGroups(engine) for engine in pair)
    await push_many(pair[0], 50)
    wish = GroupClaim(["mail"], 20, LEASE_MS, 1_000)
    one, other = await asyncio.gather(*(each.claim("default", "g", 1, wish) for each in (here, there)))
    assert one.rows == other.rows == 20
    assert one.slices == other.slices
    # What was claimed in vain was given back, or is part of it.
    notes = await pair[0].store.entry_list(Search(EntryKind.SLICE))
    assert {note.number for note in notes} == {each.number for each in one.slices}
    assert await there.heartbeat("default", "g", LEASE_MS) == ([1], 0)
    assert await there.ack("default", "g", 1) == (20, 0)
    assert await here.ack("default", "g", 1) == (0, 0)
    assert await pair[0].run(SettleSlice(("default", "g", 1), one.slices[0].number, SliceOutcome.ACK)) is None
