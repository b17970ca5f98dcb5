"""Connections of the Redis protocol: clients that misbehave, and a server that stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import httpx2
import pytest
import redis

from penstock.access.authenticator import Authenticator
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.doors.resp.listener import RespListener
from penstock.doors.topics.subscriber import Subscribers
from penstock.engine.jobs.push import Push
from tests.fuzz.mutate import Mutator
from tests.fuzz.resp import CORPUS, WORDS
from tests.support.engines import QUEUE, push, state
from tests.support.ports import free_port
from tests.support.receiver import until
from tests.support.resp import END, RespClient, unique, wire
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RespClient]:
    with RespClient(server.resp_port) as opened:
        yield opened


# What is malformed, too large, or another protocol.


def test_who_sends_too_much_hears_why(server: ServerProcess) -> None:
    with (
        redis.Redis(port=server.resp_port) as library,
        pytest.raises(redis.ResponseError, match="invalid bulk length"),
    ):
        library.execute_command("PUBLISH", "large", b"x" * (limits.payload_bytes_max + 1))


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"*1\r\n$2147483647\r\n", b"invalid bulk length"),
        (b"*2147483647\r\n", b"invalid multibulk length"),
        (b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$10485761\r\n", b"invalid bulk length"),
        (b"*1\r\n:1\r\n", b"expected '$', got ':'"),
        (b"x" * 70_000, b"too big inline request"),
        (b'PING "\r\n', b"unbalanced quotes in request"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(client: RespClient, sent: bytes, error: bytes) -> None:
    client.socket.sendall(wire("PING") + sent)
    assert client.rest() == b"+pong\r\n-ERR Protocol error: " + error + b"\r\n"


@pytest.mark.parametrize("first", [b"POST / HTTP/1.1", b"GET /x HTTP/1.1", b"Host: localhost"])
def test_a_request_of_http_closes_the_connection_without_a_word(client: RespClient, first: bytes) -> None:
    client.socket.sendall(first + b"\r\nHost: localhost\r\n\r\nPUBLISH evil m\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert client.rest() == b""


def test_a_browser_gets_nothing(server: ServerProcess) -> None:
    with pytest.raises(httpx2.TransportError):
        httpx2.post(f"http://127.0.0.1:{server.resp_port}/", content=b"PUBLISH evil m\r\n", trust_env=False)
    with RespClient(server.resp_port, "evil") as client:
        assert client.pull() == []


def test_the_other_way_round_nothing_happens_either(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as http:
        http.sendall(wire("PUBLISH", "evil", "m"))
        assert b"+OK" not in http.recv(65_536)
    with RespClient(server.resp_port, "evil") as client:
        assert client.pull() == []


def test_broken_input_over_real_sockets_harms_nobody(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, RespClient(server.resp_port, unique()) as sound:
        mutator = Mutator(11, CORPUS, WORDS)
        for number, data in enumerate(mutator.inputs(400)):
            with RespClient(server.resp_port) as broken, contextlib.suppress(ConnectionError):
                broken.socket.sendall(data)
                broken.socket.shutdown(socket.SHUT_WR)
                broken.rest()
            sound.publish(number)
        assert [job[2] for job in sound.pull("COUNT", 1_000)] == [str(number) for number in range(400)]
        assert "failed unexpectedly" not in server.log()


def test_half_a_command_harms_nobody(client: RespClient, server: ServerProcess) -> None:
    with RespClient(server.resp_port, client.topic) as half:
        half.socket.sendall(wire("PUBLISH", client.topic, "whole") + wire("PUBLISH", client.topic, "half")[:-3])
        assert half.read() == b"OK"
    assert [job[2] for job in client.pull("COUNT", 5)] == ["whole"]


def test_a_client_that_does_not_read_holds_up_nobody_else(client: RespClient, server: ServerProcess) -> None:
    with RespClient(server.resp_port) as deaf:
        deaf.socket.settimeout(2)
        with pytest.raises(TimeoutError):  # the server stops reading from it
            for _ in range(100_000):
                deaf.send("ECHO", b"x" * 10_000)
        assert client.ok("PING") == b"pong"
        deaf.socket.settimeout(30)
        assert deaf.many(100) == [b"x" * 10_000] * 100


def test_two_hundred_subscribers_at_once(server: ServerProcess, client: RespClient) -> None:
    crowd = [RespClient(server.resp_port, client.topic) for _ in range(200)]
    try:
        for each in crowd:
            each.send("SUBSCRIBE", each.topic)
            each.send("PING")
        assert {each.read() for each in crowd} == {b"pong"}
        with server.client() as http:
            assert http.get("/health").json()["connections"]["resp"] >= 200
        client.publish(*range(200))
        assert {each.read() for each in crowd} == {str(n).encode() for n in range(200)}
    finally:
        for each in crowd:
            each.socket.close()


# The server stops.


def test_a_stopping_server_lets_everybody_go_and_keeps_every_message(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    holders = [RespClient(server.resp_port, "held") for _ in range(5)]
    waiter, worker = RespClient(server.resp_port, "empty"), RespClient(server.resp_port, "work")
    try:
        holders[0].publish(*range(5))
        assert [each.subscribe() for each in holders] == [str(n).encode() for n in range(5)]
        waiter.send("SUBSCRIBE", "empty")
        assert waiter.call("PING") == b"pong"
        job_id = worker.push("x")
        worker.pull()
        worker.send("PULL", "work", "WAIT", 60_000)
        assert server.stop() == 0
        assert [each.read() for each in (*holders, waiter)] == [END] * 6
        assert worker.read() == []
        assert worker.read() is END
        server.start()
        with RespClient(server.resp_port, "held") as later:
            message = later.subscribe()
            seen = [message] + [later.settle("ACK") for _ in range(4)]
        assert sorted(seen) == [str(n).encode() for n in range(5)]
        with RespClient(server.resp_port, "work") as later:
            assert later.pull()[0][0] == job_id
    finally:
        server.stop()
        for each in (*holders, waiter, worker):
            each.socket.close()


def test_the_listener_can_be_off(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--resp", "off") as server:
        with pytest.raises(ConnectionRefusedError):
            RespClient(server.resp_port)
        assert httpx2.get(f"{server.url}/health").json()["connections"]["resp"] == 0


def test_a_port_that_is_taken_stops_the_server_if_it_was_asked_for(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", free_port())) as taken,
        pytest.raises(AssertionError, match="choose another address with --resp"),
    ):
        ServerProcess(tmp_path / "data", resp_port=taken.getsockname()[1]).start()


# With a clock of our own.


@pytest.fixture
async def listener(engine: Engine, clock: ManualClock) -> AsyncIterator[RespListener]:
    subscribers = Subscribers(engine, 10_000)
    opened = RespListener(subscribers, Authenticator(clock), connections_max=3)
    await opened.start("127.0.0.1", 0)
    yield opened
    await opened.stop()
    await subscribers.close()
    assert (opened.bytes, opened.connections) == (0, set())


class Wire:
    """A connection inside the test's own event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def call(self, *words: str | bytes) -> bytes:
        self.writer.write(wire(*words))
        return await self.reader.readline()


