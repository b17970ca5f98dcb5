"""Who may do what over the Redis protocol: tokens, rights, namespaces, strangers, rate limits, TLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.access.authenticator import Authenticator
from penstock.access.identity import EVERYTHING, Identity, Right
from penstock.core import limits
from penstock.core.lifecycle import State
from penstock.doors.permissions import RESP
from penstock.doors.resp.command_table import COMMANDS, Kind
from penstock.doors.resp.connection_commands import AFTER, NOW
from penstock.doors.resp.listener import RespListener
from penstock.doors.topics.subscriber import Subscribers
from tests.support.engines import QUEUE, push, state
from tests.support.issuer import SECRET, certificate, token
from tests.support.resp import END, RespClient, unique, wire
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

WRONGPASS = "WRONGPASS invalid username-password pair or user is disabled."
NOAUTH = "NOAUTH Authentication required."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"AUTH_TOKENS": "secret,other", "JWT_SECRET": SECRET}
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env=env) as running:
        yield running


@pytest.fixture
def stranger(guarded: ServerProcess) -> Iterator[RespClient]:
    with RespClient(guarded.resp_port) as opened:
        yield opened


# Tokens.


def test_strangers_may_only_introduce_themselves(stranger: RespClient) -> None:
    for words in (("PING",), ("PUBLISH", "t", "m"), ("INFO",), ("CLIENT", "ID"), ("NOPE",), ("SUBSCRIBE", "t"), ("ACK",)):
        assert stranger.refused(*words) == NOAUTH
    assert stranger.refused("AUTH", "wrong") == WRONGPASS
    assert stranger.refused("AUTH", "default", "wrong") == WRONGPASS
    assert stranger.refused("AUTH") == "ERR wrong number of arguments for 'auth' command"
    assert stranger.refused("AUTH", "a", "b", "c") == "ERR wrong number of arguments for 'auth' command"
    assert stranger.refused("HELLO", "3").startswith("NOAUTH HELLO must be called with the client already authenticated")
    assert stranger.refused("HELLO", "3", "AUTH", "default", "wrong") == WRONGPASS
    assert stranger.refused("PING") == NOAUTH
    assert stranger.call("AUTH", "secret") == b"OK"
    stranger.publish("x" * 100_000)
    assert stranger.refused("AUTH", "wrong") == WRONGPASS
    assert stranger.call("PING") == b"pong"  # it is still known
    assert stranger.call("RESET") == b"RESET"
    assert stranger.refused("PING") == NOAUTH
    assert stranger.call("QUIT") == b"OK"
    assert stranger.read() is END


def test_hello_with_a_token(stranger: RespClient) -> None:
    assert stranger.ok("HELLO", "3", "AUTH", "acme", "other", "SETNAME", "me")[b"proto"] == 3
    assert stranger.ok("CLIENT", "GETNAME") == b"me"
    assert b"user=acme" in stranger.ok("CLIENT", "INFO")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"*11\r\n", b"unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", b"unauthenticated bulk length"),
        (b"*1\r\n$2147483647\r\n", b"unauthenticated bulk length"),
        (b"x" * 17_000, b"too big inline request"),
    ],
)
def test_strangers_may_send_little(stranger: RespClient, sent: bytes, error: bytes) -> None:
    stranger.socket.sendall(sent)
    assert stranger.rest() == b"-ERR Protocol error: " + error + b"\r\n"


def test_what_comes_right_behind_a_token_may_be_large(stranger: RespClient, guarded: ServerProcess) -> None:
    large = wire("PUBLISH", stranger.topic, "x" * 100_000)
    stranger.socket.sendall(wire("AUTH", "secret") + large + large)
    assert stranger.many(3) == [b"OK"] * 3
    with RespClient(guarded.resp_port) as another:
        another.socket.sendall(wire("AUTH", "wrong") + large)
        assert another.read() == WRONGPASS
        assert another.read() == "ERR Protocol error: unauthenticated bulk length"
        assert another.read() is END


@pytest.mark.anyio
async def test_a_stranger_has_ten_seconds(engine: Engine, clock: ManualClock) -> None:
    listener = RespListener(Subscribers(engine, 10_000), Authenticator(clock, ["secret"]))
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    friend, friends = await asyncio.open_connection("127.0.0.1", listener.port)
    friends.write(wire("AUTH", "secret"))
    assert await friend.readline() == b"+OK\r\n"
    await clock.advance(limits.auth_wait_ms_max)
    assert await reader.read() == b"-NOAUTH Authentication required.\r\n"
    friends.write(wire("PING"))
    assert await friend.readline() == b"+pong\r\n"
    writer.close()
    friends.close()
    await listener.stop()


# Namespaces.


def test_without_tokens_the_user_name_chooses_the_namespace(server: ServerProcess) -> None:
    with RespClient(server.resp_port) as client, RespClient(server.resp_port, client.topic) as other:
        assert client.call("AUTH", "whatever") == b"OK"
        assert client.call("AUTH", unique("ns"), "whatever") == b"OK"
        client.publish("mine")
        assert other.pull() == []
        assert len(client.pull()) == 1
        assert client.refused("AUTH", "elsewhere", "x").startswith("ERR Choose the namespace before the first command")
        assert client.call("RESET") == b"RESET"  # what it held went back
        client.ok("HELLO", 2, "AUTH", "default", "x")
        assert client.pull() == []
        for bad in ("", "with space", "x" * 129, b"\xff"):
            assert client.refused("AUTH", bad, "x").startswith("ERR The user name is the namespace")


# Rights.


def test_every_command_has_a_right_and_a_handler() -> None:
    listed = {name for names in RESP.values() for name in names}
    assert listed == {name.decode() for name in COMMANDS}
    assert {entry.name for entry in COMMANDS.values() if entry.kind is Kind.NOW} == set(NOW)
    after = {entry.name for entry in COMMANDS.values() if entry.kind is Kind.AFTER}
    assert after == {*AFTER, "SUBSCRIBE", "QUIT"}


CALLS = {
    "PUBLISH": ("PUBLISH", "t", "m"),
    "PUSH": ("PUSH", "t", "m"),
    "PULL": ("PULL", "t-empty"),
    "DONE": ("DONE", "nobody", "x"),
    "FAIL": ("FAIL", "nobody", "x"),
    "TOPICS": ("TOPICS",),
    "INFO": ("INFO",),
    "ACK": ("ACK",),
}
GIVEN = {
    "acme:read": Right.LOOK | Right.TAKE,
    "acme:write": Right.PRODUCE | Right.SETTLE,
    "acme:produce": Right.LOOK | Right.PRODUCE,
    "acme:consume": Right.LOOK | Right.TAKE | Right.SETTLE,
    "acme:admin": Right.LOOK | Right.PRODUCE | Right.TAKE | Right.SETTLE,
}


@pytest.mark.parametrize("scope", GIVEN)
@pytest.mark.parametrize("name", CALLS)
def test_a_token_may_what_its_scope_says(stranger: RespClient, name: str, scope: str) -> None:
    assert stranger.call("AUTH", "acme", token(scopes=[scope])) == b"OK"
    needed = next(right for right, names in RESP.items() if name in names)
    reply = stranger.call(*CALLS[name])
    assert str(reply).startswith("NOPERM") == (needed not in GIVEN[scope]), reply
    assert stranger.ok("PING") == b"pong"


@pytest.mark.parametrize("scope", ["acme:read", "acme:write", "acme:produce"])
def test_a_subscriber_needs_to_take_and_to_settle(stranger: RespClient, scope: str) -> None:
    stranger.ok("AUTH", "acme", token(scopes=[scope]))
    assert stranger.refused("SUBSCRIBE", "t") == (
        "NOPERM This token has no permission for this in the namespace 'acme'. It needs the scope 'acme:consume'."
    )
    assert stranger.refused("RECEIVE", "t").startswith("NOPERM ")
    stranger.ok("AUTH", "acme", token(scopes=["acme:consume"]))
    assert stranger.call("RECEIVE", unique()) is None
    stranger.send("SUBSCRIBE", unique())
    assert stranger.call("PING") == b"pong"


def test_a_token_of_another_namespace_sees_nothing(stranger: RespClient, guarded: ServerProcess) -> None:
    stranger.ok("AUTH", "acme", "secret")
    stranger.publish("private")
    with RespClient(guarded.resp_port, stranger.topic) as other:
        other.ok("AUTH", "other", token(scopes=["other:admin"]))
        assert other.pull() == []
        assert other.call("TOPICS") != stranger.call("TOPICS")
        assert stranger.topic.encode() not in other.ok("TOPICS")
        ((job_id, lease, _),) = stranger.pull()
        assert other.refused("DONE", job_id, lease).startswith("JOB_NOT_FOUND")


def test_a_token_that_has_expired_says_so(stranger: RespClient) -> None:
    assert stranger.refused("AUTH", token(exp=1)) == "WRONGPASS The token has expired. Get a new one."


@pytest.mark.anyio
async def test_a_subscription_ends_with_its_token_and_gives_its_message_back(engine: Engine, clock: ManualClock) -> None:
    class Office(Authenticator):
        async def identify(self, shown: str) -> Identity:
            return Identity(shown, {"*": int(EVERYTHING)}, clock.now_ms() + int(shown))

    subscribers = Subscribers(engine, 10_000)
    listener = RespListener(subscribers, Office(clock, ["x"]))
    await listener.start("127.0.0.1", 0)
    job = await push(engine, data=b"1")
    for message in (b"$1\r\n1\r\n", b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        topic, ping = (QUEUE.name, b"") if message else ("empty", wire("PING"))
        writer.write(wire("AUTH", "5000") + wire("SUBSCRIBE", topic) + ping)
        assert await reader.readexactly(5) == b"+OK\r\n"
        assert await reader.readexactly(7) == (message or b"+pong\r\n")
        await clock.advance(4_999)
        assert await state(engine, job) is (State.ACTIVE if message else State.WAITING)
        await clock.advance(1)
        assert await reader.read() == b"-NOAUTH The token has expired. Get a new one, and connect again.\r\n"
        assert await state(engine, job) is State.WAITING
        writer.close()
    await listener.stop()
    await subscribers.close()


@pytest.mark.anyio
async def test_a_received_message_goes_back_when_the_token_ends(engine: Engine, clock: ManualClock) -> None:
    class Office(Authenticator):
        async def identify(self, shown: str) -> Identity:
            return Identity(shown, {"*": int(EVERYTHING)}, clock.now_ms() + int(shown))

    subscribers = Subscribers(engine, 10_000)
    listener = RespListener(subscribers, Office(clock, ["x"]))
    await listener.start("127.0.0.1", 0)
    job = await push(engine, data=b"1")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    for _ in range(2):  # with another token, it goes on
        writer.write(wire("AUTH", "5000") + wire("RECEIVE", QUEUE.name))
        assert await reader.readexactly(12) == b"+OK\r\n$1\r\n1\r\n"
        await clock.advance(4_999)
        assert await state(engine, job) is State.ACTIVE
        await clock.advance(1)
        assert await state(engine, job) is State.WAITING
        writer.write(wire("ACK"))
        assert (await reader.readline()).startswith(b"-NOAUTH ")
    writer.close()
    await listener.stop()
    await subscribers.close()


# How often, and how safely.


def test_commands_count_against_the_rate_limit(tmp_path: Path) -> None:
    env = {"RATE_LIMIT_MAX_REQUESTS": "10", "RATE_LIMIT_WINDOW_MS": "3600000"}
    with ServerProcess(tmp_path / "data", env=env) as server, RespClient(server.resp_port) as client:
        client.socket.sendall(wire("PUBLISH", "t", "m") * 5 + wire("PING") * 4 + wire("SUBSCRIBE", "t") + wire("ACK"))
        assert client.many(10) == [b"OK"] * 5 + [b"pong"] * 4 + [b"m"]
        assert client.read() == "RATE_LIMITED Rate limit exceeded"
        assert client.refused("ACK") == "RATE_LIMITED Rate limit exceeded"  # it still has its message


def test_a_quota_lets_through_what_it_allows_of_a_pipeline(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", env={"NAMESPACE_QUOTAS": "acme:10"}) as server,
        RespClient(server.resp_port) as client,
    ):
        client.ok("AUTH", "acme", "x")
        client.socket.sendall(wire("PUBLISH", client.topic, "m") * 15 + wire("PUSH", client.topic, "m"))
        replies = client.many(16)
        assert replies.count(b"OK") == 10
        assert all(str(reply).startswith("failed to publish: ") for reply in replies[:15] if reply != b"OK")
        assert str(replies[15]).startswith("QUOTA_EXCEEDED ")
        assert len(client.pull("COUNT", 100)) == 10


def test_over_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    env = {"TLS_CERT_FILE": str(cert), "TLS_KEY_FILE": str(key)}
    with ServerProcess(tmp_path / "data", env=env) as server:
        encrypted: Any = redis.Redis("localhost", server.resp_port, ssl=True, ssl_ca_certs=str(cert))
        with encrypted:
            assert encrypted.ping() is True
            assert encrypted.execute_command("PUBLISH", "t", "x" * 1_000_000) == b"OK"
            assert encrypted.execute_command("PULL", "t")[0][2] == b"x" * 1_000_000
        with RespClient(server.resp_port) as plain:
            plain.line("PING")
            assert b"pong" not in plain.rest()
