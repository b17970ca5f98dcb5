"""The TCP protocol over real sockets: many commands at once, clients that go away, dawdle or misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any

import httpx2
import msgpack  # type: ignore[import-untyped]
import pytest

from penstock.access.authenticator import Authenticator
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.ids import to_uuid
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.doors.jobs.session import JobsSession
from penstock.doors.jobs.tcp import TcpListener
from penstock.engine.jobs.push import Push
from tests.support.engines import QUEUE, state
from tests.support.receiver import until
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient, all_commands, frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TcpClient]:
    with TcpClient(server.tcp_port) as opened:
        yield opened


# Conversation.


def test_replies_carry_the_request_id_of_their_command(client: TcpClient) -> None:
    assert client.call("Ping", reqId="abc")["reqId"] == "abc"
    assert client.call("Nonsense", reqId=7) == {
        "ok": False,
        "error": "Unknown command: Nonsense",
        "code": "invalid_input",
        "reqId": 7,
    }
    assert "reqId" not in client.call("Ping")
    assert client.call("PUSH", queue="q", data=msgpack.ExtType(5, b"x"), reqId="n")["reqId"] == "n"


def test_what_is_not_a_command_is_answered_and_the_connection_goes_on(client: TcpClient) -> None:
    client.socket.sendall(struct.pack(">I", 1) + b"\xc1")
    assert client.read() == {"ok": False, "error": "Invalid command format", "code": "invalid_input"}
    client.socket.sendall(frame({"reqId": "1"}))
    assert client.read() == {"ok": False, "error": "Invalid command", "code": "invalid_input", "reqId": "1"}
    names: tuple[object, ...] = (5, [], {})
    for name in names:
        client.socket.sendall(frame({"cmd": name}))
        assert client.read() == {"ok": False, "error": "Invalid command", "code": "invalid_input"}
    client.ok("Ping")


def test_many_commands_at_once_are_all_answered(client: TcpClient) -> None:
    client.socket.sendall(
        b"".join(frame({"cmd": "PUSH", "queue": client.queue, "data": n, "reqId": str(n)}) for n in range(500))
    )
    replies = [client.read() for _ in range(500)]
    assert {reply["reqId"] for reply in replies} == {str(n) for n in range(500)}
    assert len({reply["id"] for reply in replies}) == 500
    assert client.ok("Count", queue=client.queue)["count"] == 500


def test_a_large_bulk_push_stores_all_its_jobs(client: TcpClient) -> None:
    assert len(client.ok("PUSHB", queue=client.queue, jobs=[{"data": n} for n in range(1_001)])["ids"]) == 1_001
    assert len(client.ok("PUSHB", queue=client.queue, jobs=[{"data": "x" * 7_000}] * 10)["ids"]) == 10
    assert len(client.ok("PUSHB", queue=client.queue, jobs=[{"data": n} for n in range(10_000)])["ids"]) == 10_000
    assert client.ok("Count", queue=client.queue)["count"] == 11_011


def test_a_quick_command_overtakes_one_that_waits(client: TcpClient) -> None:
    client.send("PULL", queue=client.queue, timeout=30_000, reqId="slow")
    assert client.call("Ping", reqId="quick")["reqId"] == "quick"
    client.send("PUSH", queue=client.queue, data="late", reqId="push")
    assert {client.read()["reqId"], client.read()["reqId"]} == {"push", "slow"}


def test_more_than_fifty_commands_wait_for_their_turn(client: TcpClient) -> None:
    for n in range(limits.connection_commands_max):
        client.send("PULL", queue=client.queue, timeout=30_000, reqId=f"pull {n}")
    client.send("Ping", reqId="ping")
    with TcpClient(client.socket.getpeername()[1], client.queue) as other:
        other.ok("PUSHB", queue=client.queue, jobs=[{"data": n} for n in range(limits.connection_commands_max)])
        replies = [client.read() for _ in range(limits.connection_commands_max + 1)]
    assert replies[0]["reqId"] != "ping"
    assert {reply["reqId"] for reply in replies} == {"ping", *(f"pull {n}" for n in range(limits.connection_commands_max))}


def test_a_client_that_sends_no_more_still_gets_its_answers(client: TcpClient) -> None:
    client.send("PUSH", queue=client.queue, data=1)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read()["ok"] is True
    assert client.read() is None


def test_an_empty_token_is_no_token(client: TcpClient) -> None:
    """What bunqueue's client sends for jobs it pulled without a lock."""
    (first, _), (second, _), (third, _) = client.active(), client.active(), client.active()
    assert client.ok("JobHeartbeatB", ids=[first, second], tokens=["", ""])["data"]["count"] == 2
    assert client.ok("ACKB", ids=[first, second], results=[1, 2], tokens=["", ""])["count"] == 2
    client.ok("ExtendLock", id=third, duration=60_000, token="")
    client.ok("Progress", id=third, progress=50, token="")
    client.ok("FAIL", id=third, error="no", token="")
    assert [client.state(each) for each in (first, second, third)] == ["completed", "completed", "delayed"]


