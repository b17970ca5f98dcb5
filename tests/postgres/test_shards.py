"""Shards: queues are spread, everything else looks like one server; one that is down takes only its own queues along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.ids import from_uuid, shard_of
from penstock.core.queue import QueueKey
from penstock.core.sharding import fnv1a32, shard_for
from tests.doors.api import Api
from tests.support.shards import run, server_on, set_down

if TYPE_CHECKING:
    from pathlib import Path

#: One on each of two shards.
QUEUES = ("a", "b")


def test_queues_are_spread_by_the_contracts_hash() -> None:
    assert [fnv1a32(text) for text in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert [shard_for(QueueKey("default", name), 2) for name in QUEUES] == [fnv1a32(f"default{name}") % 2 for name in QUEUES]
    assert sorted(shard_for(QueueKey("default", name), 2) for name in QUEUES) == [0, 1]


def test_a_queue_is_on_one_shard_and_its_ids_say_which(tmp_path: Path, addresses: list[str]) -> None:
    with server_on(tmp_path, addresses) as server, server.client() as client:
        shards = {}
        for name in QUEUES:
            job = from_uuid(Api(client, name).push())
            assert job is not None
            shards[name] = shard_of(job)
        assert shards == {name: shard_for(QueueKey("default", name), 2) for name in QUEUES}
        assert Api(client, "").ok("GET", "/queues")["queues"] == ["a", "b"]
        assert Api(client, "").ok("GET", "/stats")["stats"]["waiting"] == 2


@pytest.mark.parametrize("given", ["swapped", "one"])
def test_other_stores_than_before_are_refused(tmp_path: Path, addresses: list[str], given: str) -> None:
    with server_on(tmp_path, addresses) as server, server.client() as client:
        kept = {name: Api(client, name).push() for name in QUEUES}
    others = addresses[::-1] if given == "swapped" else addresses[:1]
    with pytest.raises(AssertionError, match=r"(?s)did not start.*This store is shard"):
        server_on(tmp_path, others).start()
    with server_on(tmp_path, addresses) as server, server.client() as client:
        for name, job in kept.items():
            assert Api(client, name).pull()["id"] == job


def test_a_name_is_given_once_over_all_shards(tmp_path: Path, addresses: list[str]) -> None:
    with server_on(tmp_path, addresses) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        assert a.push(1, jobId="mine") == b.push(2, jobId="mine") == "mine"
        job, token = a.take()
        assert (job, b.pull()) == ("mine", None)
        a.ok("POST", "/jobs/mine/ack", {"token": token})
        assert b.push(3, jobId="mine") == "mine"  # a completed job still has its name
        assert b.pull() is None


def test_a_cron_that_moves_to_another_shard_keeps_its_count(tmp_path: Path, addresses: list[str]) -> None:
    with server_on(tmp_path, addresses) as server, server.client() as client:
        api = Api(client, "a")
        api.ok("POST", "/crons", {"name": "c", "queue": "a", "data": 1, "repeatEvery": 3_600_000, "immediately": True})
        assert api.pull(timeout=20_000) is not None
        api.ok("POST", "/crons", {"name": "c", "queue": "b", "data": 1, "repeatEvery": 3_600_000})
        moved = api.ok("GET", "/crons/c")["cron"]
        assert (moved["queue"], moved["executions"]) == ("b", 1)


def test_one_call_about_jobs_of_several_shards_is_answered_in_order(tmp_path: Path, addresses: list[str]) -> None:
    with server_on(tmp_path, addresses) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        jobs = [queue.push() for queue in (a, b, a, b)]
        held = {job["id"]: job for queue in (a, a, b, b) if (job := queue.pull()) is not None}
        assert set(held) == set(jobs)
        reply = a.ok("POST", "/jobs/ack-batch", {"ids": [*jobs, "nobody"]})
        assert [error["id"] for error in reply["errors"]] == ["nobody"]
        assert [a.ok("GET", f"/jobs/{job}/state")["state"] for job in jobs] == ["completed"] * 4


def test_crons_and_webhooks_are_one_list(tmp_path: Path, addresses: list[str]) -> None:
    with server_on(tmp_path, addresses) as server, server.client() as client:
        api = Api(client, "")
        for name in QUEUES:
            api.ok("POST", "/crons", {"name": f"cron-{name}", "queue": name, "data": 1, "schedule": "@daily"})
        assert [cron["name"] for cron in api.ok("GET", "/crons")["crons"]] == ["cron-a", "cron-b"]
        api.ok("POST", "/crons", {"name": "cron-a", "queue": "b", "data": 1, "schedule": "@daily"})
        assert [(cron["name"], cron["queue"]) for cron in api.ok("GET", "/crons")["crons"]] == [
            ("cron-a", "b"),
            ("cron-b", "b"),
        ]
        api.ok("DELETE", "/crons/cron-a")
        added = api.ok("POST", "/webhooks", {"url": "https://example.com/", "events": ["job.completed"]})["data"]
        (listed,) = api.ok("GET", "/webhooks")["data"]["webhooks"]
        assert listed["id"] == added["webhookId"]
        api.ok("DELETE", f"/webhooks/{listed['id']}")
        assert api.ok("GET", "/webhooks")["data"]["webhooks"] == []


def test_a_shard_that_is_down_takes_only_its_own_queues_along_and_comes_back(tmp_path: Path, databases: list[str]) -> None:
    down = QUEUES[0]
    number = shard_for(QueueKey("default", down), 2)
    with server_on(tmp_path, databases) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        kept = a.push()
        run(set_down(databases[number], down=True))
        while (status := client.post(f"/queues/{down}/jobs", json={"data": 1}).status_code) == 200:
            pass
        assert status == 503
        assert b.push()
        assert b.pull() is not None
        health = client.get("/health").json()
        assert health["status"] == "degraded"
        assert f"shard {number}" in health["reason"]
        listed = b.ok("GET", "/queues")
        assert listed["queues"] == ["a", "b"]
        assert [f"shard {number}" in each for each in listed["partial"]] == [True]
        assert f'penstock_shard_up{{shard="{number}"}} 0.0' in client.get("/prometheus").text
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            pass
        job = a.pull()
        assert job is not None
        assert job["id"] == kept
        assert "partial" not in b.ok("GET", "/queues")


def test_a_server_starts_although_a_shard_is_down(tmp_path: Path, databases: list[str]) -> None:
    number = shard_for(QueueKey("default", QUEUES[0]), 2)
    run(set_down(databases[number], down=True))
    with server_on(tmp_path, databases) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        assert client.post(f"/queues/{QUEUES[0]}/jobs", json={"data": 1}).status_code == 503
        assert b.push()
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            pass
        assert a.push()
