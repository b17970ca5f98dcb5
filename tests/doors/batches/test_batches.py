"""The batches door, over real sockets: every route, its order, its keys, its dead letters, its own listener, its metrics."""

from __future__ import annotations

import base64
import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core import ids
from penstock.core.timestamps import from_rfc3339, to_rfc3339
from tests.support import stores
from tests.support.issuer import certificate, token
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count()
PAST = "2024-12-25T10:00:00Z"
FAR = to_rfc3339(0).replace("1970", "2999")


class Topic:
    """One topic of a server, in short words. Methods insist on success; ``refused`` on failure."""

    def __init__(self, client: httpx2.Client, namespace: str = "default") -> None:
        self.http = client
        self.namespace = namespace
        self.name = f"topic{os.getpid()}-{next(_numbers)}"

    @property
    def where(self) -> dict[str, str]:
        return {"namespace": self.namespace, "topic": self.name}

    def item(self, payload: bytes = b"{}", **more: Any) -> dict[str, Any]:
        return {**self.where, "payload": base64.b64encode(payload).decode(), **more}

    def enqueue(self, *items: dict[str, Any]) -> list[int]:
        response = self.http.post("/enqueue", json=list(items))
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        given_ids: list[int] = response.json()
        return given_ids

    def dequeue(self, limit: int | None = None, **query: Any) -> list[dict[str, Any]]:
        more = {} if limit is None else {"limit": limit}
        response = self.http.get("/dequeue", params={**self.where, **more, **query})
        assert response.status_code == 200, response.text
        items: list[dict[str, Any]] = response.json()
        return items

    def taken(self, limit: int | None = None) -> list[int]:
        return [item["id"] for item in self.dequeue(limit)]

    def tell(self, path: str, item_id: int | str, **more: Any) -> httpx2.Response:
        return self.http.post(path, json={"id": item_id, **self.where, **more})

    def ok(self, path: str, item_id: int | str, **more: Any) -> None:
        response = self.tell(path, item_id, **more)
        assert (response.status_code, response.text) == (200, "OK")
        assert response.headers["content-type"] == "text/plain; charset=utf-8"

    def dead(self, **query: Any) -> list[dict[str, Any]]:
        response = self.http.get("/dlq", params={**self.where, **query})
        assert response.status_code == 200, response.text
        letters: list[dict[str, Any]] = response.json()
        return letters

    def bury(self, **more: Any) -> int:
        """Enqueue a message and have it fail three times."""
        (item_id,) = self.enqueue(self.item(**more))
        for attempt in range(3):
            assert self.taken() == [item_id]
            self.ok("/nack", item_id, error=f"failure {attempt}")
            self.http.post(f"/queues/{self.name}/promote-jobs", headers={"X-Namespace": self.namespace})
        return item_id

    def wait_until_ready(self) -> dict[str, Any]:
        """Wait at the jobs door for what comes next, and let it go back to where it was."""
        reply = self.http.get(f"/queues/{self.name}/jobs", params={"timeout": 20_000}).json()
        job: dict[str, Any] = reply["job"]
        return job


def refused(response: httpx2.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["penstock-error"]
    assert response.text.endswith("\n")
    return response.status_code, response.text.rstrip("\n")


@pytest.fixture
def topic(server: ServerProcess) -> Iterator[Topic]:
    with server.client() as client:
        yield Topic(client)


# The life of a message.


def test_a_message_comes_out_as_it_went_in(topic: Topic) -> None:
    item = topic.item(b'{"name":"John Doe"}', priority=1, metadata={"a": [1, 2]}, deliver_after=PAST, idempotency_key="k1")
    (item_id,) = topic.enqueue(item)
    assert isinstance(item_id, int)
    assert 2**53 < item_id < 2**63
    (out,) = topic.dequeue()
    moments = ("deliver_after", "lease_expires_at", "created_at", "updated_at")
    times = {name: from_rfc3339(out.pop(name)) for name in moments}
    assert times["deliver_after"] == times["created_at"]
    assert times["lease_expires_at"] >= times["created_at"] + 30_000  # type: ignore[operator]
    assert out == {
        "id": item_id, "id_text": str(item_id), **topic.where, "priority": 1, "payload": item["payload"],
        "metadata": {"a": [1, 2]},
        "idempotency_key": "k1", "retries": 0, "max_retries": 3, "last_error": None, "first_failed_at": None,
        "lease_owner": None, "status": "ready", "ttl": None,
    }  # fmt: skip
    topic.ok("/ack", item_id)
    assert topic.dequeue() == []


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b" [1,  2.50]\n", b"\x00\xff\xfe", "ü".encode(), b'"text"', b"[" * 200, b"null"]
)
def test_payloads_are_bytes_and_stay_as_they_are(topic: Topic, payload: bytes) -> None:
    topic.enqueue(topic.item(payload))
    (out,) = topic.dequeue()
    assert base64.b64decode(out["payload"]) == payload


