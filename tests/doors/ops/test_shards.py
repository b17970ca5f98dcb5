"""Looking at shards and rebalancing them, as operators do, and what a reader of events notices."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.core.queue import QueueKey
from penstock.core.sharding import shard_for
from penstock.doors.jobs.sse import _places
from tests.doors.api import Api
from tests.doors.listen import stream
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

MOVES = next(name for name in "abcdefgh" if shard_for(QueueKey("default", name), 2) == 1)


def server_on(tmp_path: Path, count: int, **env: str) -> ServerProcess:
    stores = [each for number in range(count) for each in ("--store", f"sqlite:{tmp_path / f'shard{number}'}")]
    return ServerProcess(tmp_path / "unused", *stores, env={"PENSTOCK_STORES": "", **env})


def shards(server: ServerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "shards", *words, "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_one_store_becomes_two_and_one_again(tmp_path: Path) -> None:
    with server_on(tmp_path, 1) as server, server.client() as client:
        api = Api(client, MOVES)
        job = api.push()
        held = api.ok("GET", "{q}/jobs?owner=w")
        with stream(client, "/events", headers={"Last-Event-ID": "0"}) as events:
            seen = [events.message() for _ in range(2)]
        refused = shards(server, "rebalance")
        assert (refused.returncode, "There is only one store" in refused.stderr) == (2, True)
        assert client.get("/shards").json()["shards"][0]["queues"] == 1

    with server_on(tmp_path, 2) as server, server.client() as client:
        api = Api(client, MOVES)
        assert "shard 1 of 1: 0 queues, spare" in shards(server, "status").stdout
        done = shards(server, "rebalance")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done: every queue is on its shard"), done
        assert [each["queues"] for each in client.get("/shards").json()["shards"]] == [0, 1]
        assert "nothing to do" in shards(server, "rebalance").stdout
        api.ok("POST", f"/jobs/{job}/ack", {"token": held["token"], "result": 7})
        assert api.ok("GET", f"/jobs/{job}/result")["result"] == 7
        assert api.ok("GET", f"/jobs/{job}")["job"]["queue"] == MOVES
        # Who has seen the first shard up to some event goes on there, and misses nothing of the second.
        with stream(client, "/events", headers={"Last-Event-ID": seen[-1]["id"]}) as events:
            place, told = events.event()
        assert (told["eventType"], told["jobId"]) == ("completed", job)
        assert place is not None
        assert len(place) == 2
        shrunk = shards(server, "rebalance", "--to", "1")
        assert "without queues, can be left out at the next restart: shard 1" in shrunk.stdout

    with server_on(tmp_path, 1) as server, server.client() as client:
        api = Api(client, MOVES)
        assert api.counts()["completed"] == 1
        assert api.ok("GET", f"/jobs/{job}/result")["result"] == 7


def test_only_an_administrator_may_rebalance(tmp_path: Path) -> None:
    with server_on(tmp_path, 2, AUTH_TOKENS="secret") as server, server.client() as client:
        assert client.post("/shards/rebalance", json={}).status_code == 401
        assert "401" in shards(server, "rebalance").stderr
        assert "nothing to do" in shards(server, "rebalance", "--token", "secret").stdout
        wrong = client.post("/shards/rebalance", json={"to": 5}, headers={"Authorization": "Bearer secret"})
        assert (wrong.status_code, wrong.headers["penstock-error"]) == (409, "rebalance_refused")


@pytest.mark.parametrize(
    ("text", "stores", "places"),
    [
        ("12-7", 2, [12, 7]),
        ("12-7", 3, [12, 7, 0]),
        ("12-7-3", 2, [12, 7]),
        ("0", 3, [0, 0, 0]),
        ("x", 2, None),
        ("5", 2, [5, 0]),
    ],
)
def test_ids_of_events_of_fewer_or_more_shards(text: str, stores: int, places: list[int] | None) -> None:
    seen = _places(text, stores)
    assert (None if seen is None else seen.last) == places
