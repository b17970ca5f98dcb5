"""The messages door, over real sockets: every route and rule of the original, and none of its mistakes."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.ids import from_ulid
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

_numbers = itertools.count()
SOON_MS = 300


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Queue:
    """One queue of a namespace of its own, in short words. Methods insist on success; ``refused`` on failure."""

    def __init__(self, client: httpx2.Client, namespace: str | None = None, name: str = "jobs") -> None:
        self.http = client
        self.namespace = namespace or f"msg{os.getpid()}-{next(_numbers)}"
        self.name = name
        self.path = f"/namespaces/{self.namespace}/queues/{name}"

    def ok(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        response = self.http.request(method, path, **more)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def refused(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        response = self.http.request(method, path, **more)
        return response.status_code, response.json()["error"]

    def make(self, **rules: int) -> None:
        assert self.ok("POST", self.path, 201, json=rules) == {"status": "created"}

    def publish(self, body: bytes = b"x", **more: Any) -> str:
        message = {"body": base64.b64encode(body).decode(), **more}
        message_id: str = self.ok("POST", f"{self.path}/messages", 201, json=message)["id"]
        return message_id

    def consume(self, n: int | None = None, **query: Any) -> list[dict[str, Any]]:
        more = {} if n is None else {"n": n}
        messages: list[dict[str, Any]] = self.ok("GET", f"{self.path}/messages", params=more | query)["messages"]
        return messages

    def bodies(self, n: int = 100, **query: Any) -> list[bytes]:
        return [base64.b64decode(each["body"]) for each in self.consume(n, **query)]

    def take(self, **query: Any) -> str:
        """Consume a message that must be there, and return its receipt handle."""
        (message,) = self.consume(1, **query)
        handle: str = message["receipt_handle"]
        return handle

    def ack(self, handle: str) -> None:
        self.ok("DELETE", f"/messages/{handle}", 204)

    def nack(self, handle: str) -> None:
        self.ok("POST", f"/messages/{handle}/nack", 204)

    def dead(self, **query: Any) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.ok("GET", f"{self.path}/dlq", params=query)["messages"]
        return messages

    def counted(self, name: str) -> int:
        """Return how many messages of this queue a metric says were published, consumed and so on."""
        start = f'epochq_messages_{name}_total{{namespace="{self.namespace}",queue="{self.name}"}} '
        lines = self.http.get("/prometheus").text.splitlines()
        return sum(int(float(line.removeprefix(start))) for line in lines if line.startswith(start))

    def stats(self) -> dict[str, int]:
        for page in itertools.count(1):
            reply = self.ok("GET", "/api/stats", params={"page": page, "limit": 200})
            for each in reply["queues"]:
                if each["key"] == f"{self.namespace}/{self.name}":
                    return {name: each[name] for name in ("ready", "in_flight", "scheduled", "dlq_depth")}
            assert page < reply["total_pages"]
        raise AssertionError


@pytest.fixture
def queue(server: ServerProcess) -> Iterator[Queue]:
    with server.client() as client:
        yield Queue(client)


# Namespaces and queues.


def test_namespaces_are_made_listed_and_forgotten(queue: Queue) -> None:
    name = queue.namespace
    before = now_ms()
    assert queue.ok("POST", "/namespaces", 201, json={"name": name}) == {"status": "created", "name": name}
    assert queue.refused("POST", "/namespaces", json={"name": name}) == (409, f"namespace: already exists: {name}")
    listed = queue.ok("GET", "/namespaces")["namespaces"]
    assert [each["name"] for each in listed] == sorted(each["name"] for each in listed)
    (mine,) = [each for each in listed if each["name"] == name]
    assert before - 1_000 <= mine["created_at"] <= now_ms() + 1_000
    queue.ok("DELETE", f"/namespaces/{name}", 204)
    assert queue.refused("DELETE", f"/namespaces/{name}") == (404, f"namespace: not found: {name}")
    assert name not in [each["name"] for each in queue.ok("GET", "/namespaces")["namespaces"]]


def test_a_namespace_that_is_forgotten_is_unknown_until_its_next_message(queue: Queue) -> None:
    def known() -> bool:
        return queue.namespace in [each["name"] for each in queue.ok("GET", "/namespaces")["namespaces"]]

    queue.publish(b"first")
    queue.ok("DELETE", f"/namespaces/{queue.namespace}", 204)
    assert not known()
    assert queue.refused("DELETE", f"/namespaces/{queue.namespace}")[0] == 404
    queue.publish(b"second")
    assert known()
    assert queue.bodies() == [b"first", b"second"]


@pytest.mark.anyio
async def test_of_many_who_make_the_same_one_does(queue: Queue, server: ServerProcess) -> None:
    async with server.async_client() as client:
        for number in range(5):
            where, name = f"{queue.path}-{number}", f"{queue.namespace}-{number}"
            made = [client.post(where, json={"max_retries": retries}) for retries in range(1, 9)]
            named = [client.post("/namespaces", json={"name": name}) for _ in range(8)]
            for wishes in (made, named):
                statuses = sorted(reply.status_code for reply in await asyncio.gather(*wishes))
                assert statuses == [201] + 7 * [409]


@pytest.mark.parametrize("rule", ["visibility_timeout_ms", "max_messages", "max_retries", "max_batch_size"])
@pytest.mark.parametrize("value", [2**63 - 1, 2**70])
def test_rules_of_a_queue_have_bounds(queue: Queue, rule: str, value: int) -> None:
    status, error = queue.refused("POST", queue.path, json={rule: value})
    assert (status, rule in error) == (400, True)
    queue.make()


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 65, "ü", "a b"])
def test_names_of_namespaces_and_queues_are_plain(queue: Queue, name: str) -> None:
    assert queue.refused("POST", "/namespaces", json={"name": name})[0] == 400
    assert queue.refused("POST", f"/namespaces/ok/queues/{name}", json={})[0] == 400
    assert queue.refused("POST", "/namespaces", json={}) == (400, "name is required")


def test_a_message_makes_its_namespace_and_queue(queue: Queue) -> None:
    queue.publish()
    assert queue.namespace in [each["name"] for each in queue.ok("GET", "/namespaces")["namespaces"]]
    assert queue.ok("GET", f"/namespaces/{queue.namespace}/queues")["queues"] == [f"{queue.namespace}/jobs"]
    assert queue.refused("POST", "/namespaces/Upper/queues/q/messages", json={"body": "x"})[0] == 400


def test_queues_of_one_namespace_are_listed_and_no_others(queue: Queue) -> None:
    other = Queue(queue.http)
    other.publish()
    queue.make()
    Queue(queue.http, queue.namespace, "another").make()
    names = [f"{queue.namespace}/another", f"{queue.namespace}/jobs"]
    assert queue.ok("GET", f"/namespaces/{queue.namespace}/queues")["queues"] == names


def test_a_queue_is_made_once_and_removed_with_everything(queue: Queue) -> None:
    queue.make()
    assert queue.refused("POST", queue.path, json={}) == (409, f"queue already exists: {queue.namespace}/jobs")
    queue.publish()
    queue.publish(deliver_at=now_ms() + 100_000)
    queue.ok("DELETE", queue.path, 204)
    assert queue.refused("DELETE", queue.path)[0] == 404
    queue.make()
    assert queue.consume() == [], "nothing of the old one comes back"


def test_a_body_is_needed_and_read_strictly(queue: Queue) -> None:
    assert queue.refused("POST", queue.path) == (400, "invalid json: EOF")
    assert queue.refused("POST", queue.path, json={"max_retry": 1}) == (400, 'invalid json: json: unknown field "max_retry"')
    for path in ("/messages", "/messages/batch"):
        status, text = queue.refused("POST", f"{queue.path}{path}", content=b"nonsense")
        assert status == 400
        assert text.startswith("invalid json: ")
    assert (
        queue.refused("POST", f"{queue.path}/messages", json={"bodi": "x"})[1] == 'invalid json: json: unknown field "bodi"'
    )


# Publishing.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (base64.b64encode(b'{"amount":42}').decode(), b'{"amount":42}'),
        ("not base64!", b"not base64!"),
        ("test", base64.b64decode("test")),
        ("", b""),
        ("ünï", "ünï".encode()),
        (base64.b64encode(bytes(range(256))).decode(), bytes(range(256))),
    ],
)
def test_a_body_is_base64_or_the_text_it_is(queue: Queue, given: str, expected: bytes) -> None:
    queue.ok("POST", f"{queue.path}/messages", 201, json={"body": given})
    assert queue.bodies() == [expected]


def test_a_message_without_a_body_is_empty(queue: Queue) -> None:
    queue.ok("POST", f"{queue.path}/messages", 201, json={})
    assert queue.bodies() == [b""]


def test_what_a_consumer_gets(queue: Queue) -> None:
    before = now_ms()
    message_id = queue.publish(b"hello", metadata={"kind": "greeting"})
    (message,) = queue.consume()
    assert from_ulid(message_id) is not None
    handle = message.pop("receipt_handle")
    published_at = message.pop("published_at")
    assert before - 1_000 <= published_at <= now_ms() + 1_000
    assert len(handle) == len(message_id) == 26
    assert message == {
        "id": message_id, "body": "aGVsbG8=", "namespace": queue.namespace, "queue": "jobs", "attempt": 1,
        "metadata": {"kind": "greeting"},
    }  # fmt: skip


def test_a_batch_is_all_or_nothing_and_in_order(queue: Queue) -> None:
    batch = [{"body": base64.b64encode(b"%d" % number).decode()} for number in range(3)]
    ids = queue.ok("POST", f"{queue.path}/messages/batch", 201, json=batch)["ids"]
    assert ids == sorted(ids)
    bad = [*batch, {"body": "x", "deliver_at": now_ms() + 91 * limits.DAY_MS}]
    assert queue.refused("POST", f"{queue.path}/messages/batch", json=bad)[0] == 400
    assert queue.bodies() == [b"0", b"1", b"2"]
    many = queue.refused("POST", f"{queue.path}/messages/batch", json=[{}] * 101)
    assert many == (413, "batch exceeds maximum of 100 messages")
    assert queue.ok("POST", f"{queue.path}/messages/batch", 201, json=[]) == {"ids": []}


def test_limits_of_a_message(queue: Queue) -> None:
    queue.publish(b"x" * 256 * 1024)
    body = base64.b64encode(b"x" * (256 * 1024 + 1)).decode()
    assert "too large" in queue.refused("POST", f"{queue.path}/messages", json={"body": body})[1]
    late = {"body": "x", "deliver_at": now_ms() + 90 * limits.DAY_MS + 60_000}
    assert queue.refused("POST", f"{queue.path}/messages", json=late) == (400, "deliver_at is more than 90 days ahead")


def test_a_queue_that_is_full_says_so_and_scheduled_messages_do_not_count(queue: Queue) -> None:
    queue.make(max_messages=2)
    queue.publish()
    queue.publish(deliver_at=now_ms() + 100_000)
    queue.publish()
    status, text = queue.refused("POST", f"{queue.path}/messages", json={"body": "x"})
    assert (status, text) == (429, f"queue {queue.namespace}/jobs: at capacity (2 messages)")
    handle = queue.take()
    assert queue.refused("POST", f"{queue.path}/messages", json={"body": "x"})[0] == 429, "in flight counts"
    queue.ack(handle)
    queue.publish()


def test_the_same_key_is_the_same_message(queue: Queue) -> None:
    first, again, other = (
        queue.ok("POST", f"{queue.path}/messages", 201, json={"body": "x"}, headers={"Idempotency-Key": key})["id"]
        for key in ("a", "a", "b")
    )
    assert first == again != other
    handles = [each["receipt_handle"] for each in queue.consume(10)]
    assert len(handles) == 2
    for handle in handles:
        queue.ack(handle)
    sent = queue.ok("POST", f"{queue.path}/messages", 201, json={"body": "x"}, headers={"Idempotency-Key": "a"})["id"]
    assert sent == first
    assert queue.consume() == [], "also when it is done"
    done = queue.ok("GET", f"/queues/{queue.name}/jobs/list", headers={"X-Namespace": queue.namespace})["jobs"]
    assert [job["data"] for job in done] == len(done) * [None], "what it carried is not kept"
    assert done


def test_a_key_belongs_to_its_queue(queue: Queue) -> None:
    other = Queue(queue.http, queue.namespace, "other")
    headers = {"Idempotency-Key": "order 7"}
    for each in (queue, other):
        each.ok("POST", f"{each.path}/messages", 201, json={"body": "eA=="}, headers=headers)
    assert [queue.bodies(), other.bodies()] == [[b"x"], [b"x"]]


def test_a_publish_that_is_repeated_needs_no_room(queue: Queue) -> None:
    queue.make(max_messages=2)
    batch: list[dict[str, str]] = [{}, {}]
    headers = {"Idempotency-Key": "a"}
    first = queue.ok("POST", f"{queue.path}/messages/batch", 201, json=batch, headers=headers)
    assert queue.ok("POST", f"{queue.path}/messages/batch", 201, json=batch, headers=headers) == first
    status, _ = queue.refused("POST", f"{queue.path}/messages/batch", json=[{}, {}, {}], headers=headers)
    assert status == 429
    assert queue.stats()["ready"] == 2


# Time.


def test_a_scheduled_message_comes_at_its_time_and_not_before(queue: Queue) -> None:
    at = now_ms() + SOON_MS
    queue.publish(b"later", deliver_at=at)
    queue.publish(b"past", deliver_at=1)
    assert queue.bodies() == [b"past"]
    assert queue.stats()["scheduled"] == 1
    assert queue.bodies(wait_ms=20_000) == [b"later"]
    assert now_ms() >= at


def test_an_earlier_message_is_not_held_up_by_a_later_one(queue: Queue) -> None:
    queue.publish(b"much later", deliver_at=now_ms() + 1_000_000)
    queue.publish(b"soon", deliver_at=now_ms() + SOON_MS)
    assert queue.bodies(wait_ms=20_000) == [b"soon"]


def test_who_waits_gets_what_is_published_meanwhile(queue: Queue, server: ServerProcess) -> None:
    assert queue.consume(wait_ms=1) == []
    assert queue.consume(wait_ms=0) == []
    for wrong, why in (("x", "wait_ms must be a number"), ("-1", "wait_ms must be at least 0")):
        assert queue.refused("GET", f"{queue.path}/messages?wait_ms={wrong}") == (400, why)


# Consuming.


@pytest.mark.parametrize(("n", "count"), [(None, 1), (0, 1), (-5, 1), ("x", 1), (2, 2), (1_000, 100)])
def test_how_many_are_consumed(queue: Queue, n: Any, count: int) -> None:
    queue.ok("POST", f"{queue.path}/messages/batch", 201, json=[{}] * 100)
    queue.publish()
    assert len(queue.consume(n)) == count


def test_a_receipt_is_good_once(queue: Queue) -> None:
    queue.publish()
    handle = queue.take()
    queue.ack(handle)
    gone = (410, f'ack: unknown or expired receipt handle "{handle}"')
    assert queue.refused("DELETE", f"/messages/{handle}") == gone
    assert queue.refused("POST", f"/messages/{handle}/nack") == (410, gone[1].replace("ack", "nack", 1))


@pytest.mark.parametrize("handle", ["x", "0" * 26, "Z" * 26, "7" * 26, "é" * 26, "01M7GSVBHN00006XAXQ7S5J000"])
def test_what_is_no_receipt_is_gone(queue: Queue, handle: str) -> None:
    for method, path in (("DELETE", f"/messages/{handle}"), ("POST", f"/messages/{handle}/nack")):
        status, text = queue.refused(method, path)
        assert status == 410
        assert "unknown" in text


def test_a_nacked_message_goes_to_the_back_and_counts(queue: Queue) -> None:
    queue.publish(b"1")
    queue.publish(b"2")
    queue.nack(queue.take())
    two, one = queue.consume(2)
    assert [base64.b64decode(each["body"]) for each in (two, one)] == [b"2", b"1"]
    assert [two["attempt"], one["attempt"]] == [1, 2]


def test_a_visibility_timeout_is_a_nack(queue: Queue) -> None:
    queue.make(visibility_timeout_ms=SOON_MS)
    queue.publish(b"1")
    queue.publish(b"2")
    handle = queue.take()
    while queue.stats()["in_flight"]:
        time.sleep(0.01)
    assert queue.refused("DELETE", f"/messages/{handle}")[0] == 410
    two, one = queue.consume(2, visibility_timeout_ms=60_000)
    assert [two["attempt"], one["attempt"]] == [1, 2]
    assert base64.b64decode(one["body"]) == b"1"


def test_purge_removes_what_is_ready_and_in_flight_and_leaves_what_is_scheduled(queue: Queue) -> None:
    assert queue.refused("DELETE", f"{queue.path}/messages")[0] == 404
    for _ in range(3):
        queue.publish()
    queue.publish(deliver_at=now_ms() + 100_000)
    handle = queue.take()
    assert queue.ok("DELETE", f"{queue.path}/messages") == {"purged": 3}
    assert queue.stats() == {"ready": 0, "in_flight": 0, "scheduled": 1, "dlq_depth": 0}
    assert queue.refused("DELETE", f"/messages/{handle}")[0] == 410


# The dead.


def test_max_retries_is_the_number_of_deliveries(queue: Queue) -> None:
    queue.make(max_retries=2)
    queue.publish(b"two")
    queue.publish(b"one", max_retries=1)
    for _ in range(3):
        queue.nack(queue.take())
    assert queue.consume() == []
    assert queue.stats()["dlq_depth"] == 2


def test_leases_that_run_out_count_as_deliveries_whatever_their_number(queue: Queue) -> None:
    queue.make(max_retries=5, visibility_timeout_ms=1)
    queue.publish()
    for attempt in range(1, 6):
        while not (taken := queue.consume()):
            time.sleep(0.01)
        assert taken[0]["attempt"] == attempt
    while not queue.stats()["dlq_depth"]:
        time.sleep(0.01)
    assert queue.consume() == []


def test_dead_letters_are_taken_one_at_a_time_and_acknowledged(queue: Queue) -> None:
    queue.make(max_retries=1)
    for body in (b"1", b"2"):
        queue.publish(body, metadata={"a": "b"})
        queue.nack(queue.take())
    (first,) = queue.dead(limit=1)
    assert (first["body"], first["attempt"], first["queue"], first["metadata"]) == ("MQ==", 1, "jobs", {"a": "b"})
    (second,) = queue.dead()
    assert second["body"] == "Mg==", "the first is in somebody's hands"
    queue.ack(first["receipt_handle"])
    assert queue.refused("DELETE", f"/messages/{first['receipt_handle']}")[0] == 410
    queue.nack(second["receipt_handle"])
    assert queue.stats()["dlq_depth"] == 1
    assert [each["body"] for each in queue.dead()] == ["Mg=="], "it was put down"


def test_a_dead_letter_that_nobody_acknowledges_stays_one(queue: Queue) -> None:
    queue.make(max_retries=1, visibility_timeout_ms=SOON_MS)
    queue.publish()
    queue.nack(queue.take())
    (taken,) = queue.dead()
    while not (again := queue.dead()):
        time.sleep(0.01)
    assert queue.refused("DELETE", f"/messages/{taken['receipt_handle']}")[0] == 410
    queue.ack(again[0]["receipt_handle"])
    assert queue.stats()["dlq_depth"] == 0


def test_replayed_dead_letters_start_over(queue: Queue) -> None:
    queue.make(max_retries=1)
    message_id = queue.publish(b"1", metadata={"a": "b"})
    queue.publish(b"2")
    for _ in range(2):
        queue.nack(queue.take())
    assert queue.ok("POST", f"{queue.path}/dlq/replay", params={"limit": 1}) == {"replayed": 1}
    assert queue.ok("POST", f"{queue.path}/dlq/replay") == {"replayed": 1}
    one, two = queue.consume(2)
    assert (one["id"], one["attempt"], one["metadata"]) == (message_id, 1, {"a": "b"})
    assert two["body"] == "Mg=="
    assert queue.ok("POST", f"{queue.path}/dlq/replay") == {"replayed": 0}


def test_a_dead_letter_that_a_consumer_holds_is_not_replayed(queue: Queue) -> None:
    queue.make(max_retries=1)
    for body in (b"1", b"2"):
        queue.publish(body)
        queue.nack(queue.take())
    (held,) = queue.dead(limit=1)
    assert queue.ok("POST", f"{queue.path}/dlq/replay") == {"replayed": 1}
    assert queue.bodies() == [b"2"]
    queue.nack(held["receipt_handle"])
    assert queue.ok("POST", f"{queue.path}/dlq/replay") == {"replayed": 1}
    assert queue.bodies() == [b"1"]


def test_dead_letters_of_a_queue_that_never_was(queue: Queue) -> None:
    assert queue.refused("GET", f"{queue.path}/dlq")[0] == 404
    assert queue.refused("POST", f"{queue.path}/dlq/replay")[0] == 404


# Figures.


def test_stats_by_the_page(queue: Queue) -> None:
    for name in ("a", "b", "c"):
        Queue(queue.http, queue.namespace, name).publish()
    whole = queue.ok("GET", "/api/stats", params={"limit": 200})
    assert whole["total"] >= 3
    keys = [each["key"].split("/") for each in whole["queues"]]
    assert keys == sorted(keys)
    page = queue.ok("GET", "/api/stats", params={"limit": 1, "page": 10**9})
    assert page["page"] == page["total_pages"] == page["total"]
    assert queue.ok("GET", "/api/stats", params={"limit": 0, "page": -1})["limit"] == 50
    summary = queue.ok("GET", "/api/stats/summary")
    assert summary["total_queues"] >= 3
    assert summary["total_depth"] >= 3


def test_metrics_carry_the_names_of_the_original(queue: Queue) -> None:
    queue.publish()
    queue.ack(queue.take())
    queue.publish()
    queue.nack(queue.take())
    counts = {"published": 2, "consumed": 2, "acked": 1, "nacked": 1, "dlq_routed": 0}
    assert {name: queue.counted(name) for name in counts} == counts


def test_what_becomes_a_dead_letter_is_counted_however_that_came(queue: Queue) -> None:
    queue.make(max_retries=2)
    queue.publish()
    queue.nack(queue.take())
    assert queue.counted("dlq_routed") == 0
    queue.nack(queue.take())
    assert queue.counted("dlq_routed") == 1
    queue.publish(max_retries=1)
    queue.take(visibility_timeout_ms=1)
    while queue.stats()["dlq_depth"] < 2:
        time.sleep(0.01)
    assert (queue.counted("dlq_routed"), queue.counted("nacked")) == (2, 2)
    (dead, _) = queue.dead()
    queue.nack(dead["receipt_handle"])
    assert queue.counted("dlq_routed") == 2, "it was one before"


def test_jobs_that_are_no_messages_are_not_counted_when_they_die(queue: Queue) -> None:
    queue.http.post(
        "/queues/jobs/jobs", json={"data": 1, "maxAttempts": 1}, headers={"X-Namespace": queue.namespace}
    ).raise_for_status()
    queue.nack(queue.take())
    assert queue.stats()["dlq_depth"] == 1
    assert queue.counted("dlq_routed") == 0


def test_requests_are_counted_by_route_and_never_by_path(queue: Queue) -> None:
    def counted(start: str) -> float:
        lines = queue.http.get("/prometheus").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))

    requests = 'epochq_http_requests_total{method="POST",path="/namespaces/{ns}/queues/{queue}/messages",status='
    labels = '{method="POST",path="/namespaces/{ns}/queues/{queue}/messages"}'
    names = (f'{requests}"201"', f'{requests}"400"', f"epochq_http_request_duration_milliseconds_count{labels}")
    before = [counted(name) for name in names]
    queue.publish()
    queue.publish()
    queue.refused("POST", f"{queue.path}/messages", json={"bodi": ""})
    after = [counted(name) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 3]
    assert counted(f"epochq_http_request_duration_milliseconds_sum{labels}") > 0
    paths = [line for line in queue.http.get("/prometheus").text.splitlines() if line.startswith("epochq_http_")]
    assert not [line for line in paths if queue.namespace in line]
    assert not [line for line in paths if "/jobs" in line], "other doors are not counted"


# Other doors.


def test_messages_and_jobs_are_the_same_thing(queue: Queue) -> None:
    headers = {"X-Namespace": queue.namespace}
    queue.publish(b'{"a":1}')
    job = queue.http.get("/queues/jobs/jobs", headers=headers).json()
    assert job["job"]["data"] == {"a": 1}
    queue.http.post("/queues/jobs/jobs", json={"data": [2]}, headers=headers)
    assert queue.bodies() == [b"[2]"]


# The listener of its own.


def test_its_own_listener_has_the_health_and_metrics_of_the_original(tmp_path: Path) -> None:
    port = free_port()
    env = {"PENSTOCK_MESSAGES_MAX_RETRIES": "1", "PENSTOCK_MESSAGES_AUTO_CREATE": "no"}
    with ServerProcess(tmp_path / "data", "--messages", f"127.0.0.1:{port}", env=env) as running, running.client() as client:
        url = f"http://127.0.0.1:{port}"
        assert client.post(f"{url}/namespaces/new/queues/q/messages", json={"body": "x"}).status_code == 404
        assert client.post(f"{url}/namespaces", json={"name": "new"}).status_code == 201
        assert client.post(f"{url}/namespaces/new/queues/q/messages", json={"body": "x"}).status_code == 201
        (message,) = client.get(f"{url}/namespaces/new/queues/q/messages").json()["messages"]
        assert client.post(f"{url}/messages/{message['receipt_handle']}/nack").status_code == 204
        assert len(client.get(f"{url}/namespaces/new/queues/q/dlq").json()["messages"]) == 1
        health = client.get(f"{url}/health").json()
        assert (health["status"], health["queues"]) == ("ok", 1)
        assert "epochq_messages_published_total" in client.get(f"{url}/metrics").text
        missing = client.get(f"{url}/queues")
        assert (missing.status_code, missing.json()) == (404, {"error": "not found"})


def test_what_nobody_consumes_is_removed_in_the_end(tmp_path: Path) -> None:
    env = {"PENSTOCK_MESSAGES_RETENTION": "1500ms"}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client() as client:
        queue = Queue(client)
        queue.publish(b"held")
        handle = queue.take()
        queue.publish(b"forgotten")
        queue.publish(b"scheduled", deliver_at=now_ms() + 2_000)
        while (stats := queue.stats())["ready"]:
            time.sleep(0.01)
        assert stats["in_flight"] == 1
        queue.ack(handle)
        assert queue.bodies(wait_ms=10_000) == [b"scheduled"], "it counts from when a message is due"


def test_its_own_listener_speaks_of_errors_as_the_original_does(tmp_path: Path) -> None:
    port = free_port()
    env = {"PENSTOCK_AUTH_API_KEY": "secret", "RATE_LIMIT_MAX_REQUESTS": "10"}
    options = ("--messages", f"127.0.0.1:{port}")
    with ServerProcess(tmp_path / "data", *options, env=env) as running, running.client() as client:
        url, key = f"http://127.0.0.1:{port}", {"X-Api-Key": "secret"}
        for path in ("/health", "/namespaces", "/nowhere", "/metrics"):
            refused = client.get(f"{url}{path}")
            assert (refused.status_code, refused.content) == (401, b'{"error":"unauthorized"}')
            assert refused.headers["content-type"] == "application/json"
        assert "epochq_messages_published_total" in client.get(f"{url}/metrics", headers=key).text
        health = client.get(f"{url}/health", headers=key).json()
        assert health.keys() == {"status", "node_id", "queues", "uptime", "uptime_ms", "version", "data_dir"}
        assert (health["uptime"][-1], health["uptime_ms"] % 1_000) == ("s", 0)
        wrong = client.put(f"{url}/namespaces", headers=key)
        assert (wrong.status_code, wrong.json()) == (405, {"error": "method not allowed"})
        assert wrong.headers["allow"] == "GET, POST"
        empty = client.post(f"{url}/namespaces", headers=key)
        assert (empty.status_code, empty.content) == (400, b'{"error":"invalid json: EOF"}')
        preflight = client.options(f"{url}/namespaces", headers={"Origin": "http://page"})
        assert preflight.status_code == 204
        assert "X-Api-Key" in preflight.headers["access-control-allow-headers"]
        for _ in range(3):
            last = client.get(f"{url}/health", headers=key)
        assert (last.status_code, last.content) == (429, b'{"error":"rate limit exceeded"}')
