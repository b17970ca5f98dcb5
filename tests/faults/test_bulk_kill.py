"""The server is killed while it publishes, and while groups claim: nothing is lost, nothing is there twice."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.support.arrow import rows_of, values
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ROWS, PART = 40_000, 10_000
LEASE_MS = 600_000  # nothing may have to wait for that


def stage(client: httpx2.Client, txn: int) -> None:
    content = values(range(txn * PART, (txn + 1) * PART))
    assert client.post(f"/bulk/stages/t{txn}", params={"queue": "load"}, content=content).status_code == 200


def waiting(client: httpx2.Client) -> int:
    count: int = client.get("/queues/load/counts").json()["counts"]["waiting"]
    return count


def kill_when(server: ServerProcess, client: httpx2.Client, many: int) -> int:
    """Kill it once so many rows are there; return how many it were."""
    while (seen := waiting(client)) < many:
        time.sleep(0.01)
    server.kill()
    return seen


def test_a_kill_while_publishing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    body: dict[str, Any] = {"key": "k", "txns": [f"t{txn}" for txn in range(ROWS // PART)]}
    with ServerProcess(tmp_path / "data") as server:
        with server.client() as client:
            for txn in range(ROWS // PART):
                stage(client, txn)
            assert client.post("/bulk/commits", json=body).json()["duplicate"] is False
            seen = [kill_when(server, client, 1)]
        for share in (8, 3):
            server.start()
            with server.client() as client:
                seen.append(kill_when(server, client, ROWS // share))
        assert seen[0] < ROWS
        server.start()
        with server.client() as client:
            reply = client.post("/bulk/commits", json={**body, "wait_ms": 60_000}).json()
            assert (reply["rows"], reply["state"], reply["duplicate"]) == (ROWS, "published", True)
            assert waiting(client) == ROWS
            assert Counter(consume(client)) == Counter(range(ROWS))


def consume(client: httpx2.Client) -> list[int]:
    """Take everything, epoch by epoch."""
    got: list[int] = []
    epoch = 1
    while True:
        body = {"epoch": epoch, "queues": ["load"], "max": 15_000, "lease_ms": 60_000}
        if not client.post("/bulk/groups/all/claim", json=body).json()["rows"]:
            return got
        got += [int(row["value"]) for row in rows_of(client.get("/bulk/groups/all/read", params={"epoch": epoch}))]
        client.post("/bulk/groups/all/ack", json={"epoch": epoch})
        epoch += 1


@pytest.mark.parametrize(
    "moment", ["Claim:after", "RecordEpoch:before", "RecordEpoch:after", "SettleSlice:after", "EndEpochs:before"]
)
def test_a_kill_while_consuming_loses_and_doubles_nothing(tmp_path: Path, moment: str) -> None:
    """At each step once. Whoever asks again for the same epoch gets what was claimed for it, at once."""
    died = tmp_path / "died"
    rows = 2_500
    env = {"DIE_AT": moment, "DIED_FILE": str(died)}
    done: list[int] = []
    with ServerProcess(tmp_path / "data", env=env, launcher=("-m", "tests.support.dying_server")) as server:
        with server.client() as client:
            assert client.post("/bulk/stages/t", params={"queue": "load"}, content=values(range(rows))).status_code == 200
            client.post("/bulk/commits", json={"key": "k", "txns": ["t"], "wait_ms": 60_000})
        for epoch in (1, 2):
            got = again(server, "claim", {"epoch": epoch, "queues": ["load"], "max": 2_000, "lease_ms": LEASE_MS})
            assert got["rows"] == (2_000 if epoch == 1 else 500)
            with server.client() as client:
                read = client.get("/bulk/groups/g/read", params={"epoch": epoch})
                assert read.status_code == 200, read.text
                done += [int(row["value"]) for row in rows_of(read)]
            reply = again(server, "ack", {"epoch": epoch})
            assert reply["lost"] == 0
        with server.client() as client:
            counts = client.get("/queues/load/counts").json()["counts"]
            (group,) = client.get("/bulk/groups").json()
    assert died.exists()
    assert sorted(done) == list(range(rows))
    assert {state: count for state, count in counts.items() if count} == {"completed": rows}
    assert group["epochs"] == []


def again(server: ServerProcess, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask, and ask again after the server has died."""
    for _ in range(2):
        try:
            with server.client() as client:
                response = client.post(f"/bulk/groups/g/{what}", json=body)
        except httpx2.TransportError:
            server.kill()
            server.start()
            continue
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply
    raise AssertionError("the server died twice")