def test_the_jobs_door_sees_json_as_json_and_other_bytes_as_text(topic: Topic) -> None:
    topic.enqueue(topic.item(b'{"to":"a@b.c"}', priority=5), topic.item(b"\xff\x00", priority=6))
    jobs = [topic.wait_until_ready() for _ in range(2)]
    assert [job["data"] for job in jobs] == [{"to": "a@b.c"}, base64.b64encode(b"\xff\x00").decode()]
    assert [job["priority"] for job in jobs] == [-5, -6]


def test_a_job_of_the_jobs_door_comes_out_here(topic: Topic) -> None:
    job_id = topic.http.post(
        f"/queues/{topic.name}/jobs", json={"data": {"a": 1}, "priority": 3, "jobId": "mine-" + topic.name}
    )
    assert job_id.status_code == 200
    (out,) = topic.dequeue()
    assert (base64.b64decode(out["payload"]), out["priority"], out["idempotency_key"]) == (b'{"a":1}', -3, None)
    topic.ok("/ack", out["id"])


def test_a_payload_replaced_at_the_jobs_door_comes_out_as_replaced(topic: Topic) -> None:
    (item_id,) = topic.enqueue(topic.item(b"\xff"))
    topic.http.put(f"/jobs/{ids.to_uuid(item_id)}/data", json={"data": {"new": True}})
    (out,) = topic.dequeue()
    assert base64.b64decode(out["payload"]) == b'{"new":true}'


def test_what_may_be_left_out(topic: Topic) -> None:
    items: list[dict[str, Any]] = [
        topic.where,
        {**topic.where, "priority": None, "payload": None, "metadata": None, "deliver_after": None},
    ]
    topic.enqueue(*items, {**topic.where, "idempotency_key": "", "unknown": 1, "deliver_after": "0001-01-01T00:00:00Z"})
    for out in topic.dequeue():
        assert (out["priority"], out["payload"], out["metadata"], out["idempotency_key"]) == (0, "", None, None)


def test_fields_that_do_not_exist_are_ignored_and_named(topic: Topic) -> None:
    item = topic.item() | {"prioritiy": 3}
    answer = topic.http.post("/enqueue", json=[topic.item(), item])
    assert answer.status_code == 200
    assert answer.headers["penstock-warning"] == "Ignored: [1].prioritiy (did you mean priority?)"
    assert "penstock-warning" not in topic.http.post("/enqueue", json=[topic.item()]).headers


def test_nothing_enqueued_is_nothing_answered(topic: Topic) -> None:
    assert topic.enqueue() == []
    assert topic.dequeue() == []


# Order.


def test_ids_come_in_the_order_of_the_items_whatever_their_topics(topic: Topic) -> None:
    others = [Topic(topic.http), Topic(topic.http, "tenant")]
    mixed = [topic, *others, topic, others[1], topic]
    given_ids = topic.enqueue(*(each.item(str(n).encode()) for n, each in enumerate(mixed)))
    found = {item["id"]: base64.b64decode(item["payload"]) for each in (topic, *others) for item in each.dequeue()}
    assert [found[item_id] for item_id in given_ids] == [str(n).encode() for n in range(len(mixed))]


def test_lower_priority_first_then_first_come(topic: Topic) -> None:
    priorities = [5, 1, 10, -3, 1, 0]
    given_ids = topic.enqueue(*(topic.item(priority=priority) for priority in priorities))
    assert topic.taken() == [given_ids[n] for n in (3, 5, 1, 4, 0, 2)]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(batches=st.lists(st.lists(st.integers(-1_000_000, 1_000_000), max_size=8), max_size=6), takes=st.integers(1, 7))
def test_priorities_come_out_in_strict_order(server: ServerProcess, batches: list[list[int]], takes: int) -> None:
    with server.client() as client:
        topic = Topic(client)
        expected: list[tuple[int, int]] = []
        for batch in batches:
            expected += zip(batch, topic.enqueue(*(topic.item(priority=priority) for priority in batch)), strict=True)
        taken: list[tuple[int, int]] = []
        while some := topic.dequeue(takes):
            taken += [(item["priority"], item["id"]) for item in some]
        assert taken == sorted(expected)


def test_a_later_message_of_lower_number_overtakes_what_was_not_taken_yet(topic: Topic) -> None:
    first, second = topic.enqueue(topic.item(priority=5), topic.item(priority=5))
    assert topic.taken(1) == [first]
    (urgent,) = topic.enqueue(topic.item(priority=1))
    assert topic.taken(2) == [urgent, second]


def test_ten_messages_unless_asked_otherwise_and_never_more_than_the_limit(topic: Topic) -> None:
    topic.enqueue(*(topic.item() for _ in range(1_040)))
    assert len(topic.dequeue()) == 10
    assert len(topic.dequeue(3)) == 3
    assert len(topic.dequeue(5_000)) == 1_000
    assert len(topic.dequeue(5_000)) == 27


