"""RECEIVE: miniqueue's consumers as plain commands with one reply each, over real sockets."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from tests.doors.api import Api
from tests.support.resp import END, RespClient, wire
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = ("WAIT", 30_000)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RespClient]:
    with RespClient(server.resp_port) as opened:
        yield opened


@pytest.fixture
def other(server: ServerProcess, client: RespClient) -> Iterator[RespClient]:
    with RespClient(server.resp_port, client.topic) as opened:
        yield opened


def test_each_command_has_one_reply(client: RespClient) -> None:
    client.publish("a", b"\xff\x00", "")
    for message in (b"a", b"\xff\x00", b""):
        assert client.ok("RECEIVE", client.topic) == message
        assert client.ok("ACK") == b"OK"
        assert client.ok("PING") == b"pong"  # nothing comes unasked
    assert client.call("RECEIVE", client.topic) is None


def test_a_null_in_both_protocols(client: RespClient) -> None:
    client.send("RECEIVE", client.topic)
    assert client.socket.recv(100) == b"$-1\r\n"
    client.ok("HELLO", 3)
    client.send("RECEIVE", client.topic)
    assert client.socket.recv(100) == b"_\r\n"


def test_nack_back_and_dack(client: RespClient) -> None:
    client.publish("a", "b", "c")
    assert client.ok("RECEIVE", client.topic) == b"a"
    assert client.ok("NACK") == b"OK"
    assert client.ok("RECEIVE", client.topic) == b"a"
    assert client.ok("BACK") == b"OK"
    assert client.ok("RECEIVE", client.topic) == b"b"
    assert client.ok("DACK", 3600) == b"OK"
    assert client.ok("RECEIVE", client.topic) == b"c"
    assert client.ok("DACK", -1) == b"OK"  # due at once
    assert client.ok("RECEIVE", client.topic, "WITHDACKS") == [b"c", 1]
    assert client.ok("dack", 0) == b"OK"
    assert client.ok("RECEIVE", client.topic, "WITHDACKS") == [b"c", 2]
    assert client.ok("ACK") == b"OK"
    assert client.ok("RECEIVE", client.topic) == b"a"


def test_a_loop_of_one_command(client: RespClient) -> None:
    client.publish(*range(5))
    assert [client.call("RECEIVE", client.topic, "ACK") for _ in range(6)] == [b"0", b"1", b"2", b"3", b"4", None]
    assert client.refused("ACK").startswith("ERR ACK is about a message that is held")
    assert client.pull() == []


def test_acknowledging_one_topic_and_receiving_of_another(client: RespClient) -> None:
    client.publish("a")
    client.ok("PUBLISH", f"{client.topic}-2", "b")
    assert client.ok("RECEIVE", client.topic) == b"a"
    assert client.ok("RECEIVE", f"{client.topic}-2", "ACK") == b"b"
    assert client.ok("NACK") == b"OK"
    assert client.pull() == []


def test_one_message_at_a_time(client: RespClient, other: RespClient) -> None:
    client.publish("a", "b")
    assert client.ok("RECEIVE", client.topic) == b"a"
    held = "failed to get next value: A message is held already. Settle it before you request the next one."
    assert client.refused("RECEIVE", client.topic) == held
    assert client.refused("RECEIVE", f"{client.topic}-2") == held
    assert client.refused("SUBSCRIBE", client.topic).startswith("ERR A received message is held")
    assert client.refused("AUTH", "elsewhere", "x").startswith("ERR Choose the namespace before the first command")
    assert other.ok("RECEIVE", client.topic) == b"b"
    assert client.ok("ACK") == b"OK"  # the connection lives
    assert client.call("RECEIVE", client.topic) is None


def test_it_waits(client: RespClient, other: RespClient) -> None:
    client.send("RECEIVE", client.topic, *WAIT)
    client.send("ACK")
    other.publish("late")
    assert client.many(2) == [b"late", b"OK"]
    assert client.call("RECEIVE", client.topic, "WAIT", 1) is None


def test_a_pipeline_is_answered_in_order(client: RespClient) -> None:
    client.publish("a", "b")
    receive = wire("RECEIVE", client.topic)
    client.socket.sendall(receive + wire("ACK") + receive + wire("NACK") + receive + wire("PING") + wire("ACK") + receive)
    assert client.many(8) == [b"a", b"OK", b"b", b"OK", b"b", b"pong", b"OK", None]


@pytest.mark.parametrize("how", ["close", "half", "RESET", "QUIT"])
def test_however_a_connection_ends_the_message_goes_to_the_front(
    client: RespClient, other: RespClient, server: ServerProcess, how: str
) -> None:
    client.publish("a", "b")
    assert client.ok("RECEIVE", client.topic) == b"a"
    if how == "close":
        client.socket.close()
    elif how == "half":
        client.socket.shutdown(socket.SHUT_WR)
        assert client.read() is END
    else:
        client.ok(how)
    with server.client() as http:
        while Api(http, client.topic).counts()["active"]:  # a closed connection is noticed a little later
            time.sleep(0.01)
    assert other.ok("RECEIVE", client.topic) == b"a"


def test_what_was_said_before_hanging_up_is_done(client: RespClient, other: RespClient) -> None:
    client.publish("a", "b")
    assert client.ok("RECEIVE", client.topic) == b"a"
    client.send_last("ACK")
    assert client.read() == b"OK"
    assert client.read() is END
    assert other.ok("RECEIVE", client.topic) == b"b"


def test_a_client_that_hangs_up_while_it_waits_takes_nothing(client: RespClient, other: RespClient) -> None:
    client.send_last("RECEIVE", client.topic, *WAIT)
    assert client.read() is None
    assert client.read() is END
    other.publish("a")
    assert other.ok("RECEIVE", client.topic) == b"a"


def test_what_is_wrong_is_said_and_the_connection_lives(client: RespClient) -> None:
    client.publish("a")
    assert client.refused("RECEIVE") == "ERR wrong number of arguments for 'receive' command"
    assert client.refused("RECEIVE", "x" * 257).startswith("ERR ")
    assert client.refused("RECEIVE", client.topic, "WAIT").startswith("ERR syntax error near 'WAIT'")
    assert client.refused("RECEIVE", client.topic, "COUNT", 2).startswith("ERR syntax error near 'COUNT'")
    longest = f"ERR WAIT must be a whole number from 0 to {limits.claim_wait_ms_max}"
    assert client.refused("RECEIVE", client.topic, "WAIT", limits.claim_wait_ms_max + 1) == longest
    assert client.ok("RECEIVE", client.topic) == b"a"
    assert client.refused("DACK", "soon").startswith("ERR invalid DACK duration argument at position [1]")
    assert client.refused("ACK", "1") == "ERR wrong number of arguments for 'ack' command"
    assert client.ok("ACK") == b"OK"
    for word in ("ACK", "NACK", "BACK", "DACK"):
        assert client.refused(word).startswith(f"ERR {word} is about a message that is held")


def test_a_message_that_was_deleted_meanwhile(client: RespClient, server: ServerProcess) -> None:
    client.publish("a", "b")
    assert client.ok("RECEIVE", client.topic) == b"a"
    with server.client() as http:
        assert http.delete(f"/{client.topic}").status_code == 200
    assert client.refused("NACK").startswith("failed to nack: ")
    client.publish("c")
    assert client.ok("RECEIVE", client.topic) == b"c"
    with server.client() as http:
        assert http.delete(f"/{client.topic}").status_code == 200
    assert client.ok("ACK") == b"OK"


def test_it_is_a_job_at_the_other_doors(client: RespClient, server: ServerProcess) -> None:
    client.publish("a")
    assert client.ok("RECEIVE", client.topic) == b"a"
    with server.client() as http:
        api = Api(http, client.topic)
        assert api.counts()["active"] == 1
        assert client.ok("ACK") == b"OK"
        assert api.counts()["active"] == 0


@pytest.mark.parametrize("library", ["ioredis", "ioredis(bullmq)", "node-redis"])
def test_libraries_that_keep_subscribe_for_themselves_are_told_what_to_send(client: RespClient, library: str) -> None:
    client.publish("a")
    client.ok("CLIENT", "SETINFO", "LIB-NAME", library)
    assert "Send RECEIVE topic" in client.refused("SUBSCRIBE", client.topic)
    assert client.ok("RECEIVE", client.topic) == b"a"
    client.ok("RESET")
    assert client.subscribe() == b"a"


def test_what_was_held_comes_back_after_a_crash(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", env={"PENSTOCK_TOPICS_LEASE_MS": "300"}).start()
    with RespClient(server.resp_port) as client:
        client.publish("a")
        assert client.ok("RECEIVE", client.topic) == b"a"
        server.kill()
    with ServerProcess(tmp_path / "data") as server, RespClient(server.resp_port, client.topic) as again:
        assert again.ok("RECEIVE", client.topic, *WAIT) == b"a"