# Values.


def test_what_is_pushed_over_one_door_comes_out_of_the_other(client: TcpClient, server: ServerProcess) -> None:
    data = {"text": "ü\n\"'", "n": [1, -2.5, 1e300, 2**40, None, True], "deep": {"": {}}}
    with server.client() as http:
        client.push(data)
        job = http.get(f"/queues/{client.queue}/jobs").json()["job"]
        assert job["data"] == data
        http.post(f"/jobs/{job['id']}/ack", json={"result": data})
        assert client.ok("GetResult", id=job["id"])["result"] == data
        pushed = http.post(f"/queues/{client.queue}/jobs", json={"data": data}).json()["id"]
        pulled = client.ok("PULL", queue=client.queue)
        assert (pulled["job"]["id"], pulled["job"]["data"]) == (pushed, data)
        client.ok("ACK", id=pushed, token=pulled["token"], result=data)
        assert http.get(f"/jobs/{pushed}/result").json()["result"] == data


def test_numbers_only_json_can_write_still_come_out(client: TcpClient, server: ServerProcess) -> None:
    with server.client() as http:
        body = b'{"data": {"huge": 1e400, "long": 123456789012345678901234567890}}'
        http.post(f"/queues/{client.queue}/jobs", content=body, headers={"content-type": "application/json"})
    data = client.ok("PULL", queue=client.queue)["job"]["data"]
    assert data == {"huge": float("inf"), "long": 123456789012345678901234567890.0}


def test_a_date_is_taken_as_text_and_its_neighbours_are_taken_too(client: TcpClient) -> None:
    """A client of JavaScript sends dates as MessagePack timestamps."""
    date, text = msgpack.Timestamp(1_794_960_000), "2026-11-18T00:00:00.000Z"
    client.ok("PUSHB", queue=client.queue, jobs=[{"data": 1}, {"data": {"at": date}}, {"data": [b"\x01", float("nan")]}])
    pulled = client.ok("PULLB", queue=client.queue, count=3)
    assert [job["data"] for job in pulled["jobs"]] == [1, {"at": text}, [{"0": 1}, None]]
    ids = [job["id"] for job in pulled["jobs"]]
    assert client.ok("ACKB", ids=ids, tokens=pulled["tokens"], results=[date, 2, {"bytes": b"\x02"}])["count"] == 3
    assert [client.ok("GetResult", id=each)["result"] for each in ids] == [text, 2, {"bytes": {"0": 2}}]


def test_a_value_without_json_is_refused_for_its_job(client: TcpClient) -> None:
    unknown = msgpack.ExtType(5, b"x")
    error = "Extension values are not supported, except dates: JSON has no such values"
    assert client.refused("PUSH", queue=client.queue, data=unknown) == error
    assert client.refused("PUSHB", queue=client.queue, jobs=[{"data": 1}, {"data": [unknown]}]) == f"jobs[1]: {error}"
    (first, one), (second, two), (third, three) = client.active(), client.active(), client.active()
    deep_error = "JSON nested too deeply (max 64 levels)"
    reply = client.ok("ACKB", ids=[first, second, third], tokens=[one, two, three], results=[1, unknown, nested(65)])
    assert reply["count"] == 1
    assert reply["errors"] == [{"id": second, "error": error}, {"id": third, "error": deep_error}]
    assert [client.state(each) for each in (first, second, third)] == ["completed", "active", "active"]
    assert client.refused("ACKB", ids=[second], tokens=[two], results=[unknown]) == error
    assert client.ok("ACKB", ids=[second, third], tokens=[two, three], results=[2, 3])["count"] == 2


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_payloads_have_the_limits_they_have_over_http(client: TcpClient) -> None:
    client.push(nested(64))
    error = "JSON nested too deeply (max 64 levels)"
    assert client.refused("PUSH", queue=client.queue, data=nested(65)) == error
    assert client.refused("PUSHB", queue=client.queue, jobs=[{"data": nested(65)}]) == f"jobs[0]: {error}"
    assert client.refused("PUSH", queue=client.queue, data="x" * (10 * 2**20)) == "Job data too large (max 10MB)"
    big = "x" * (10 * 2**20 - 2)
    job_id = client.push(big)
    assert client.ok("GetJob", id=job_id)["job"]["data"] == big
    assert client.refused("PULL", queue=client.queue, detach="yes") == "detach must be a boolean"