def test_what_is_to_be_delivered_later_is_delivered_later(topic: Topic) -> None:
    now = topic.http.get("/ping").json()["data"]["time"]
    soon, later, ready = topic.enqueue(
        topic.item(deliver_after=to_rfc3339(now + 2_000), priority=9),
        topic.item(deliver_after=to_rfc3339(now + 10**9), priority=-9),
        topic.item(),
    )
    assert topic.taken(1) == [ready]
    assert topic.wait_until_ready()["id"] == ids.to_uuid(soon)
    assert topic.http.get("/ping").json()["data"]["time"] >= now + 2_000
    job = topic.http.get(f"/jobs/{ids.to_uuid(later)}").json()["job"]
    assert (job["state"], job["runAt"]) == ("delayed", now + 10**9)
    assert topic.dequeue() == []


def test_messages_of_one_request_that_were_due_already_come_in_the_order_in_which_they_were_due(topic: Topic) -> None:
    due = ["2025-01-03T00:00:00Z", None, "2025-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2025-01-02T00:00:00Z"]
    given = topic.enqueue(*(topic.item(str(n).encode(), deliver_after=at) for n, at in enumerate(due)))
    (urgent,) = topic.enqueue(topic.item(priority=-1))
    assert topic.taken() == [urgent, *(given[n] for n in (2, 4, 0, 1, 3))]
    key = topic.name
    again = [
        topic.item(b"1", idempotency_key=key, deliver_after=due[0]),
        topic.item(b"2", idempotency_key=key, deliver_after=due[2]),
    ]
    topic.enqueue(*again)
    assert [base64.b64decode(item["payload"]) for item in topic.dequeue()] == [b"2"], "of one key the last counts"


def test_two_consumers_never_share_a_message(server: ServerProcess, topic: Topic) -> None:
    given_ids = topic.enqueue(*(topic.item() for _ in range(500)))

    def consume(_: int) -> list[int]:
        mine: list[int] = []
        with server.client() as client:
            while some := client.get("/dequeue", params={**topic.where, "limit": 7}).json():
                for item in some:
                    client.post("/ack", json={"id": item["id"], **topic.where})
                    mine.append(item["id"])
        return mine

    with ThreadPoolExecutor(2) as pool:
        taken = [*itertools.chain(*pool.map(consume, range(2)))]
    assert sorted(taken) == given_ids


# Idempotency.


def test_the_same_key_is_the_same_message(topic: Topic) -> None:
    key = f"key-{topic.name}"
    first, again = topic.enqueue(topic.item(b"1", idempotency_key=key), topic.item(b"2", idempotency_key=key))
    (third,) = topic.enqueue(topic.item(b"3", idempotency_key=key, priority=4))
    assert first == again == third
    (out,) = topic.dequeue()
    assert (out["payload"], out["priority"]) == (base64.b64encode(b"3").decode(), 4)
    topic.ok("/ack", first)
    assert topic.enqueue(topic.item(b"4", idempotency_key=key)) == [first]
    assert topic.dequeue() == []


def test_keys_belong_to_a_namespace(topic: Topic) -> None:
    key, tenant, sibling = f"key-{topic.name}", Topic(topic.http, "tenant"), Topic(topic.http)
    items = [each.item(idempotency_key=key) for each in (topic, tenant, sibling)]
    first, other, same = topic.enqueue(*items)
    assert first == same != other


def test_a_key_is_no_id_that_others_could_choose(topic: Topic) -> None:
    key = f"key-{topic.name}"
    topic.http.post(f"/queues/{topic.name}/jobs", json={"data": 1, "jobId": key})
    topic.enqueue(topic.item(b"2", idempotency_key=key))
    assert len(topic.dequeue()) == 2
    reply = topic.http.post(f"/queues/{topic.name}/jobs", json={"data": 1, "jobId": f"idempotency:{key}"})
    assert reply.status_code == 400
    assert "must not begin with" in reply.json()["error"]


# Failures and leases.


def test_the_third_failure_makes_a_dead_letter(topic: Topic) -> None:
    item_id = topic.bury(payload=b"\x00", priority=2, metadata={"n": 1}, idempotency_key=topic.name)
    assert topic.dequeue() == []
    (letter,) = topic.dead()
    assert letter["updated_at"] == letter["moved_at"]
    order = [from_rfc3339(letter.pop(name)) for name in ("created_at", "first_failed_at", "updated_at", "moved_at")]
    assert order == sorted(order)  # type: ignore[type-var]
    assert letter == {
        "id": item_id, "id_text": str(item_id), "original_id": item_id, **topic.where, "priority": 2,
        "payload": "AA==", "metadata": {"n": 1}, "idempotency_key": topic.name, "retries": 3, "max_retries": 3,
        "last_error": "failure 2", "lease_owner": None, "status": "dead", "ttl": None,
    }  # fmt: skip
    status, text = refused(topic.tell("/ack", item_id))
    assert (status, text) == (400, f"Message {item_id} is in the dead letter queue. Delete it there.")
    for _ in range(2):
        topic.ok("/dlq/delete", item_id)
        assert topic.dead() == []


def test_a_failed_message_says_so_when_it_comes_again(topic: Topic) -> None:
    (item_id,) = topic.enqueue(topic.item())
    topic.taken()
    topic.ok("/nack", item_id, error="Processing failed")
    topic.http.post(f"/queues/{topic.name}/promote-jobs")
    (out,) = topic.dequeue()
    assert (out["id"], out["retries"], out["last_error"]) == (item_id, 1, "Processing failed")


