"""Floods of commands that are refused: clients without a token are cut off, the others wait for themselves."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from msgpack import unpackb as unpacked  # type: ignore[import-untyped]
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock.access.authenticator import Authenticator
from penstock.access.identity import EVERYTHING, Identity
from penstock.core import limits
from penstock.core.errors import Unauthorized
from penstock.doors.jobs.tcp import TcpListener
from penstock.doors.resp.listener import RespListener
from penstock.doors.resp.parser import RespParser
from penstock.doors.topics.subscriber import Subscribers
from tests.security.test_tenants import frame
from tests.support.resp import wire
from tests.support.server import ServerProcess
from tests.support.tcp import all_commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

MOST = limits.stranger_commands_max


class Office(Authenticator):
    """Knows one client, which has rights in the namespace ``evil``."""

    async def identify(self, shown: str) -> Identity:
        if shown != "evil-token":
            raise Unauthorized
        return Identity(shown, {"evil": int(EVERYTHING)})


class Peer:
    """A client of a listener in this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def rest(self) -> bytes:
        """Return everything that the server sends until it closes the connection."""
        found = b""
        async with asyncio.timeout(20):
            try:
                while data := await self.reader.read(65_536):
                    found += data
            except ConnectionResetError:  # the server has not read all
                pass
        return found

    async def answer(self) -> Any:
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return unpacked(await self.reader.readexactly(size))

    async def ask(self, **fields: Any) -> Any:
        self.writer.write(frame(fields))
        return await self.answer()


@pytest.fixture
async def resp(engine: Engine, clock: ManualClock) -> AsyncIterator[Peer]:
    listener = RespListener(Subscribers(engine, 10_000), Office(clock, ["x"]))
    await listener.start("127.0.0.1", 0)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", listener.port))
    yield peer
    peer.writer.close()
    await listener.stop()


@pytest.fixture
async def tcp(engine: Engine, clock: ManualClock) -> AsyncIterator[Peer]:
    listener = TcpListener(all_commands(engine), Office(clock, ["x"]), clock)
    await listener.start("127.0.0.1", 0)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", listener.port))
    yield peer
    peer.writer.close()
    await listener.stop()