# Tokens.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env={"AUTH_TOKENS": "secret,other"}) as running:
        yield running


def test_a_token_is_asked_for_first(guarded: ServerProcess) -> None:
    with TcpClient(guarded.tcp_port) as client:
        for command in ("Ping", "Hello", "Nonsense", "PUSH"):
            assert client.refused(command) == "Not authenticated"
        assert client.refused("Auth", token="wrong") == "Invalid token"
        assert client.refused("Auth", token=5) == "token must be a string"
        assert client.refused("Ping") == "Not authenticated"
        client.ok("Auth", token="other")
        client.ok("Ping")
        client.push("x" * 1_000_000)
    with TcpClient(guarded.tcp_port) as another:
        assert another.refused("Ping") == "Not authenticated"
        another.socket.sendall(struct.pack(">I", 65_537))
        assert another.read() == {
            "ok": False,
            "error": "Frame too large: 65537 bytes exceeds maximum 65536",
            "code": "frame_too_large",
        }
        assert another.read() is None


def test_what_comes_right_behind_a_token_may_be_large(guarded: ServerProcess) -> None:
    push = frame({"cmd": "PUSH", "queue": "large", "data": "x" * 100_000, "reqId": "push"})
    with TcpClient(guarded.tcp_port) as client:
        client.socket.sendall(frame({"cmd": "Auth", "token": "secret", "reqId": "auth"}) + push + push)
        replies = [client.read() for _ in range(3)]
        assert [(each["ok"], each["reqId"]) for each in replies] == [(True, "auth"), (True, "push"), (True, "push")]
    with TcpClient(guarded.tcp_port) as stranger:
        stranger.socket.sendall(frame({"cmd": "Auth", "token": "wrong"}) + push)
        assert stranger.read() == {"ok": False, "error": "Invalid token", "code": "unauthorized"}
        assert stranger.read()["error"].startswith("Frame too large")
        assert stranger.read() is None


# Hanging up.


def attempts_and_state(client: TcpClient, job_id: str) -> tuple[int, str]:
    job = client.ok("GetJob", id=job_id)["job"]
    return job["attempts"], job["state"]


def test_hanging_up_gives_the_jobs_back_untouched(client: TcpClient, server: ServerProcess) -> None:
    ids = [client.push(n) for n in range(4)]
    with TcpClient(server.tcp_port, client.queue) as worker:
        first = worker.ok("PULL", queue=worker.queue)
        worker.ok("PULLB", queue=worker.queue, count=2, owner="w")
        worker.ok("ACK", id=ids[0], token=first["token"])
        worker.ok("PULL", queue=worker.queue, detach=True)
    again = client.ok("PULLB", queue=client.queue, count=4, timeout=10_000)
    while len(again["jobs"]) < 2:  # one batch may see the first of them only
        more = client.ok("PULLB", queue=client.queue, count=4, timeout=10_000)
        again = {"jobs": again["jobs"] + more["jobs"]}
    assert [(job["id"], job["attempts"]) for job in again["jobs"]] == [(ids[1], 0), (ids[2], 0)]
    assert client.state(ids[0]) == "completed"
    assert client.state(ids[3]) == "active"  # its worker said that it will come back on another connection


def test_a_job_whose_acknowledgement_was_refused_goes_back_too(client: TcpClient, server: ServerProcess) -> None:
    ids = [client.push(n) for n in range(2)]
    with TcpClient(server.tcp_port, client.queue) as worker:
        tokens = worker.ok("PULLB", queue=worker.queue, count=2)["tokens"]
        reply = worker.ok("ACKB", ids=ids, tokens=[tokens[0], tokens[0]])
        assert (reply["count"], [each["id"] for each in reply["errors"]]) == (1, [ids[1]])
    again = client.ok("PULL", queue=client.queue, timeout=10_000)
    assert (again["job"] or {}).get("id") == ids[1]
    assert client.state(ids[0]) == "completed"