def test_dead_letters_are_listed_oldest_death_first(topic: Topic) -> None:
    buried = [topic.bury(priority=priority) for priority in (5, 1, 3)]
    assert [letter["id"] for letter in topic.dead()] == buried
    assert [letter["id"] for letter in topic.dead(limit=2)] == buried[:2]


def test_deleting_what_is_alive_or_unknown_deletes_nothing(topic: Topic) -> None:
    (item_id,) = topic.enqueue(topic.item())
    topic.ok("/dlq/delete", item_id)
    topic.ok("/dlq/delete", 1)
    assert topic.taken() == [item_id]


def test_an_unfinished_message_comes_again_and_a_late_ack_still_counts(topic: Topic) -> None:
    (item_id,) = topic.enqueue(topic.item())
    assert topic.dequeue(lease_ms=20)[0]["id"] == item_id
    assert topic.wait_until_ready()["id"] == ids.to_uuid(item_id)  # somebody else has it now
    topic.ok("/ack", item_id)
    assert refused(topic.tell("/ack", item_id)) == (404, unknown(item_id))
    assert topic.http.get(f"/jobs/{ids.to_uuid(item_id)}").status_code == 404


def test_what_was_acknowledged_is_gone_unless_a_key_names_it(topic: Topic) -> None:
    plain, keyed = topic.enqueue(topic.item(), topic.item(idempotency_key=topic.name))
    assert topic.taken() == [plain, keyed]
    for item_id in (plain, keyed):
        topic.ok("/ack", item_id)
    states = [topic.http.get(f"/jobs/{ids.to_uuid(item_id)}/state").json()["state"] for item_id in (plain, keyed)]
    assert states == ["unknown", "completed"]
    assert refused(topic.tell("/nack", plain))[0] == 404
    assert refused(topic.tell("/nack", keyed))[0] == 400
    assert topic.enqueue(topic.item(idempotency_key=topic.name)) == [keyed]
    assert topic.dequeue() == []


def test_a_consumer_has_a_name(topic: Topic) -> None:
    topic.enqueue(topic.item())
    (out,) = topic.dequeue(consumer="worker-7")
    assert out["lease_owner"] == "worker-7"


def test_how_often_a_message_may_fail_can_be_said(topic: Topic) -> None:
    once, twice = topic.enqueue(topic.item(max_retries=1), topic.item(max_retries=2))
    assert topic.taken() == [once, twice]
    for item_id in (once, twice):
        topic.ok("/nack", item_id, error="no")
    assert [letter["id"] for letter in topic.dead()] == [once]
    topic.http.post(f"/queues/{topic.name}/promote-jobs")
    (out,) = topic.dequeue()
    assert (out["id"], out["retries"], out["max_retries"]) == (twice, 1, 2)
    assert out["first_failed_at"] is not None


def test_a_lease_that_ran_out_is_told_in_the_words_of_this_door(topic: Topic) -> None:
    topic.enqueue(topic.item(max_retries=1))
    topic.dequeue(lease_ms=1)
    while not (letters := topic.dead()):
        time.sleep(0.01)
    assert letters[0]["last_error"] == "lease expired"


# Heartbeats.


def test_a_heartbeat_renews_a_lease_or_gives_it_another_length(topic: Topic) -> None:
    first, second = topic.enqueue(topic.item(), topic.item())
    assert topic.taken() == [first, second]
    topic.ok("/heartbeat", first)
    topic.ok("/heartbeat", str(second), lease_ms=1)
    assert topic.wait_until_ready()["id"] == ids.to_uuid(second), "its lease was cut short"
    assert several(topic, "/heartbeat", {"id": first, **topic.where}, {"id": 1, **topic.where}) == [
        {"id": 1, "error": unknown(1), "code": "job_not_found"}
    ]
    topic.ok("/ack", first)
    assert refused(topic.tell("/heartbeat", first)) == (404, unknown(first))
    (waiting,) = topic.enqueue(topic.item())
    assert refused(topic.tell("/heartbeat", waiting))[0] == 400
    assert refused(topic.tell("/heartbeat", waiting, lease_ms=0))[0] == 400


@pytest.mark.slow
def test_a_consumer_that_works_through_what_it_took_keeps_its_leases(topic: Topic) -> None:
    """Each ack proves that the consumer lives, so the leases of what it took along are renewed."""
    lease_ms, work_ms = 6_000, 2_500

    def now() -> int:
        server_ms: int = topic.http.get("/ping").json()["data"]["time"]
        return server_ms

    given = topic.enqueue(*(topic.item() for _ in range(4)))
    taken = topic.dequeue(lease_ms=lease_ms)
    start = now()
    for number, item in enumerate(taken, 1):
        while now() < start + number * work_ms:
            assert topic.dequeue() == [], "nobody else gets them"
            time.sleep(0.01)
        topic.ok("/ack", item["id"])
    assert now() - start > lease_ms
    assert [item["id"] for item in taken] == given


