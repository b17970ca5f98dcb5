"""Events of a queue between the replies of a TCP connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import pytest

from penstock.access.authenticator import Authenticator
from penstock.core import limits
from penstock.core.job import JobSpec
from penstock.doors.jobs.event_hub import EventHub
from penstock.doors.jobs.tcp import TcpListener
from penstock.engine.jobs.push import Push
from tests.support.engines import QUEUE
from tests.support.tcp import TcpClient, all_commands, frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine
    from tests.support.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TcpClient]:
    with TcpClient(server.tcp_port) as opened:
        yield opened


@pytest.fixture
def listener_(server: ServerProcess, client: TcpClient) -> Iterator[TcpClient]:
    """A second connection, subscribed to the queue of the first."""
    with TcpClient(server.tcp_port, client.queue) as opened:
        opened.ok("SubscribeEvents", queue=client.queue)
        yield opened


def told(listener: TcpClient) -> dict[str, Any]:
    message = listener.read()
    assert message["type"] == "event"
    event: dict[str, Any] = message["event"]
    return event


def test_a_job_is_told_from_push_to_result(client: TcpClient, listener_: TcpClient) -> None:
    job_id, token = client.active()
    client.ok("Progress", id=job_id, token=token, progress=40)
    client.ok("ACK", id=job_id, token=token, result={"sum": 3})
    events = [told(listener_) for _ in range(4)]
    assert [(each["eventType"], each["jobId"]) for each in events] == [
        ("pushed", job_id),
        ("pulled", job_id),
        ("progress", job_id),
        ("completed", job_id),
    ]
    assert events[2]["progress"] == 40
    assert events[3]["data"] == {"sum": 3}
    assert all(each["queue"] == client.queue and each["timestamp"] > 1_600_000_000_000 for each in events)


def test_the_result_of_a_job_that_is_removed_at_its_end_is_told(client: TcpClient, listener_: TcpClient) -> None:
    job_id, token = client.active(removeOnComplete=True)
    client.ok("ACK", id=job_id, token=token, result={"sum": 4})
    events = [told(listener_) for _ in range(3)]
    assert (events[2]["eventType"], events[2]["jobId"], events[2]["data"]) == ("completed", job_id, {"sum": 4})
    assert client.ok("GetState", id=job_id)["state"] == "unknown"


def test_a_failure_tells_why_and_what_was_to_be_done(client: TcpClient, listener_: TcpClient) -> None:
    job_id = client.push({"n": 1}, maxAttempts=1)
    client.ok("FAIL", id=job_id, token=client.ok("PULL", queue=client.queue)["token"], error="no luck")
    events = [told(listener_) for _ in range(3)]
    assert events[2].items() >= {"eventType": "failed", "jobId": job_id, "error": "no luck", "data": {"n": 1}}.items()


def test_only_the_queue_that_was_subscribed_to_last_is_told(client: TcpClient, listener_: TcpClient) -> None:
    other = f"{client.queue}-other"
    listener_.ok("SubscribeEvents", queue=other)
    client.push()
    client.ok("Pause", queue=client.queue)
    client.ok("Pause", queue=other)
    assert told(listener_).items() >= {"eventType": "paused", "queue": other, "jobId": ""}.items()
    listener_.ok("UnsubscribeEvents")
    client.ok("Resume", queue=other)
    assert listener_.ok("Ping")["data"]["pong"] is True
    listener_.ok("Auth", token="", namespace="another")  # the subscription was the only thing of the first namespace


def test_replies_come_between_events(client: TcpClient, listener_: TcpClient) -> None:
    client.push()
    listener_.send("Ping", reqId="7")
    messages = [listener_.read(), listener_.read()]
    assert {each.get("type", each.get("reqId")) for each in messages} == {"event", "7"}


class Slow:
    """A connection that reads only when it is asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> Any:
        size = int.from_bytes(await self.reader.readexactly(4))
        return msgpack.unpackb(await self.reader.readexactly(size))

    async def last(self) -> Any:
        """Return what comes last before the connection ends."""
        stream = await self.reader.read()
        found = b""
        while stream:
            size = int.from_bytes(stream[:4])
            found, stream = stream[4 : 4 + size], stream[4 + size :]
        return msgpack.unpackb(found)


async def subscribed(listener: TcpListener, reads: int = 2**16) -> Slow:
    opened = Slow(*await asyncio.open_connection("127.0.0.1", listener.port, limit=reads))
    opened.writer.write(frame({"cmd": "SubscribeEvents", "queue": QUEUE.name}))
    assert (await opened.read())["ok"] is True
    return opened


def missed(hub: EventHub) -> int:
    return hub.missed


async def test_a_slow_reader_is_disconnected_and_costs_others_nothing(engine: Engine, clock: ManualClock) -> None:
    hub = EventHub(engine.feed, clock)
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock, hub=hub)
    await listener.start("127.0.0.1", 0)
    slow, quick = await subscribed(listener, 64), await subscribed(listener)
    seen = 0
    pushed = 0
    while not missed(hub):
        jobs = [JobSpec(b"1", job_id=f"{pushed + n}-{'x' * 200}") for n in range(1_000)]
        await engine.run(Push(QUEUE, jobs))
        pushed += len(jobs)
        while seen < pushed:
            event = (await quick.read())["event"]
            seen += event["eventType"] == "pushed"
        assert pushed <= 200 * limits.reader_buffer_messages_max, "what waits for a reader has no limit"
    assert seen == pushed
    assert (await slow.last())["error"] == "Too slow for the events of this queue. Subscribe again."
    await listener.stop()
    assert not engine.feed.has_listeners
    for each in (slow, quick):
        each.writer.close()


async def test_nobody_listens_to_the_feed_once_all_have_left(engine: Engine, clock: ManualClock) -> None:
    hub = EventHub(engine.feed, clock)
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock, hub=hub)
    await listener.start("127.0.0.1", 0)
    one, other = await subscribed(listener), await subscribed(listener)
    heard = [engine.feed.has_listeners]
    one.writer.write(frame({"cmd": "UnsubscribeEvents"}))
    assert (await one.read())["ok"] is True
    other.writer.close()
    await listener.stop()
    assert [*heard, engine.feed.has_listeners] == [True, False]
    one.writer.close()