def test_an_acknowledgement_sent_just_before_hanging_up_counts(client: TcpClient, server: ServerProcess) -> None:
    job_id = client.push()
    with TcpClient(server.tcp_port, client.queue) as worker:
        token = worker.ok("PULL", queue=worker.queue)["token"]
        worker.send("ACK", id=job_id, token=token, result="done")
    assert client.ok("WaitJob", id=job_id, timeout=10_000) == {"ok": True, "completed": True, "result": "done"}


def test_a_client_that_hangs_up_while_it_waits_takes_nothing(client: TcpClient, server: ServerProcess) -> None:
    with TcpClient(server.tcp_port, client.queue) as worker:
        worker.send("PULL", queue=worker.queue, timeout=60_000)
        worker.ok("Ping")
    job_id = client.push()
    reply = client.ok("PULL", queue=client.queue, timeout=10_000)
    assert (reply["job"]["id"], reply["job"]["attempts"]) == (job_id, 0)


# Clients that misbehave.


def test_a_frame_too_large_is_refused_and_the_connection_closed(client: TcpClient) -> None:
    client.send("Ping", reqId="before")
    client.socket.sendall(struct.pack(">I", 2**32 - 1) + b"x")
    replies = [client.read(), client.read()]
    refusal = {
        "ok": False,
        "error": f"Frame too large: {2**32 - 1} bytes exceeds maximum {64 * 2**20}",
        "code": "frame_too_large",
    }
    assert refusal in replies
    assert any(reply.get("reqId") == "before" for reply in replies)
    assert client.read() is None


def test_frames_that_are_only_announced_keep_nobody_out(server: ServerProcess) -> None:
    liars = [TcpClient(server.tcp_port) for _ in range(18)]
    try:
        for each in liars:
            each.socket.sendall(frame({"cmd": "Ping"}) + struct.pack(">I", 64 * 2**20) + b"x")
            assert each.read()["ok"] is True
        with TcpClient(server.tcp_port) as client:
            client.push("x" * 300)
            client.push("x" * 300_000)
    finally:
        for each in liars:
            each.socket.close()


def test_a_client_that_does_not_read_holds_up_nobody_else(client: TcpClient, server: ServerProcess) -> None:
    job_id = client.push("x" * 1_000_000)
    with TcpClient(server.tcp_port) as slow:
        slow.socket.settimeout(2)
        sent = 0
        try:
            for sent in range(100_000):
                slow.send("GetJob", id=job_id, reqId=str(sent), padding="y" * 1_000)
        except TimeoutError:
            pass
        assert sent < 99_999  # the server stopped reading from it
        client.ok("Ping")
        slow.socket.settimeout(30)
        seen = {slow.read()["reqId"] for _ in range(40)}
        assert len(seen) == 40


def test_two_hundred_clients_at_once(server: ServerProcess) -> None:
    clients = [TcpClient(server.tcp_port, "crowd") for _ in range(200)]
    try:
        for client in clients:
            client.send("PUSH", queue="crowd", data=1)
        assert len({client.read()["id"] for client in clients}) == 200
        with server.client() as http:
            assert http.get("/health").json()["connections"]["tcp"] >= 200
        for client in clients:
            client.send("PULL", queue="crowd", timeout=10_000)
        pulled = [client.read() for client in clients]
        for client, reply in zip(clients, pulled, strict=True):
            client.ok("ACK", id=reply["job"]["id"], token=reply["token"])
        assert clients[0].ok("GetJobCounts", queue="crowd")["counts"]["completed"] == 200
    finally:
        for client in clients:
            client.socket.close()


# The server stops.