# Many in one request.


def unknown(item_id: int) -> str:
    return f"There is no message {item_id} in this topic: it was acknowledged or deleted before, or the id is not right."


def several(topic: Topic, path: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    response = topic.http.post(path, json=list(items))
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json"), response.text
    refusals: list[dict[str, Any]] = response.json()
    return refusals


def test_messages_of_several_topics_are_acknowledged_together(topic: Topic) -> None:
    others = [Topic(topic.http) for _ in range(4)]  # with several shards, not all live on one
    taken: list[dict[str, Any]] = []
    for each in (topic, *others):
        each.enqueue(each.item(), each.item())
        taken += [{"id": item_id, **each.where} for item_id in each.taken()]
    assert several(topic, "/ack", *taken) == []
    again = several(topic, "/ack", *taken)
    assert again == [{"id": each["id"], "error": unknown(each["id"]), "code": "job_not_found"} for each in taken]
    assert several(topic, "/ack") == []
    assert all(each.dequeue() == [] for each in (topic, *others))


@pytest.mark.parametrize("path", ["/ack", "/nack"])
def test_of_several_messages_those_that_are_refused_are_named(topic: Topic, path: str) -> None:
    first, second = topic.enqueue(topic.item(), topic.item())
    assert topic.taken(1) == [first]
    refusals = several(topic, path, {"id": second, **topic.where}, {"id": first, **topic.where})
    text = f"Message {second} is waiting: no consumer has it. Dequeue it first."
    assert refusals == [{"id": second, "error": text, "code": "wrong_state"}]
    assert topic.taken() == [second], "and the first was taken care of"


def test_several_failures_have_errors_of_their_own(topic: Topic) -> None:
    items = topic.enqueue(topic.item(), topic.item())
    topic.taken()
    failures = [{"id": item_id, **topic.where, "error": f"failure of {item_id}"} for item_id in items]
    assert several(topic, "/nack", *failures, {"id": 1, **topic.where}) == [
        {"id": 1, "error": unknown(1), "code": "job_not_found"}
    ]
    topic.http.post(f"/queues/{topic.name}/promote-jobs")
    assert {item["id"]: item["last_error"] for item in topic.dequeue()} == {each: f"failure of {each}" for each in items}


@pytest.mark.parametrize("path", ["/ack", "/nack"])
def test_words_about_what_is_not_there_or_was_not_taken_are_refused(topic: Topic, path: str) -> None:
    assert refused(topic.tell(path, 123456789012345678)) == (404, unknown(123456789012345678))
    (item_id,) = topic.enqueue(topic.item())
    waiting = f"Message {item_id} is waiting: no consumer has it. Dequeue it first."
    assert refused(topic.tell(path, item_id)) == (400, waiting)
    elsewhere = Topic(topic.http)
    assert topic.taken() == [item_id]
    assert refused(elsewhere.tell(path, item_id)) == (404, unknown(item_id))
    topic.ok(path, item_id)


# Ids that JavaScript can keep.


def test_ids_are_offered_and_taken_as_text(topic: Topic) -> None:
    given = topic.http.post("/enqueue", params={"ids": "text"}, json=[topic.item(priority=n) for n in range(3)]).json()
    items = topic.dequeue()
    assert given == [item["id_text"] for item in items] == [str(item["id"]) for item in items]
    first, second, third = items
    topic.ok("/ack", first["id_text"])
    topic.ok("/nack", second["id_text"])
    refusals = several(topic, "/ack", {"id": first["id_text"], **topic.where}, {"id": third["id_text"], **topic.where})
    assert refusals == [{"id": first["id_text"], "error": unknown(first["id"]), "code": "job_not_found"}]
    other = Topic(topic.http)
    letter = other.bury()
    (dead,) = other.dead()
    assert dead["id_text"] == str(letter)
    other.ok("/dlq/delete", dead["id_text"])
    assert other.dead() == []
    assert refused(topic.http.post("/enqueue", params={"ids": "hex"}, json=[]))[0] == 400


def rounded(item_id: int) -> int:
    """Return the number that JavaScript sends for an id."""
    return int(Decimal(repr(float(item_id))))


@pytest.mark.parametrize("path", ["/ack", "/nack", "/dlq/delete"])
def test_an_id_that_was_rounded_is_refused_with_the_remedy(topic: Topic, path: str) -> None:
    item_id = rounded(ids.ID_MAX // 7)  # in no store
    for sent in (item_id, [{"id": item_id, **topic.where}]):
        if path == "/dlq/delete" and isinstance(sent, list):
            continue
        body = sent if isinstance(sent, list) else {"id": item_id, **topic.where}
        reply = topic.http.post(path, json=body)
        text = reply.json()[0]["error"] if isinstance(sent, list) else refused(reply)[1]
        assert text.endswith("has rounded this number: send id_text, which is the same id as text.")


# Topics.


def test_topics_of_a_namespace(server: ServerProcess) -> None:
    with server.client() as client:
        one, two = (Topic(client, f"ns-{os.getpid()}-{next(_numbers)}") for _ in range(2))
        two.namespace = one.namespace
        one.enqueue(two.item(), one.item())
        listed = client.get("/topics", params={"namespace": one.namespace})
        assert listed.json() == sorted([one.name, two.name])
        assert client.get("/topics", params={"namespace": "never-heard-of"}).json() == []
        assert refused(client.get("/topics")) == (400, "Missing namespace")


# Bad input.

ITEM: dict[str, Any] = {"namespace": "default", "topic": "bad"}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"topic": "x"}, "namespace` - at `$[1]`"),
        ({"namespace": "x"}, "topic` - at `$[1]`"),
        ({**ITEM, "namespace": ""}, "at `$[1].namespace`"),
        ({**ITEM, "namespace": "a b"}, "at `$[1].namespace`"),
        ({**ITEM, "namespace": "x" * 129}, "at `$[1].namespace`"),
        ({**ITEM, "topic": "x" * 257}, "at `$[1].topic`"),
        ({**ITEM, "topic": "../etc"}, "at `$[1].topic`"),
        ({**ITEM, "topic": "a\n"}, "at `$[1].topic`"),
        ({**ITEM, "topic": 7}, "at `$[1].topic`"),
        ({**ITEM, "priority": 1_000_001}, "`int` <= 1000000 - at `$[1].priority`"),
        ({**ITEM, "priority": -1_000_001}, "`int` >= -1000000 - at `$[1].priority`"),
        ({**ITEM, "priority": "1"}, "at `$[1].priority`"),
        ({**ITEM, "priority": 1.5}, "at `$[1].priority`"),
        ({**ITEM, "priority": 2**70}, "at `$[1].priority`"),
        ({**ITEM, "payload": {"a": 1}}, "at `$[1].payload`"),
        ({**ITEM, "payload": "not base64!"}, "Invalid base64 encoded string - at `$[1].payload`"),
        ({**ITEM, "payload": "abc"}, "Invalid base64 encoded string - at `$[1].payload`"),
        ({**ITEM, "metadata": [1]}, "Expected `object | null`, got `array` - at `$[1].metadata`"),
        ({**ITEM, "metadata": json.loads("{" + '"a":{' * 70 + "}" * 71)}, "nested too deeply"),
        ({**ITEM, "deliver_after": "tomorrow"}, "expected RFC 3339 like 2025-12-25T10:00:00Z - at `$[1].deliver_after`"),
        ({**ITEM, "deliver_after": "2025-12-25T10:00:00"}, "at `$[1].deliver_after`"),
        ({**ITEM, "deliver_after": "0000-01-01T00:00:00Z"}, "at `$[1].deliver_after`"),
        ({**ITEM, "deliver_after": "10000-01-01T00:00:00Z"}, "at `$[1].deliver_after`"),
        ({**ITEM, "deliver_after": ""}, "at `$[1].deliver_after`"),
        ({**ITEM, "priority": True}, "at `$[1].priority`"),
        ({**ITEM, "deliver_after": 1766656800}, "at `$[1].deliver_after`"),
        ({**ITEM, "deliver_after": FAR}, "more than 365 days ahead - at `$[1].deliver_after`"),
        ({**ITEM, "idempotency_key": "x" * 513}, "at `$[1].idempotency_key`"),
        ({**ITEM, "idempotency_key": "a\x00b"}, "at `$[1].idempotency_key`"),
        ("text", "Expected `object`, got `str` - at `$[1]`"),
    ],
)  # fmt: skip
def test_one_bad_item_refuses_the_whole_batch_and_says_where(topic: Topic, item: Any, words: str) -> None:
    status, text = refused(topic.http.post("/enqueue", json=[topic.item(), item]))
    assert status == 400
    assert words in text
    assert topic.dequeue() == []


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"null", b"[", b"[{]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'[{"namespace":"\xff","topic":"t"}]',
        b"\xef\xbb\xbf[]", "[]".encode("utf-16"), b"[] []", b"[],", b'[{"namespace":"a","topic":"b","priority":NaN}]',
        b'[{"namespace":"a","topic":"b","priority":1e999}]', b'[{"namespace":"a","topic":"\\ud800"}]',
        b'[{"namespace":"a","topic":"b","priority":' + b"9" * 4_301 + b"}]",
    ],
)  # fmt: skip
def test_bodies_that_are_no_list_of_items_are_refused(topic: Topic, content: bytes) -> None:
    status, text = refused(topic.http.post("/enqueue", content=content))
    assert status == 400
    assert text.startswith("Invalid request body: ")


