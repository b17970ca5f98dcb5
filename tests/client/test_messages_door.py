"""The messages door through the client, against a real server that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.client import ApiError, AsyncClient, Client, Conflict, LeaseLost, NotFound
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_a_message_from_publish_to_ack(client: Client, queue: str) -> None:
    message_id = client.publish("payments", queue, b"\x00\xff", metadata={"currency": "EUR"})
    (message,) = client.consume("payments", queue, 10, visibility_timeout=60)
    assert (message.id, message.body, message.attempt, message.metadata) == (message_id, b"\x00\xff", 1, {"currency": "EUR"})
    assert (message.namespace, message.queue) == ("payments", queue)
    assert message.published_at > 1_700_000_000_000
    client.ack(message.receipt_handle)
    with pytest.raises(LeaseLost):
        client.ack(message.receipt_handle)
    assert client.consume("payments", queue) == []


def test_a_nacked_message_comes_again(client: Client, queue: str) -> None:
    ids = client.publish_batch("payments", queue, [b"a", b"b"])
    (first,) = client.consume("payments", queue, 1)
    client.nack(first.receipt_handle)
    again = client.consume("payments", queue, 10, wait=5)
    assert [message.id for message in again] == [ids[1], ids[0]]
    assert [message.attempt for message in again] == [1, 2]


def test_what_is_due_later_is_not_there_now(client: Client, queue: str) -> None:
    client.publish("payments", queue, b"later", delay=3600)
    assert client.consume("payments", queue) == []
    client.publish("payments", queue, b"past", deliver_at=1)
    assert [message.body for message in client.consume("payments", queue, 10)] == [b"past"]
    pages = client.stats().total_pages  # other tests have queues, too
    (stats,) = [each for page in range(1, pages + 1) for each in client.stats(page).queues if each.name == queue]
    assert (stats.scheduled, stats.in_flight) == (1, 1)


def test_dead_letters(client: Client, queue: str) -> None:
    client.publish("payments", queue, b"x", max_retries=1)
    (message,) = client.consume("payments", queue)
    client.nack(message.receipt_handle)
    (dead,) = client.drain_dlq("payments", queue, 10)
    assert dead.body == b"x"
    client.nack(dead.receipt_handle)
    client.publish("payments", queue, b"y", max_retries=1)
    (message,) = client.consume("payments", queue)
    client.nack(message.receipt_handle)
    assert client.replay_dlq("payments", queue, 100) >= 1
    assert b"y" in [each.body for each in client.consume("payments", queue, 10)]


def test_namespaces_queues_and_subscriptions(client: Client, queue: str) -> None:
    client.create_namespace(queue)
    with pytest.raises(Conflict):
        client.create_namespace(queue)
    assert queue in [each.name for each in client.list_namespaces()]
    client.create_queue(queue, "jobs", visibility_timeout=5, max_retries=2)
    assert client.list_queues(queue) == [f"{queue}/jobs"]
    client.publish(queue, "jobs", b"x")
    assert client.purge(queue, "jobs") == 1
    signed = client.subscribe(queue, "jobs", "https://example.com/hook", "secret")
    plain = client.subscribe(queue, "jobs", "https://example.com/other")
    listed = client.subscriptions(queue, "jobs")
    assert [(each.id, each.url, each.signed) for each in listed] == [
        (signed, "https://example.com/hook", True), (plain, "https://example.com/other", False),
    ]  # fmt: skip
    assert listed[0].created_at > 1_700_000_000_000
    for subscription in (signed, plain):
        client.unsubscribe(subscription)
    with pytest.raises(NotFound):
        client.unsubscribe(subscription)
    client.delete_queue(queue, "jobs")
    client.delete_namespace(queue)
    with pytest.raises(NotFound):
        client.delete_namespace(queue)
    assert client.stats_summary().total_queues >= 0


@pytest.mark.anyio
async def test_all_of_it_for_coroutines(async_client: AsyncClient, queue: str) -> None:
    client = async_client
    await client.create_namespace(queue)
    assert queue in [each.name for each in await client.list_namespaces()]
    await client.create_queue(queue, "jobs", visibility_timeout=60, max_messages=9, max_retries=1, max_batch_size=5)
    assert await client.list_queues(queue) == [f"{queue}/jobs"]
    one = await client.publish(queue, "jobs", b"x", metadata={"a": "b"})
    two, three = await client.publish_batch(queue, "jobs", [b"y", b"z"])
    messages = await client.consume(queue, "jobs", 10, visibility_timeout=60, wait=5)
    assert [each.id for each in messages] == [one, two, three]
    await client.ack(messages[0].receipt_handle)
    for message in messages[1:]:
        await client.nack(message)
    pages = [await client.stats(page, limit=200) for page in range(1, (await client.stats()).total_pages + 1)]
    assert [each.dlq_depth for stats in pages for each in stats.queues if each.namespace == queue] == [2]
    assert (await client.stats_summary()).dlq_alerts >= 1
    (dead,) = await client.drain_dlq(queue, "jobs", 1)
    await client.ack(dead)
    assert await client.replay_dlq(queue, "jobs") == 1
    assert await client.purge(queue, "jobs") == 1
    subscription = await client.subscribe(queue, "jobs", "https://example.com/hook")
    assert [each.id for each in await client.subscriptions(queue, "jobs")] == [subscription]
    await client.unsubscribe(subscription)
    await client.delete_queue(queue, "jobs")
    await client.delete_namespace(queue)
    assert (await client.health()).is_ok


def test_the_listener_of_the_door_alone(tmp_path: Path) -> None:
    port = free_port()
    env = {"PENSTOCK_AUTH_API_KEY": "secret"}
    with ServerProcess(tmp_path / "data", "--messages", f"127.0.0.1:{port}", env=env) as running:
        with Client(f"http://127.0.0.1:{port}", api_key="secret") as client:
            client.publish("payments", "invoices", b"x")
            health = client.health()
            assert (health.is_ok, health.queues, health.node_id[:5]) == (True, 1, "node-")
            (message,) = client.consume("payments", "invoices")
            client.ack(message)
            with pytest.raises(LeaseLost):
                client.ack(message)
        with Client(running.url, api_key="secret") as main:
            assert main.health().uptime_ms is not None
        with Client(f"http://127.0.0.1:{port}", api_key="wrong") as stranger, pytest.raises(ApiError) as refused:
            stranger.health()
        assert (refused.value.is_unauthorized, refused.value.message) == (True, "unauthorized")