def test_a_stopping_server_answers_and_gives_jobs_back(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    with TcpClient(server.tcp_port) as client:
        job_id, _ = client.active()
        client.send("PULL", queue=client.queue, timeout=60_000)
        assert client.call("Ping")["ok"] is True
        assert server.stop() == 0
        assert client.read() == {"ok": True, "job": None}
        assert client.read() is None
    server.start()
    try:
        with TcpClient(server.tcp_port, client.queue) as later:
            reply = later.ok("PULL", queue=later.queue)
            assert (reply["job"]["id"], reply["job"]["attempts"]) == (job_id, 0)
    finally:
        server.stop()


def test_the_listener_can_be_off_and_says_where_it_is(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--tcp", "off") as server:
        with pytest.raises(ConnectionRefusedError):
            TcpClient(server.tcp_port)
        assert httpx2.get(f"{server.url}/health").json()["connections"]["tcp"] == 0


# With a clock of our own.


class Wire:
    """A connection inside the test's own event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> bytes:
        return await self.reader.read(65_536)


async def connect(listener: TcpListener) -> Wire:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", listener.port))
    wire.writer.write(frame({"cmd": "Hello"}))
    assert await wire.read()
    return wire


async def test_a_frame_that_does_not_go_on_is_given_up(engine: Engine, clock: ManualClock) -> None:
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock)
    await listener.start("127.0.0.1", 0)
    wire = await connect(listener)
    await clock.advance(10 * limits.frame_idle_ms_max)  # silence between frames is fine
    wire.writer.write(frame({"cmd": "Hello"}) + b"\0\0\0")
    assert await wire.read()
    await clock.advance(limits.frame_idle_ms_max - 1)
    assert listener.connections
    await clock.advance(1)
    with pytest.raises(ConnectionError):
        if await wire.read() == b"":
            raise ConnectionError
    await listener.stop()
    assert (listener.bytes, listener.connections) == (0, set())
    wire.writer.close()


async def test_one_connection_too_many_is_told_so(engine: Engine, clock: ManualClock) -> None:
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock, connections_max=1)
    await listener.start("127.0.0.1", 0)
    first = await connect(listener)
    second = Wire(*await asyncio.open_connection("127.0.0.1", listener.port))
    assert b"Too many TCP connections" in await second.read()
    assert await second.read() == b""
    first.writer.close()
    second.writer.close()
    await listener.stop()


async def test_frames_that_would_take_too_much_memory_are_refused(engine: Engine, clock: ManualClock) -> None:
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock)
    await listener.start("127.0.0.1", 0)
    wire = await connect(listener)
    small, large = frame({"cmd": "Hello", "padding": "x" * 60_000}), frame({"cmd": "Hello", "padding": "x" * 70_000})
    wire.writer.write(large[:-1])
    while not listener.bytes:
        await yield_to_loop()
    assert listener.bytes < len(large) - limits.connection_frames_bytes
    wire.writer.write(large[-1:])
    assert b"penstock" in await wire.read()
    assert listener.bytes == 0
    listener.bytes = limits.frames_bytes_max - 1_000  # others have taken the rest
    wire.writer.write(small)
    assert b"penstock" in await wire.read(), "what is small always gets through"
    wire.writer.write(large)
    assert b"Too many large requests at once" in await wire.read()
    assert await wire.read() == b""
    wire.writer.close()
    await listener.stop()
    assert listener.bytes == limits.frames_bytes_max - 1_000


async def test_who_never_reads_is_cut_off_at_the_limit_and_what_it_held_goes_back(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "connection_write_bytes_max", 2_000_000)
    for name in ("answers_connection_bytes_max", "answers_client_bytes_max"):  # these would have its replies wait before
        monkeypatch.setattr(limits, name, limits.answers_bytes_max)
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock)
    await listener.start("127.0.0.1", 0)
    (large, held) = await engine.run(Push(QUEUE, [JobSpec(b'"' + b"x" * 1_000_000 + b'"'), JobSpec(b"1", priority=5)]))
    loop, log = asyncio.get_running_loop(), [""]

    def said() -> str:
        log[0] += capsys.readouterr().out
        return log[0]

    with socket.create_connection(("127.0.0.1", listener.port)) as deaf:
        deaf.setblocking(False)
        ask = frame({"cmd": "GetJob", "id": to_uuid(large.id)})
        await loop.sock_sendall(
            deaf, frame({"cmd": "PULL", "queue": QUEUE.name}) + ask * (limits.connection_commands_max - 1)
        )
        await until(lambda: "does not read its replies" in said())
        await until(lambda: not listener.connections)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while chunk := await loop.sock_recv(deaf, 1 << 20):
                received += len(chunk)
    assert received < 30_000_000, "far from all of its replies were kept for it"
    assert await state(engine, held) is State.WAITING
    assert listener.bytes == 0
    other = await connect(listener)
    other.writer.close()
    await listener.stop()


async def test_the_system_asks_silent_clients_whether_they_are_there(engine: Engine, clock: ManualClock) -> None:
    """Who is gone without a word never closes its connection; only so does what it holds go back."""
    listener = TcpListener(all_commands(engine), Authenticator(clock), clock)
    await listener.start("127.0.0.1", 0)
    wire = await connect(listener)
    (connection,) = listener.connections
    link: socket.socket = connection._transport.get_extra_info("socket")
    assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == limits.keepalive_s
    asked = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * link.getsockopt(
        socket.IPPROTO_TCP, socket.TCP_KEEPCNT
    )
    assert limits.keepalive_s + asked <= 2 * limits.keepalive_s, "found out within two minutes"
    wire.writer.close()
    await listener.stop()


async def test_who_shows_no_token_in_time_is_turned_away(engine: Engine, clock: ManualClock) -> None:
    listener = TcpListener(all_commands(engine), Authenticator(clock, ["secret"]), clock)
    await listener.start("127.0.0.1", 0)
    known, silent, talking = [await connect(listener) for _ in range(3)]
    known.writer.write(frame({"cmd": "Auth", "token": "secret"}))
    assert await known.read() == frame({"ok": True})
    await clock.advance(limits.auth_wait_ms_max - 1)
    talking.writer.write(frame({"cmd": "Auth", "token": "wrong"}))
    assert b"Invalid token" in await talking.read()
    await clock.advance(1)
    for each in (silent, talking):
        assert await each.read() == frame({"ok": False, "error": "Not authenticated", "code": "unauthorized"})
        assert await each.read() == b""
        each.writer.close()
    known.writer.write(frame({"cmd": "Hello"}))
    assert b"penstock" in await known.read()
    await clock.advance(100 * limits.auth_wait_ms_max)
    assert len(listener.connections) == 1
    known.writer.close()
    await listener.stop()


async def test_a_session_remembers_a_bounded_number_of_jobs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "connection_jobs_max", 2)
    session = JobsSession(all_commands(engine), Authenticator(engine.clock), namespace="mine")
    pushed = await session.handle({"cmd": "PUSHB", "queue": "q", "jobs": [{"data": n} for n in range(3)]})
    assert len((await session.handle({"cmd": "PULLB", "queue": "q", "count": 3}))["jobs"]) == 3
    await session.close()
    states = [(await session.handle({"cmd": "GetState", "id": each}))["state"] for each in pushed["ids"]]
    assert states == ["active", "waiting", "waiting"]
    elsewhere = JobsSession(all_commands(engine), Authenticator(engine.clock))
    assert (await elsewhere.handle({"cmd": "GetState", "id": pushed["ids"][0]}))["state"] == "unknown"


async def test_a_session_never_raises(engine: Engine) -> None:
    session = JobsSession(all_commands(engine), Authenticator(engine.clock))
    strange: list[Any] = [
        None,
        5,
        [],
        {},
        {"cmd": None},
        {"cmd": "PUSH", "queue": "q", "data": object()},
        {"cmd": "x" * 1_000},
    ]
    for message in strange:
        reply = await session.handle(message)
        assert reply["ok"] is False
        assert len(reply["error"]) < 200
    monkey = {"cmd": "GetJob", "id": "x", "reqId": ["not", "an", "id"]}
    assert await session.handle(monkey) == {"ok": False, "error": "Job not found", "code": "job_not_found"}


@pytest.mark.parametrize("digits", ["1" * 4_301, "-" + "9" * 5_000, "1" * 400])
def test_a_whole_number_of_very_many_digits_is_replied(server: ServerProcess, digits: str) -> None:
    """A job with one could be pulled over TCP, and there was never a reply."""
    with TcpClient(server.tcp_port) as client, server.client() as http:
        pushed = http.post(f"/queues/{client.queue}/jobs", content=f'{{"data": {{"n": {digits}}}}}')
        assert pushed.status_code == 200
        expected = float("-inf") if digits.startswith("-") else float("inf")
        assert client.ok("GetJob", id=pushed.json()["id"])["job"]["data"] == {"n": expected}
        assert client.ok("PULL", queue=client.queue)["job"]["data"] == {"n": expected}