async def connect(listener: RespListener) -> Wire:
    return Wire(*await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 24))


async def test_a_command_that_does_not_go_on_is_given_up(listener: RespListener, clock: ManualClock) -> None:
    one = await connect(listener)
    assert await one.call("PING") == b"+pong\r\n"
    await clock.advance(10 * limits.frame_idle_ms_max)  # silence between commands is fine
    one.writer.write(wire("PING") + b"*2\r\n$4\r\nEC")
    assert await one.reader.readline() == b"+pong\r\n"
    await clock.advance(limits.frame_idle_ms_max - 1)
    assert listener.connections
    await clock.advance(1)
    with pytest.raises(ConnectionError):
        if await one.reader.read() == b"":
            raise ConnectionError
    one.writer.close()


async def test_a_subscriber_may_think_for_as_long_as_it_likes(
    listener: RespListener, engine: Engine, clock: ManualClock
) -> None:
    job = await push(engine, data=b"1")
    one = await connect(listener)
    assert await one.call("SUBSCRIBE", QUEUE.name) == b"$1\r\n"
    assert await one.reader.readline() == b"1\r\n"
    await clock.advance(limits.HOUR_MS)
    assert await state(engine, job) is State.ACTIVE
    assert await one.call("ACK") == b"+OK\r\n"
    assert await state(engine, job) is State.NOWHERE or await state(engine, job) is State.COMPLETED
    one.writer.close()


