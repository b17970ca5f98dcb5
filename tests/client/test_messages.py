"""The messages door through the client.

Against a stub that answers what the contract says, and shows what was asked: this is about the SDK's side of the wire.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import AsyncClient, Client, Conflict, LeaseLost, NotFound
from tests.client.proxy import Answer, ForgetfulProxy, StubServer, first

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

WHERE = "/namespaces/payments/queues/invoices"


def asked(stub: StubServer) -> tuple[str, str, Any]:
    """Return method, path and body of the last request."""
    request = stub.requests[-1]
    return request.method, request.path, json.loads(request.body) if request.body else None


def test_publish() -> None:
    with StubServer(Answer(201, b'{"id": "01ARZ"}')) as stub, Client(stub.url, api_key="key") as client:
        assert client.publish("payments", "invoices", b'{"amount":42}') == "01ARZ"
        body = base64.b64encode(b'{"amount":42}').decode()
        assert asked(stub) == ("POST", f"{WHERE}/messages", {"body": body})
        assert "x-api-key: key" in stub.requests[-1].head.lower()
        assert "idempotency-key: " in stub.requests[-1].head.lower()
        noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
        client.publish("payments", "invoices", b"", deliver_at=noon, max_retries=2, metadata={"a": "b"})
        assert asked(stub)[2] == {"body": "", "deliver_at": 1_772_366_400_000, "max_retries": 2, "metadata": {"a": "b"}}
        before = int(datetime.now(UTC).timestamp() * 1000)
        client.publish("payments", "invoices", b"x", delay=timedelta(hours=1))
        assert 0 <= asked(stub)[2]["deliver_at"] - before - 3_600_000 < 60_000
        client.publish("a b", "c d", b"x")
        assert asked(stub)[1] == "/namespaces/a%20b/queues/c%20d/messages"


def test_publish_refuses_what_cannot_be_meant() -> None:
    with Client() as client:
        with pytest.raises(TypeError, match="must be bytes"):
            client.publish("n", "q", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not both"):
            client.publish("n", "q", b"", delay=1, deliver_at=1)
        with pytest.raises(ValueError, match="time zone"):
            client.publish("n", "q", b"", deliver_at=datetime(2026, 1, 1))  # noqa: DTZ001, that is the point


def test_publish_batch() -> None:
    with StubServer(Answer(201, b'{"ids": ["1", "2"]}')) as stub, Client(stub.url) as client:
        assert client.publish_batch("payments", "invoices", [b"a", b"b"], max_retries=1) == ["1", "2"]
        assert asked(stub) == (
            "POST", f"{WHERE}/messages/batch", [{"body": "YQ==", "max_retries": 1}, {"body": "Yg==", "max_retries": 1}],
        )  # fmt: skip


def test_consume_ack_and_nack() -> None:
    message = {
        "id": "01A", "body": "eA==", "receipt_handle": "01B", "namespace": "payments", "queue": "invoices", "attempt": 2,
        "published_at": 1_772_366_400_000, "metadata": {"k": "v"},
    }  # fmt: skip
    with StubServer(Answer(200, json.dumps({"messages": [message]}).encode())) as stub, Client(stub.url) as client:
        (got,) = client.consume("payments", "invoices", 10, visibility_timeout=60, wait=5)
        assert asked(stub)[:2] == ("GET", f"{WHERE}/messages?n=10&visibility_timeout_ms=60000&wait_ms=5000")
        assert (got.id, got.body, got.receipt_handle, got.attempt) == ("01A", b"x", "01B", 2)
        assert (got.published_at, got.metadata, got.namespace, got.queue) == (
            1_772_366_400_000, {"k": "v"}, "payments", "invoices",
        )  # fmt: skip
        client.consume("payments", "invoices")
        assert asked(stub)[1] == f"{WHERE}/messages?n=1"
        client.drain_dlq("payments", "invoices", 7)
        assert asked(stub)[:2] == ("GET", f"{WHERE}/dlq?limit=7")
    with StubServer(Answer(204, b"")) as stub, Client(stub.url) as client:
        client.ack("01B")
        assert asked(stub) == ("DELETE", "/messages/01B", None)
        client.ack(got)
        assert asked(stub) == ("DELETE", "/messages/01B", None)
        client.nack("01B")
        assert asked(stub) == ("POST", "/messages/01B/nack", None)
    gone = Answer(410, b'{"error": "unknown receipt handle"}')
    with StubServer(gone) as stub, Client(stub.url) as client, pytest.raises(LeaseLost, match="unknown receipt"):
        client.ack("01B")


def test_queues_and_namespaces() -> None:
    with StubServer(Answer(201, b'{"status": "created"}')) as stub, Client(stub.url) as client:
        client.create_namespace("analytics")
        assert asked(stub) == ("POST", "/namespaces", {"name": "analytics"})
        client.create_queue("payments", "invoices", visibility_timeout=5, max_messages=9, max_retries=3, max_batch_size=10)
        assert asked(stub) == (
            "POST", WHERE, {"visibility_timeout_ms": 5000, "max_messages": 9, "max_retries": 3, "max_batch_size": 10},
        )  # fmt: skip
        client.create_queue("payments", "invoices")
        assert asked(stub)[2] == {}
    with StubServer(Answer(204, b"")) as stub, Client(stub.url) as client:
        client.delete_namespace("analytics")
        assert asked(stub)[:2] == ("DELETE", "/namespaces/analytics")
        client.delete_queue("payments", "invoices")
        assert asked(stub)[:2] == ("DELETE", WHERE)
        client.unsubscribe("01S")
        assert asked(stub)[:2] == ("DELETE", "/subscriptions/01S")
    replies = b'{"namespaces": [{"name": "a", "created_at": 5}], "queues": ["a/q"], "purged": 3, "replayed": 4, "id": "01S"}'
    with StubServer(Answer(200, replies)) as stub, Client(stub.url) as client:
        assert [each.name for each in client.list_namespaces()] == ["a"]
        assert client.list_queues("a") == ["a/q"]
        assert client.purge("payments", "invoices") == 3
        assert client.replay_dlq("payments", "invoices", 9) == 4
        assert asked(stub)[:2] == ("POST", f"{WHERE}/dlq/replay?limit=9")
        assert client.subscribe("payments", "invoices", "https://example.com", "secret") == "01S"
        assert asked(stub) == ("POST", f"{WHERE}/subscriptions", {"url": "https://example.com", "secret": "secret"})
    for status, kind in ((404, NotFound), (409, Conflict)):
        with StubServer(Answer(status, b'{"error": "no"}')) as stub, Client(stub.url) as client, pytest.raises(kind):
            client.create_namespace("x")


def test_health_and_stats() -> None:
    queue = {
        "namespace": "a",
        "name": "q",
        "key": "a/q",
        "ready": 1,
        "in_flight": 2,
        "scheduled": 3,
        "depth": 3,
        "dlq_depth": 4,
    }
    stats = {"queues": [queue], "total": 1, "page": 1, "limit": 200, "total_pages": 1, "total_queues": 1, "namespaces": 2}
    with StubServer(Answer(200, json.dumps(stats).encode())) as stub, Client(stub.url) as client:
        assert client.stats().queues[0].dlq_depth == 4
        assert asked(stub)[1] == "/api/stats?page=1&limit=200"
        assert client.stats_summary().namespaces == 2
    health = {"status": "ok", "node_id": "01N", "queues": 2, "uptime": "1s", "uptime_ms": 1000, "version": "1.0.0"}
    with StubServer(Answer(200, json.dumps(health).encode())) as stub, Client(stub.url) as client:
        assert (client.health().status, client.health().node_id, client.health().uptime_ms) == ("ok", "01N", 1000)


def test_health_of_a_real_server(client: Client) -> None:
    assert client.health().version


def test_a_publish_whose_answer_was_lost_makes_one_message(server: ServerProcess, client: Client, queue: str) -> None:
    with ForgetfulProxy(server.port, first(3, b"POST /namespaces/")) as proxy, Client(proxy.url) as unlucky:
        one = unlucky.publish("n", queue, b"x")
        assert proxy.lost == 3
    with ForgetfulProxy(server.port, first(1, b"POST /namespaces/")) as proxy, Client(proxy.url) as unlucky:
        more = unlucky.publish_batch("n", queue, [b"y", b"z"])
        assert proxy.lost == 1
    messages = client.consume("n", queue, 10)
    assert [(each.id, each.body) for each in messages] == [(one, b"x"), (more[0], b"y"), (more[1], b"z")]


@pytest.mark.anyio
async def test_the_same_for_coroutines(server: ServerProcess, client: Client, queue: str) -> None:
    with ForgetfulProxy(server.port, first(2, b"POST /namespaces/")) as proxy:
        async with AsyncClient(proxy.url) as unlucky:
            await unlucky.publish("n", queue, b"x", delay=0.001)
        assert proxy.lost == 2
    assert [each.body for each in client.consume("n", queue, 10, wait=5)] == [b"x"]


def test_a_publish_whose_answer_was_lost_is_found_in_a_queue_that_is_full(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.create_queue("n", queue, max_messages=1)
    with ForgetfulProxy(server.port, first(1, b"POST /namespaces/")) as proxy, Client(proxy.url) as unlucky:
        message_id = unlucky.publish("n", queue, b"x")
    assert [each.id for each in client.consume("n", queue, 10)] == [message_id]


def test_an_ack_or_a_nack_whose_answer_was_lost_is_done(server: ServerProcess, client: Client, queue: str) -> None:
    client.publish_batch("n", queue, [b"x", b"y"])
    lose = first(1, b"DELETE /messages/"), first(1, b"POST /messages/")
    with ForgetfulProxy(server.port, lambda sent: lose[0](sent) or lose[1](sent)) as proxy, Client(proxy.url) as unlucky:
        done, undone = unlucky.consume("n", queue, 2)
        unlucky.ack(done)
        unlucky.nack(undone)
        assert proxy.lost == 2
    assert [(each.id, each.attempt) for each in client.consume("n", queue, 10)] == [(undone.id, 2)]
