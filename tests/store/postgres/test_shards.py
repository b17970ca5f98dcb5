"""Shards: queues are spread, everything else looks like one server; one that is down takes only its own queues along."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.ids import from_uuid, shard_of
from penstock.core.queue import QueueKey
from penstock.core.sharding import fnv1a32, shard_for
from tests.doors.api import Api
from tests.doors.jobs.test_sse import forget
from tests.doors.listen import stream
from tests.support.ports import free_port
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
    batches = f"127.0.0.1:{free_port()}"
    with server_on(tmp_path, databases, "--batches", batches) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        kept = a.push()
        assert client.get(f"http://{batches}/health").text == "OK"
        run(set_down(databases[number], down=True))
        while (status := client.post(f"/queues/{down}/jobs", json={"data": 1}).status_code) == 200:
            time.sleep(0.01)
        assert status == 503
        assert b.push()
        assert b.pull() is not None
        health = client.get("/health").json()
        assert health["status"] == "degraded"
        assert re.fullmatch(rf"shard {number}: the database cannot be reached: [a-z ,]+", health["reason"]), "in plain words"
        for order in (QUEUES, QUEUES[::-1]):  # whichever shard comes first
            both = client.post("/enqueue", json=[{"namespace": "default", "topic": name} for name in order])
            assert (both.status_code, both.headers["penstock-error"]) == (503, "storage_failed"), both.text
            assert both.text.startswith(f"Shard {number} is down.")
        assert b.counts()["waiting"] == 0, "all or none"
        told = client.get(f"http://{batches}/health")
        assert (told.status_code, told.text) == (503, f"Database unhealthy\nshard {number} is down\n")
        listed = b.ok("GET", "/queues")
        assert listed["queues"] == ["a", "b"]
        assert [f"shard {number}" in each for each in listed["partial"]] == [True]
        assert f'penstock_shard_up{{shard="{number}"}} 0.0' in client.get("/prometheus").text
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        job = a.pull()
        assert job is not None
        assert job["id"] == kept
        assert "partial" not in b.ok("GET", "/queues")


def test_what_cannot_be_settled_because_its_shard_is_down_is_not_called_gone(tmp_path: Path, databases: list[str]) -> None:
    number = shard_for(QueueKey("default", QUEUES[0]), 2)
    with server_on(tmp_path, databases) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        for api in (a, a, b, b):
            api.push()
        (first, second), (third, fourth) = ([api.pull()["id"] for _ in range(2)] for api in (a, b))
        run(set_down(databases[number], down=True))
        while client.get("/health").json()["status"] == "healthy":
            time.sleep(0.01)
        calls: list[tuple[str, Any]] = [
            (f"/jobs/{first}/ack", {}),
            (f"/jobs/{first}/fail", {}),
            (f"/jobs/{first}/heartbeat", {}),
            ("/jobs/ack-batch", {"ids": [first, second]}),
            ("/jobs/ack-batch", {"ids": [first, "0199a000-0000-7000-8000-000000000000"]}),
        ]
        for path, body in calls:
            refused = client.post(path, json=body)
            assert (refused.status_code, refused.headers["penstock-error"]) == (503, "storage_failed"), path
            assert "cannot be reached" in refused.json()["error"]
        partly = b.ok("POST", "/jobs/ack-batch", {"ids": [first, third]})
        assert (partly["count"], [error["id"] for error in partly["errors"]]) == (1, [first])
        assert "cannot be reached" in partly["errors"][0]["error"]
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        assert a.ok("POST", "/jobs/ack-batch", {"ids": [first, second, fourth]})["count"] == 3


@pytest.mark.parametrize("shard", [0, 1])
def test_a_gap_in_the_events_says_of_which_shard(tmp_path: Path, shard: int) -> None:
    directories = [tmp_path / name for name in ("one", "two")]
    addresses = [f"sqlite:{each}" for each in directories]
    with server_on(tmp_path, addresses) as server, server.client() as client:
        for name in QUEUES * 5:
            Api(client, name).push()
    forget(directories[shard], before=4)
    with (
        server_on(tmp_path, addresses) as server,
        server.client() as client,
        stream(client, "/events", params={"lastEventId": "1-1"}) as events,
    ):
        while (missed := events.message()).get("event") != "events:missed":
            time.sleep(0.01)
        assert json.loads(missed["data"]) == {"lastEventId": 1, "firstEventId": 4, "shard": shard}


def test_a_stream_that_cannot_replay_ends_so_that_its_client_comes_back(tmp_path: Path, databases: list[str]) -> None:
    with server_on(tmp_path, databases) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        for api in (a, b):
            api.push()
        with stream(client, "/events", params={"lastEventId": "0"}) as events:
            last = [events.event()[0] for _ in range(2)][-1]
        kept = [api.push() for api in (a, b)]
        run(set_down(databases[1], down=True))
        while client.get("/health").json()["status"] == "healthy":
            time.sleep(0.01)
        again = {"lastEventId": str(last)}
        with client.stream("GET", "/events", params=again, timeout=20) as cut:
            assert b"connected" in cut.read()  # it ends by itself
        run(set_down(databases[1], down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        with stream(client, "/events", params=again) as events:
            assert {events.event()[1]["jobId"] for _ in range(2)} == set(kept)


def test_crons_of_a_shard_that_is_up_can_be_changed_and_of_others_nobody_knows(tmp_path: Path, databases: list[str]) -> None:
    number = shard_for(QueueKey("default", QUEUES[0]), 2)

    def cron(name: str, queue: str) -> dict[str, Any]:
        return {"name": name, "queue": queue, "data": 1, "schedule": "@daily"}

    with server_on(tmp_path, databases) as server, server.client() as client:
        api = Api(client, "")
        for name in QUEUES:
            api.ok("POST", "/crons", cron(f"cron-{name}", name))
        run(set_down(databases[number], down=True))
        while client.get("/health").json()["status"] == "healthy":
            time.sleep(0.01)
        api.ok("POST", "/crons", cron("cron-b", "b"))
        api.ok("DELETE", "/crons/cron-b")
        refused = [
            client.get("/crons/cron-a"),
            client.delete("/crons/cron-a"),
            client.get("/crons/nobody-knows"),
            client.post("/crons", json=cron("cron-a", "b")),
        ]
        assert [each.status_code for each in refused] == [503] * 4
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        api.ok("DELETE", "/crons/cron-a")
        assert client.get("/crons/nobody-knows").status_code == 404


def test_a_server_starts_although_a_shard_is_down(tmp_path: Path, databases: list[str]) -> None:
    number = shard_for(QueueKey("default", QUEUES[0]), 2)
    run(set_down(databases[number], down=True))
    with server_on(tmp_path, databases) as server, server.client() as client:
        a, b = (Api(client, name) for name in QUEUES)
        assert client.post(f"/queues/{QUEUES[0]}/jobs", json={"data": 1}).status_code == 503
        assert b.push()
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        assert a.push()


def test_the_reserve_of_all_shards_is_told(tmp_path: Path) -> None:
    stores = [f"sqlite:{tmp_path / name}" for name in ("one", "two")]
    with server_on(tmp_path, stores) as server, server.client() as client:
        held = [(tmp_path / name / "ballast").stat().st_blocks * 512 for name in ("one", "two")]
        assert client.get("/storage").json()["reserveBytes"] == sum(held) > max(held)