def test_what_only_the_server_decides_cannot_be_given(topic: Topic) -> None:
    (item_id,) = topic.enqueue(
        topic.item(id=5, status="dead", retries=9, created_at=PAST, lease_owner="me", state=4, token=1)
    )
    (out,) = topic.dequeue()
    assert (out["id"], out["retries"]) == (item_id, 0)
    assert item_id != 5


def test_of_a_field_that_is_given_twice_the_last_counts(topic: Topic) -> None:
    where = f'"namespace":"default","topic":"{topic.name}"'
    response = topic.http.post("/enqueue", content=f'[{{{where},"priority":1,"priority":2}}]'.encode())
    assert response.status_code == 200
    assert topic.dequeue()[0]["priority"] == 2


def test_one_key_from_many_producers_at_once_is_one_message(server: ServerProcess, topic: Topic) -> None:
    def produce(n: int) -> list[int]:
        with server.client() as client:
            item = topic.item(str(n).encode(), idempotency_key=topic.name)
            given_ids: list[int] = client.post("/enqueue", json=[item] * 5).json()
            return given_ids

    with ThreadPoolExecutor(8) as pool:
        given_ids = [*itertools.chain(*pool.map(produce, range(40)))]
    assert len(set(given_ids)) == 1
    assert topic.taken(100) == given_ids[:1]


