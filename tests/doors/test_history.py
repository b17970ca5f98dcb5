"""Whoever resumes learns that the journal is not the one it has read: of another server, or of a store that was restored."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from penstock.lake.location import LAKE_INFO, Lake
from penstock.lake.tables import EVENTS
from penstock.lake.writer import BATCH_MARK, commit, shard_mark
from tests.doors.api import Api
from tests.doors.listen import stream
from tests.store.conformance.test_history import raise_epoch
from tests.support import stores
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2


def restore(data: Path) -> None:
    """Do to a stopped server's stores what a restore does last."""
    named = stores.environment(data).get("PENSTOCK_STORES", f"sqlite:{data / 'penstock.db'}")
    with ThreadPoolExecutor(1) as thread:
        for source in named.split(","):
            thread.submit(_raise, source).result()


def _raise(source: str) -> None:
    asyncio.run(raise_epoch(source))


@pytest.fixture
def read(tmp_path: Path) -> tuple[Path, Any, str]:
    """A server that was read from: its directory, what ``GET /bulk`` and a claim said, and the id of its last event."""
    data = tmp_path / "read"
    with ServerProcess(data) as server, server.client() as client:
        jobs = [Api(client, "q").push() for _ in range(3)]
        claimed = claim(client, 1).json()
        assert claimed["rows"] == 3
        place = {"bulk": client.get("/bulk").json()["shards"], "histories": claimed["histories"]}
        with stream(client, "/events?ids=marked&lastEventId=0") as events:
            seen = [events.message() for _ in range(6)]
        assert [json.loads(each["data"])["jobId"] for each in seen[:3]] == jobs
        last = seen[-1]["id"]
    return data, place, last


def claim(client: httpx2.Client, epoch: int, **more: Any) -> httpx2.Response:
    return client.post("/bulk/groups/g/claim", json={"epoch": epoch, "queues": ["q"], "max": 100, **more})


def check_refused(client: httpx2.Client, place: Any, last: str) -> None:
    for shard in place["bulk"]:
        query = {"shard": shard["shard"], "from": 1, "history": shard["history"]}
        refused = client.get("/bulk/journal", params=query)
        assert (refused.status_code, refused.headers["penstock-error"]) == (409, "history_replaced"), refused.text
        assert refused.json()["ok"] is False
        del query["history"]
        assert client.get("/bulk/journal", params=query).status_code == 200
    refused = claim(client, 2, histories=place["histories"])
    assert (refused.status_code, refused.headers["penstock-error"]) == (409, "history_replaced"), refused.text
    assert claim(client, 2).status_code == 200
    with stream(client, "/events", headers={"Last-Event-ID": last}) as events:
        missed = events.message()
        assert missed["event"] == "events:missed"
        told = json.loads(missed["data"])
        assert (told["firstEventId"], told["reason"]) == (1, "history_replaced")
        assert events.event()[1]["eventType"] == "pushed"


def test_another_server_with_more_events_is_noticed(tmp_path: Path, read: tuple[Path, Any, str]) -> None:
    _, place, last = read
    with ServerProcess(tmp_path / "other") as server, server.client() as client:
        for _ in range(10):
            Api(client, "q").push()
        check_refused(client, place, last)


def test_a_restored_store_is_noticed(read: tuple[Path, Any, str]) -> None:
    data, place, last = read
    restore(data)
    with ServerProcess(data) as server, server.client() as client:
        Api(client, "q").push()
        check_refused(client, place, last)
        now = client.get("/bulk").json()["shards"]
        before = [shard["history"].partition(":")[0] + ":1" for shard in place["bulk"]]
        assert [shard["history"] for shard in now] == before


def test_the_same_store_goes_on_without_a_word(read: tuple[Path, Any, str]) -> None:
    data, place, last = read
    with ServerProcess(data) as server, server.client() as client:
        job = Api(client, "q").push()
        for shard in place["bulk"]:
            query = {"shard": shard["shard"], "from": shard["vouched"], "history": shard["history"]}
            assert client.get("/bulk/journal", params=query).status_code == 200
        with stream(client, "/events?ids=marked", headers={"Last-Event-ID": last}) as events:
            told = events.message()
            assert (json.loads(told["data"])["jobId"], told["id"].partition("@")[2]) == (job, last.partition("@")[2])
        claimed = claim(client, 2, histories=place["histories"])
        assert (claimed.json()["rows"], claimed.json()["histories"]) == (1, place["histories"])


def test_a_place_beyond_the_end_of_the_journal_is_noticed_without_a_history(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "new") as server, server.client() as client:
        Api(client, "q").push()
        for shard in client.get("/bulk").json()["shards"]:
            where = {"shard": shard["shard"], "from": shard["journal_next"]}
            assert client.get("/bulk/journal", params=where).status_code == 200
            for to in ({}, {"to": 900}):
                refused = client.get("/bulk/journal", params=where | {"from": 900} | to)
                assert (refused.status_code, refused.headers["penstock-error"]) == (409, "history_replaced"), refused.text


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "new") as server, server.client() as client:
        refused = client.get("/bulk/journal", params={"from": 1, "history": "yesterday"})
        assert (refused.status_code, refused.json()["error"]) == (
            400,
            "history must be as GET /bulk has it: the identity of a store, a colon, and a number",
        )
        for histories, word in (
            ({"0": "yesterday"}, "history"),
            ({"0": 5}, "histories.0 must be a string"),
            ("x", "an object"),
        ):
            refused = claim(client, 1, histories=histories)
            assert refused.status_code == 400
            assert word in refused.json()["error"]


def test_ids_are_plain_numbers_unless_marks_are_asked_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "new") as server, server.client() as client:
        Api(client, "q").push()
        with stream(client, "/events?lastEventId=0") as events, stream(client, "/events?lastEventId=0&ids=marked") as marked:
            plain, full = events.message(), marked.message()
        assert set(plain["id"]) <= set("0123456789-")
        assert full["id"].startswith(f"{plain['id']}@")
        assert full["data"] == plain["data"]


def test_a_lake_of_another_journal_is_told_from_one_that_is_up_to_date(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    commit(lake, EVENTS, [], marks={BATCH_MARK: 0, shard_mark("0"): 3}, now_ms=0)
    with ServerProcess(tmp_path / "data", "--lake", lake.address) as server, server.client() as client:
        Api(client, "q").push()
        Api(client, "r").push()

        def told() -> Any:
            reply = client.get("/insights", headers={"X-Namespace": "*"})
            assert reply.status_code == 200, reply.text
            return reply.json()["shards"][0]

        assert told()["replaced"] is (told()["read_to"] > told()["vouched"])  # by numbers alone: an earlier version's lake
        mine = client.get("/bulk").json()["shards"][0]["history"]
        for history, replaced in ((mine, False), (f"{'0' * 32}:0", True), (f"{mine[:-1]}1", True)):
            lake.put_text(LAKE_INFO, json.dumps({"format": 2, "namespace": "*", "histories": {"0": history}}))
            assert told()["replaced"] is replaced
        commit(lake, EVENTS, [], marks={BATCH_MARK: 1, shard_mark("0"): 900}, now_ms=0)
        lake.put_text(LAKE_INFO, json.dumps({"format": 2, "namespace": "*"}))
        assert (told()["replaced"], told()["behind"]) == (stores.chosen() == "sqlite", 0)