@pytest.fixture
async def courtesies(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Two namespaces are active. Return the namespaces whose work has let small requests of others go first."""
    found: list[str | None] = []
    real = engine.fair_share.give_way

    async def noted(namespace: str | None = None) -> None:
        found.append(namespace)
        await real(namespace)

    monkeypatch.setattr(engine.fair_share, "give_way", noted)
    engine.fair_share.begin("good")
    engine.fair_share.begin("evil")
    return found


# Clients without a token.


@pytest.mark.anyio
@pytest.mark.parametrize("command", [wire(*["x"] * 10), b"PING\r\n", wire("AUTH", "wrong"), wire("HELLO", "3")], ids=repr)
async def test_a_client_without_a_token_gets_few_answers_over_resp(resp: Peer, command: bytes) -> None:
    resp.writer.write(command * 3_000)
    *answers, last, end = (await resp.rest()).split(b"\r\n")
    assert len(answers) == MOST
    assert last == b"-NOAUTH Too many commands without authentication. Connect again, and send AUTH first."
    assert end == b""


@pytest.mark.anyio
async def test_a_client_with_a_token_is_counted_from_the_beginning_over_resp(resp: Peer) -> None:
    resp.writer.write(b"PING\r\n" * (MOST - 1) + wire("AUTH", "evil", "evil-token") + b"PING\r\n" * 100 + b"RESET\r\n")
    for _ in range(MOST - 1):
        assert (await resp.reader.readline()).startswith(b"-NOAUTH")
    assert await resp.reader.readline() == b"+OK\r\n"
    for _ in range(100):
        assert await resp.reader.readline() == b"+pong\r\n"
    assert await resp.reader.readline() == b"+RESET\r\n"
    resp.writer.write(b"PING\r\n" * 3_000)
    assert (await resp.rest()).count(b"\r\n") == MOST + 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    "command",
    [frame({"cmd": "Count", "queue": "v"}), frame({"cmd": "Auth", "token": "wrong"}), frame({"cmd": "No"}), b"\0\0\0\1\1"],
    ids=["Count", "Auth", "unknown", "malformed"],
)
async def test_a_client_without_a_token_gets_few_answers_over_tcp(tcp: Peer, command: bytes) -> None:
    tcp.writer.write(command * 1_000)
    answered, answers = await tcp.rest(), []
    while answered:
        size = int.from_bytes(answered[:4])
        answers.append(unpacked(answered[4 : 4 + size]))
        answered = answered[4 + size :]
    assert len(answers) <= MOST + 1
    assert all(answer["ok"] is False for answer in answers)


@pytest.mark.anyio
async def test_a_client_is_told_why_it_is_cut_off_over_tcp(tcp: Peer) -> None:
    for _ in range(MOST):
        assert (await tcp.ask(cmd="Ping"))["error"] == "Not authenticated"
    last = await tcp.ask(cmd="Ping")
    assert last["error"] == "Not authenticated. Too many commands without a token: connect again, and send Auth first."
    assert await tcp.rest() == b""


def test_a_client_without_a_token_gets_few_answers_over_websocket(tmp_path: Path) -> None:
    env = {"AUTH_TOKENS": "secret"}
    with ServerProcess(tmp_path / "data", env=env) as server, connect(f"ws{server.url[4:]}/ws") as link:
        errors = []
        try:
            for number in range(1_000):
                link.send('{"cmd":"Subscribe"}' if number % 2 else '{"cmd":"Count","queue":"v"}')
            while True:
                errors.append(json.loads(link.recv(timeout=20))["error"])
        except ConnectionClosed:
            pass
        assert len(errors) <= MOST + 1
        assert link.close_code in (1008, 1006)


@pytest.mark.anyio
async def test_clients_without_a_token_have_one_line_with_a_small_share(engine: Engine) -> None:
    waiting = [place for _ in range(limits.share_turn_requests) if (place := engine.fair_share.begin("")) is not None]
    assert len(waiting) == limits.share_turn_requests - limits.share_turn_strangers
    assert engine.fair_share.begin("good") is None
    assert not engine.fair_share.shared  # they do not count as a namespace
    turns = []
    while waiting:
        await asyncio.sleep(0)
        turns.append(sum(place.done() for place in waiting))
        waiting = [place for place in waiting if not place.done()]
    assert max(turns) == limits.share_turn_strangers


# Clients with a token of another namespace.


@pytest.mark.anyio
async def test_a_namespace_without_any_right_cannot_be_chosen_over_resp(resp: Peer) -> None:
    error = b"-NOPERM This token has no permission in the namespace 'good'."
    for words in (("AUTH", "good", "evil-token"), ("HELLO", "3", "AUTH", "good", "evil-token")):
        resp.writer.write(wire(*words))
        assert (await resp.reader.readline()).startswith(error)
    resp.writer.write(wire("PING") + wire("AUTH", "evil", "evil-token") + wire("AUTH", "good", "evil-token") + wire("PING"))
    assert (await resp.reader.readline()).startswith(b"-NOAUTH")
    assert await resp.reader.readline() == b"+OK\r\n"
    assert (await resp.reader.readline()).startswith(error)
    assert await resp.reader.readline() == b"+pong\r\n"  # the client is still in its own namespace


@pytest.mark.anyio
async def test_a_namespace_without_any_right_cannot_be_chosen_over_tcp(tcp: Peer) -> None:
    refused = await tcp.ask(cmd="Auth", token="evil-token", namespace="good")
    assert refused["code"] == "forbidden"
    assert refused["error"].startswith("This token has no permission in the namespace 'good'.")
    assert (await tcp.ask(cmd="Ping"))["error"] == "Not authenticated"
    assert (await tcp.ask(cmd="Auth", token="evil-token", namespace="evil"))["ok"] is True


@pytest.mark.anyio
@pytest.mark.parametrize(
    "command",
    [frame({"cmd": "Count", "queue": "v"}), frame({"cmd": "No"}), frame({"no": "cmd"}), b"\0\0\0\1\1"],
    ids=["forbidden", "unknown", "no command", "malformed"],
)
async def test_refused_commands_over_tcp_wait_for_their_turn(
    engine: Engine, tcp: Peer, courtesies: list[str | None], command: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ``limits.share_turn_requests`` of a namespace begin in a turn, and many let small requests of others go first."""
    waits: list[str] = []
    real = engine.fair_share.begin

    def noted(namespace: str, requests: int = 1) -> asyncio.Future[None] | None:
        place = real(namespace, requests)
        if place is not None:
            waits.append(namespace)
        return place

    monkeypatch.setattr(engine.fair_share, "begin", noted)
    assert (await tcp.ask(cmd="Auth", token="evil-token"))["ok"] is True  # it has no right in the default namespace
    tcp.writer.write(command * 40)
    for _ in range(40):
        assert (await tcp.answer())["ok"] is False
    assert set(waits) == {"evil"}
    assert set(courtesies) == {"evil"}


# Commands that are answered at once.


@pytest.mark.anyio
async def test_reads_over_tcp_that_are_answered_at_once_let_others_go_first(tcp: Peer, courtesies: list[str | None]) -> None:
    assert (await tcp.ask(cmd="Auth", token="evil-token", namespace="evil"))["ok"] is True
    assert (await tcp.ask(cmd="Count", queue="q"))["ok"] is True
    assert courtesies == []  # a single command does not wait
    tcp.writer.write(frame({"cmd": "Count", "queue": "q"}) * 40)
    for _ in range(40):
        assert (await tcp.answer())["ok"] is True
    assert len(courtesies) >= 20
    assert set(courtesies) == {"evil"}


@pytest.mark.anyio
@pytest.mark.parametrize("command", [b"PING\r\n", wire(*["X"] * 9)], ids=["PING", "unknown"])
async def test_commands_that_are_answered_at_once_let_others_go_first(
    resp: Peer, courtesies: list[str | None], command: bytes
) -> None:
    resp.writer.write(wire("AUTH", "evil", "evil-token"))
    assert await resp.reader.readline() == b"+OK\r\n"
    resp.writer.write(command)
    await resp.reader.readline()
    assert courtesies == []  # a single command does not wait
    resp.writer.write(command * 1_000)
    for _ in range(1_000):
        await resp.reader.readline()
    assert len(courtesies) >= 1_000 // limits.resp_shared_commands - 1
    assert set(courtesies) == {"evil"}


def test_commands_with_many_words_are_taken_one_by_one() -> None:
    few, many = [b"x"] * limits.resp_few_args, [b"x"] * (limits.resp_few_args + 1)
    parser = RespParser()
    for words in (few, few, many, many, many, few, few):
        parser.receive(wire(*words))
    assert [parser.take(limits.resp_shared_commands) for _ in range(5)] == [[few, few, many], [many], [many], [few, few], []]