def test_text_of_any_kind_survives(topic: Topic) -> None:
    text = "\u0000 \n <b> \u202e \U0001f600 ' \" ; drop table jobs"
    (item_id,) = topic.enqueue(topic.item(metadata={text: text}, idempotency_key=text[1:] + topic.name))
    (out,) = topic.dequeue()
    assert (out["metadata"], out["idempotency_key"]) == ({text: text}, text[1:] + topic.name)
    topic.ok("/nack", item_id, error=text)
    topic.http.post(f"/queues/{topic.name}/promote-jobs")
    assert topic.dequeue()[0]["last_error"] == text


def test_too_many_items_are_refused(topic: Topic) -> None:
    status, text = refused(topic.http.post("/enqueue", json=[topic.where] * 10_001))
    assert (status, text) == (400, "Too many items (max 10000). Send them in several requests.")
    status, _ = refused(topic.http.post("/enqueue", content=b" " * (11 * 1024 * 1024)))
    assert status == 413


@pytest.mark.parametrize("path", ["/ack", "/nack", "/heartbeat", "/dlq/delete"])
@pytest.mark.parametrize(
    "body",
    [
        {}, {"id": 1}, {"id": 1, "namespace": "default"},
        {"id": "x1", **ITEM}, {"id": "01", **ITEM}, {"id": "", **ITEM}, {"id": str(2**63), **ITEM}, {"id": "-1", **ITEM},
        {"id": 1.5, **ITEM}, {"id": 0, **ITEM},
        {"id": -1, **ITEM}, {"id": 2**63, **ITEM}, {"id": None, **ITEM}, {"id": 123456789012345678.0, **ITEM}, None, 1,
    ],
)  # fmt: skip
def test_bodies_that_name_no_message_are_refused(topic: Topic, path: str, body: Any) -> None:
    bodies = [body] if path == "/dlq/delete" else [body, [body], [{"id": 1, **ITEM}, body]]
    for each in bodies:
        status, text = refused(topic.http.post(path, json=each))
        assert status == 400
        assert text.startswith("Invalid request body: ")


def test_several_at_once_are_bounded_and_dead_letters_are_deleted_one_by_one(topic: Topic) -> None:
    for path in ("/ack", "/nack"):
        assert refused(topic.http.post(path, json=[{"id": 1, **ITEM}] * 10_001))[0] == 400
    assert refused(topic.http.post("/dlq/delete", json=[{"id": 1, **ITEM}]))[0] == 400


def test_an_error_that_is_no_text_is_refused(topic: Topic) -> None:
    assert refused(topic.tell("/nack", 1, error={"a": 1}))[0] == 400
    assert refused(topic.tell("/nack", 1, error="x" * 65_537))[0] == 400


@pytest.mark.parametrize("path", ["/dequeue", "/dlq"])
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"namespace": "", "topic": "t"}, "Missing namespace or topic"),
        ({"namespace": "default"}, "Missing namespace or topic"),
        ({"namespace": "a b", "topic": "t"}, "namespace contains invalid characters"),
        ({"namespace": "default", "topic": "t", "limit": "many"}, "limit must be a number"),
        ({"namespace": "default", "topic": "t", "limit": 0}, "limit must be at least 1"),
        ({"namespace": "default", "topic": "t", "limit": -3}, "limit must be at least 1"),
        ({"namespace": "default", "topic": "t", "limit": "1.5"}, "limit must be an integer"),
        ({"namespace": "default", "topic": "t", "limit": "NaN"}, "limit must be a finite number"),
    ],
)
def test_queries_that_make_no_sense_are_refused(topic: Topic, path: str, query: dict[str, Any], words: str) -> None:
    assert refused(topic.http.get(path, params=query)) == (400, words)


def test_a_lease_has_limits(topic: Topic) -> None:
    for lease_ms in (0, 86_400_001):
        assert refused(topic.http.get("/dequeue", params={**topic.where, "lease_ms": lease_ms}))[0] == 400


# The listener of its own, and metrics.


@pytest.fixture(scope="module")
def faithful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str, str]]:
    own, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    data = tmp_path_factory.mktemp("faithful") / "data"
    with ServerProcess(data, "--batches", own, "--metrics", metrics, env={"AUTH_TOKENS": "secret"}) as server:
        yield server, f"http://{own}", f"http://{metrics}"


