"""The load of ``make bench`` speaks HTTP/2 and the Redis protocol as others do, and counts what was done and what was not."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import TYPE_CHECKING, cast

import pytest
from bench import http2, load, resp
from bench.load import PAYLOAD, Counter
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, SettingsAcknowledged, StreamEnded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.server import ServerProcess

pytestmark = pytest.mark.anyio
LONG = 60.0


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def taken(self) -> bytes:
        written, self.written = self.written, b""
        return written


class Talk:
    """One of our connections, and a server of the h2 package at its other end."""

    def __init__(self, script: str, streams: int, jobs_max: int) -> None:
        self.counter = Counter(LONG, jobs_max)
        self.client = http2.SCRIPTS[script](self.counter, streams, "t", asyncio.get_running_loop().create_future())
        self.wire = Wire()
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.server.initiate_connection()
        self.client.connection_made(self.wire)

    def heard(self) -> list[Event]:
        """Return what the server makes of what was sent."""
        return self.server.receive_data(self.wire.taken())

    def answer(self) -> None:
        """Let the client have what the server has to say, in two pieces."""
        data = self.server.data_to_send()
        self.client.data_received(data[:20])
        self.client.data_received(data[20:])

    def end(self) -> None:
        self.client.connection_lost(None)


def ended(events: list[Event]) -> list[int]:
    return [event.stream_id for event in events if isinstance(event, StreamEnded)]


async def test_publishing_over_http2_is_understood_and_counted() -> None:
    talk = Talk("publish", streams=3, jobs_max=5)
    heard = talk.heard()
    requests = [event for event in heard if isinstance(event, RequestReceived)]
    assert [dict(cast("list[tuple[str, str]]", event.headers)) for event in requests] == 3 * [
        {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/publish/t",
            ":authority": "localhost",
            "content-length": str(len(PAYLOAD)),
        }
    ]
    assert [event.data for event in heard if isinstance(event, DataReceived)] == 3 * [PAYLOAD]
    while streams := ended(heard):
        for stream in streams:
            talk.server.send_headers(stream, [(":status", "201"), ("date", "today")], end_stream=stream % 4 == 1)
            if stream % 4 == 3:
                talk.server.send_data(stream, b"", end_stream=True)
        talk.answer()
        heard = talk.heard()
        assert all(event.stream_id not in streams for event in heard if isinstance(event, RequestReceived))
    talk.end()
    assert talk.wire.closed
    assert (talk.counter.jobs, talk.counter.errors) == (5, 0)


async def test_consuming_over_http2_is_understood_and_counted() -> None:
    talk = Talk("consume", streams=2, jobs_max=3)
    heard = talk.heard()
    assert [event.data for event in heard if isinstance(event, DataReceived)] == 2 * [b'"INIT"\n']
    talk.server.ping(b"12345678")
    for stream in (1, 3):
        talk.server.send_headers(stream, [(":status", "200")])
    said = []
    for stream in (1, 3, 1, 3, 1):  # two acknowledgements on the first stream, one on the second, and then no more
        talk.server.send_data(stream, b'{"msg":')
        talk.server.send_data(stream, b'"YQ=="}\n')
        talk.answer()
        said.append([(event.stream_id, event.data) for event in talk.heard() if isinstance(event, DataReceived)])
    talk.end()
    assert said == [[(1, b'"ACK"\n')], [(3, b'"ACK"\n')], [(1, b'"ACK"\n')], [], []]
    assert talk.wire.closed
    assert (talk.counter.jobs, talk.counter.errors) == (3, 0)


async def test_settings_and_pings_are_answered() -> None:
    talk = Talk("publish", streams=1, jobs_max=1)
    talk.heard()
    talk.server.ping(b"12345678")
    talk.answer()
    assert {type(event).__name__ for event in talk.heard()} >= {SettingsAcknowledged.__name__, "PingAckReceived"}
    talk.end()


@pytest.mark.parametrize("wrong", ["status", "reset", "goaway", "gone"])
async def test_failures_over_http2_are_errors(wrong: str) -> None:
    talk = Talk("publish", streams=1, jobs_max=1)
    talk.heard()
    match wrong:
        case "status":
            talk.server.send_headers(1, [(":status", "503")], end_stream=True)
        case "reset":
            talk.server.reset_stream(1, 2)
        case "goaway":
            talk.server.close_connection()
    talk.answer()
    talk.end()
    assert talk.counter.errors == 1


@pytest.mark.parametrize("line", [b'{"error":"no"}\n', b"", None])
async def test_failures_of_a_subscription_are_errors(line: bytes | None) -> None:
    talk = Talk("consume", streams=1, jobs_max=1)
    talk.heard()
    talk.server.send_headers(1, [(":status", "200")])
    talk.server.send_data(1, b"{}\n")  # held, and acknowledged
    if line is not None:
        talk.server.send_data(1, line, end_stream=not line)
    talk.answer()
    talk.end()
    assert talk.counter.errors == 1


async def test_messages_go_through_a_real_server(server: ServerProcess) -> None:
    async def measure(script: str, jobs_max: int) -> dict[str, float]:
        return await http2.run(port=server.port, script=script, topic="bench", streams=12, seconds=LONG, jobs_max=jobs_max)

    for script, count in (("publish", 100), ("consume", 50), ("consume", 30)):
        measured = await measure(script, count)
        assert (measured["jobs"], measured["errors"]) == (count, 0)


async def test_messages_are_published_for_later_and_come_no_earlier(server: ServerProcess) -> None:
    async def measure(script: str, queue: str, **more: int) -> dict[str, float]:
        return await load.run(port=server.port, script=script, queue=queue, connections=4, seconds=LONG, **more)

    published = await measure("publish", "later", jobs_max=20, from_ms=60_000, spread_ms=60_000)
    assert (published["jobs"], published["errors"]) == (20, 0)
    due = int(time.time() * 1000) + 500
    messages = [
        {"body": base64.b64encode(b"%d" % (due + number)).decode(), "deliver_at": due + number} for number in range(20)
    ]
    with server.client() as client:
        client.post("/namespaces/bench/queues/punctual/messages/batch", json=messages).raise_for_status()
        measured = await measure("punctual", "punctual", messages_max=20)
        stats = client.get("/namespaces/bench/queues/later/messages").json()
    assert (measured["jobs"], measured["errors"]) == (20, 0)
    assert 0 <= measured["min_ms"] <= measured["p50_ms"] <= measured["max_ms"]
    assert stats["messages"] == []


class Redis:
    """Enough of the Redis protocol to be spoken to: hands out each number once, and wants to hear that it is done."""

    def __init__(self, stock: int) -> None:
        self.waiting = [b"job-%d" % number for number in range(stock)]
        self.held: set[bytes] = set()
        self.published = 0

    def answer(self, *words: bytes) -> bytes:
        match words:
            case (b"PUBLISH", b"t", payload) if payload == PAYLOAD:
                self.published += 1
                return b"+OK\r\n"
            case (b"PULL", b"t", b"COUNT", b"1"):
                if not self.waiting:
                    return b"*0\r\n"
                job = self.waiting.pop()
                self.held.add(job)
                return b"*1\r\n*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in (job, b"token", PAYLOAD))
            case (b"DONE", job, b"token") if job in self.held:
                self.held.remove(job)
                return b"+OK\r\n"
        return b"-ERR no\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            for byte in self.answer(*words):  # torn as badly as can be
                writer.write(bytes((byte,)))
        writer.close()


@pytest.fixture
async def redis() -> AsyncIterator[tuple[Redis, int]]:
    redis = Redis(stock=100)
    async with await asyncio.start_server(redis.serve, "127.0.0.1", 0) as server:
        yield redis, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("pipeline", [1, 8])
async def test_publishing_over_resp_is_counted(redis: tuple[Redis, int], pipeline: int) -> None:
    double, port = redis
    measured = await resp.run(
        port=port, script="publish", topic="t", connections=2, pipeline=pipeline, seconds=LONG, jobs_max=10
    )
    assert measured["jobs"] == double.published == 10 * pipeline
    assert not measured["errors"]


@pytest.mark.parametrize("pipeline", [1, 8])
async def test_pulling_over_resp_ends_when_the_queue_is_empty(redis: tuple[Redis, int], pipeline: int) -> None:
    double, port = redis
    measured = await resp.run(port=port, script="pull_done", topic="t", connections=2, pipeline=pipeline, seconds=LONG)
    assert measured["jobs"] == 100
    assert not measured["errors"]
    assert not double.held


async def test_failures_over_resp_are_errors(redis: tuple[Redis, int]) -> None:
    _, port = redis
    measured = await resp.run(
        port=port, script="publish", topic="other", connections=1, pipeline=3, seconds=LONG, jobs_max=1
    )
    assert measured["errors"] == 3


async def test_jobs_go_through_the_redis_protocol_of_a_real_server(server: ServerProcess) -> None:
    async def measure(script: str, pipeline: int, **more: int) -> dict[str, float]:
        return await resp.run(
            port=server.resp_port, script=script, topic="bench-resp", connections=2, pipeline=pipeline, seconds=LONG, **more
        )

    for pipeline, batches in ((1, 10), (8, 5)):
        published = await measure("publish", pipeline, jobs_max=batches)
        done = await measure("pull_done", pipeline)
        assert (published["jobs"], done["jobs"]) == (pipeline * batches, pipeline * batches)
        assert not published["errors"] + done["errors"]