async def test_dack_in_seconds(listener: RespListener, engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, data=b"1")
    one = await connect(listener)
    await one.call("SUBSCRIBE", QUEUE.name)
    await one.reader.readline()
    assert await one.call("DACK", "60") == b"+OK\r\n"
    await clock.advance(59_999)
    assert await state(engine, job) is State.DELAYED
    await clock.advance(2)
    assert await one.reader.readline() == b"$1\r\n"
    one.writer.close()


async def test_one_connection_too_many_is_told_so(listener: RespListener) -> None:
    few = [await connect(listener) for _ in range(3)]
    for each in few:
        assert await each.call("PING") == b"+pong\r\n"
    one_more = await connect(listener)
    assert await one_more.reader.read() == b"-TOO_MANY Too many RESP connections\r\n"
    for each in (*few, one_more):
        each.writer.close()


async def test_what_would_take_too_much_memory_is_refused(listener: RespListener) -> None:
    one = await connect(listener)
    large = wire("ECHO", "x" * 300_000)
    one.writer.write(large[:-1])
    while not listener.bytes:
        await yield_to_loop()
    one.writer.write(large[-1:])
    assert await one.reader.readline() == b"$300000\r\n"
    await one.reader.readline()
    assert await one.call("PING") == b"+pong\r\n"
    assert listener.bytes == 0
    listener.bytes = limits.frames_bytes_max - 1_000  # others have taken the rest
    assert await one.call("ECHO", "x" * 60_000) == b"$60000\r\n", "what is small always gets through"
    await one.reader.readline()
    one.writer.write(wire("ECHO", "x" * (limits.connection_frames_bytes + 1_000)))
    assert await one.reader.read() == b"-TOO_MANY Too many large requests at once. Retry in a moment.\r\n"
    one.writer.close()
    await until(lambda: not listener.connections)
    listener.bytes -= limits.frames_bytes_max - 1_000


async def test_too_much_ahead_of_a_message_is_refused(listener: RespListener) -> None:
    one = await connect(listener)
    one.writer.write(wire("SUBSCRIBE", "quiet") + wire("ACK") * 10_000)
    assert await one.reader.read() == b"-too much was sent ahead\r\n"
    one.writer.close()


async def test_who_never_reads_is_cut_off_and_what_it_held_goes_back(
    listener: RespListener, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "connection_write_bytes_max", 2_000_000)
    large = JobSpec(b'"' + b"x" * 1_000_000 + b'"')
    jobs = await engine.run(Push(QUEUE, [large] * 40))
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", listener.port)) as deaf:
        deaf.setblocking(False)
        # Replies that come one by one wait until the client reads; the bytes of one turn are sent together.
        await loop.sock_sendall(deaf, wire("PULL", QUEUE.name) * 20 + wire("ECHO", "x") + wire("PULL", QUEUE.name) * 20)
        await until(lambda: engine.stats.pulled >= 20)
    await until(lambda: not listener.connections)
    assert {await state(engine, job) for job in jobs} == {State.WAITING}


async def test_the_system_asks_silent_clients_whether_they_are_there(listener: RespListener) -> None:
    one = await connect(listener)
    assert await one.call("PING") == b"+pong\r\n"
    (connection,) = listener.connections
    link: socket.socket = connection._transport.get_extra_info("socket")
    assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == limits.keepalive_s
    one.writer.close()


async def test_what_fails_unexpectedly_is_an_error_and_the_end(
    listener: RespListener, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_down(_command: object) -> None:
        raise ZeroDivisionError

    one = await connect(listener)
    assert await one.call("PING") == b"+pong\r\n"
    monkeypatch.setattr(engine, "run", break_down)
    one.writer.write(wire("PING") + wire("PUBLISH", "t", "m") + wire("PING"))
    assert await one.reader.read() == b"+pong\r\n-ERR Internal server error\r\n"
    assert "a connection failed unexpectedly" in capsys.readouterr().out
    one.writer.close()