@pytest.mark.parametrize("name", ["Authorization", "Authorisation"])
@pytest.mark.parametrize("value", ["Bearer secret", "secret"])
def test_a_token_opens_the_door_in_either_spelling(faithful: tuple[ServerProcess, str, str], name: str, value: str) -> None:
    server, url, _ = faithful
    with server.client(headers={name: value}) as client:
        for base in (url, server.url):
            assert client.get(f"{base}/topics?namespace=default").status_code == 200


def test_nothing_but_health_is_open_without_a_token(faithful: tuple[ServerProcess, str, str]) -> None:
    server, url, _ = faithful
    with server.client() as client:
        health = client.get(f"{url}/health")
        assert (health.status_code, health.text) == (200, "OK")
        assert client.get("/health").json()["status"] == "healthy"
        for method, path in (("POST", "/enqueue"), ("GET", "/dequeue"), ("POST", "/ack"), ("POST", "/nack"), ("GET", "/dlq"),
                             ("POST", "/dlq/delete"), ("GET", "/topics")):  # fmt: skip
            for base in (url, server.url):
                response = client.request(method, f"{base}{path}", headers={"Authorisation": "Bearer wrong"})
                assert refused(response) == (401, "Invalid token")
                assert refused(client.request(method, f"{base}{path}")) == (401, "Missing token")


def test_the_own_listener_has_this_door_and_no_other(faithful: tuple[ServerProcess, str, str]) -> None:
    server, url, _ = faithful
    with server.client(headers={"Authorization": "Bearer secret"}) as client:
        assert refused(client.get(f"{url}/queues")) == (404, "Not found")
        assert refused(client.get(f"{url}/ack")) == (404, "Not found")


def test_the_metrics_of_mqueue_are_there(faithful: tuple[ServerProcess, str, str]) -> None:
    server, url, metrics = faithful
    with server.client(headers={"Authorization": "Bearer secret"}) as client:
        assert "mqueue_shard_health" in client.get(f"{metrics}/metrics").text
        client.base_url = url
        topic = Topic(client)
        first, second, _ = topic.enqueue(topic.item(), topic.item(), topic.item())
        assert topic.taken(2) == [first, second]
        topic.ok("/ack", first)
        Topic(client).tell("/ack", 1)  # a name that nobody enqueued to is not counted
        before = client.get(f"{metrics}/metrics").text.splitlines()
        topic.ok("/nack", second)
        lines = client.get(f"{metrics}/metrics").text.splitlines()
    labels = f'{{namespace="default",topic="{topic.name}"}}'
    for name, value in (("enqueue_total", 3), ("dequeue_total", 2), ("ack_total", 1), ("nack_total", 1),
                        ("buffer_queue_depth", 0)):  # fmt: skip
        assert f"mqueue_{name}{labels} {value}.0" in lines
    assert f"mqueue_ready_queue_depth{labels} 1.0" in before
    kind, shards = ("postgres", 2) if stores.chosen() in ("shards", "redis") else (stores.chosen(), 1)
    for number in range(shards):
        assert f'mqueue_shard_health{{shard="{number}",type="{kind}"}} 1.0' in lines
    assert sum(line.startswith("mqueue_ack_total{") for line in lines) == 1


#: As the quick start of mqueue has it.
QUICK_START_SECRET = "fYXSb6rYIpxCKOvIv5hKWKph+2B//Wie9kV7sj6Ot44="


@pytest.mark.parametrize("asks", [False, True])
def test_the_quick_start_of_mqueue(tmp_path: Path, asks: bool) -> None:
    cert, key = certificate(tmp_path)
    own, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    env = {"JWT_SECRET": QUICK_START_SECRET, "TLS_CERT_FILE": str(cert), "TLS_KEY_FILE": str(key)}
    if not asks:
        env["METRICS_AUTH"] = "false"
    env["JWT_DEFAULT_SCOPES"] = "*:read, *:write"  # by itself where mqueue's variables are set: tests/test_config.py
    shown = {"Authorisation": f"Bearer {token(QUICK_START_SECRET, exp=1930000000, scopes=None)}"}
    with (
        ServerProcess(tmp_path / "data", "--batches", own, "--metrics", metrics, env=env),
        httpx2.Client(verify=False, trust_env=False, timeout=30) as client,
    ):
        assert client.get(f"https://{own}/health").text == "OK"
        item = {"namespace": "default", "topic": "leads", "priority": 1, "payload": "eyJuYW1lIjoiSm9obiBEb2UifQ=="}
        (number,) = client.post(f"https://{own}/enqueue", json=[item], headers=shown).json()
        (taken,) = client.get(f"https://{own}/dequeue?namespace=default&topic=leads&limit=10", headers=shown).json()
        assert taken["id"] == number
        told = client.get(f"https://{metrics}/metrics")
        assert told.status_code == (401 if asks else 200)
        told = client.get(f"https://{metrics}/metrics", headers=shown)
        health = [line for line in told.text.splitlines() if line.startswith("mqueue_shard_health")]
        assert health
        assert all(line.endswith(" 1.0") for line in health)
