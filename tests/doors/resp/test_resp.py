"""Topics over the Redis protocol: every reply, and every rule of delivery, over real sockets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from penstock import __version__
from tests.doors.api import Api
from tests.support.resp import END, Refused, RespClient, unique, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

NOT_HELD = (
    b"-ERR %b is about a message that is held, and none is: RECEIVE one first. "
    b"Messages of an earlier connection were returned to their topic.\r\n"
)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RespClient]:
    with RespClient(server.resp_port) as opened:
        yield opened


@pytest.fixture
def other(server: ServerProcess, client: RespClient) -> Iterator[RespClient]:
    with RespClient(server.resp_port, client.topic) as opened:
        yield opened


def raw(client: RespClient, sent: bytes, size: int) -> bytes:
    client.socket.sendall(sent)
    received = b""
    while len(received) < size:
        received += client.socket.recv(65_536)
    return received


# Replies, byte for byte.


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"PING\r\n", b"+pong\r\n"),
        (b"ping anything at all\r\n", b"+pong\r\n"),
        (wire("PING", "x"), b"+pong\r\n"),
        (wire("pUbLiSh", "t-bytes", "m"), b"+OK\r\n"),
        (b'PUBLISH t-bytes "with \\"quotes\\""\r\n', b"+OK\r\n"),
        (wire("PUBLISH"), b"-invalid number of args, want: 3\r\n"),
        (wire("PUBLISH", "t"), b"-invalid number of args, want: 3\r\n"),
        (wire("PUBLISH", "t", "a", "b"), b"-invalid number of args, want: 3\r\n"),
        (wire("NoSuch", "x"), b"-unknown command 'NoSuch'\r\n"),
        (wire("FLUSHALL"), b"-unknown command 'FLUSHALL'\r\n"),
        (wire("MULTI"), b"-unknown command 'MULTI'\r\n"),
        (wire("unsubscribe", "t"), b"-unknown command 'unsubscribe'\r\n"),
        (wire("bad\r\nname"), b"-unknown command 'bad name'\r\n"),
        (wire(""), b"-unknown command ''\r\n"),
        (b"%2\r\n", b"-unknown command '%2'\r\n"),
        (wire("ECHO", "a\r\nb"), b"$4\r\na\r\nb\r\n"),
        (wire("ECHO"), b"-ERR wrong number of arguments for 'echo' command\r\n"),
        (wire("SELECT", "0"), b"+OK\r\n"),
        (wire("SELECT", "99999"), b"-ERR DB index is out of range: there is 0. AUTH chooses a namespace.\r\n"),
        (wire("ACK"), NOT_HELD % b"ACK"),
        (wire("DACK", "5"), NOT_HELD % b"DACK"),
        (wire("RESET"), b"+RESET\r\n"),
    ],
    ids=repr,
)
def test_replies_are_spelled_so(client: RespClient, sent: bytes, reply: bytes) -> None:
    assert raw(client, sent, len(reply)) == reply
    assert raw(client, b"ECHO next\r\n", 10) == b"$4\r\nnext\r\n"


@pytest.mark.parametrize("topic", ["", "a/b", "a\nb", "\0", "x" * 257, b"\xff"])
def test_a_topic_that_cannot_be_is_refused(client: RespClient, topic: str | bytes) -> None:
    assert client.refused("PUBLISH", topic, "m").startswith("failed to publish: invalid topic value")
    assert client.refused("PULL", topic).startswith("ERR invalid topic value")
    assert client.refused("SUBSCRIBE", topic).startswith("ERR invalid topic value")
    assert client.ok("PING") == b"pong"


def test_topics_are_those_of_the_namespace_sorted(client: RespClient, other: RespClient) -> None:
    client.ok("AUTH", unique("ns"), "x")
    assert client.call("TOPICS") == b"[]"
    client.socket.sendall(wire("PUBLISH", "b", 1) + wire("PUBLISH", "a", 1) + wire("PUBLISH", "c-c", 1) + wire("TOPICS"))
    assert client.many(4) == [b"OK", b"OK", b"OK", b"[a b c-c]"]
    client.ok("HELLO", 3)
    assert client.ok("TOPICS") == [b"a", b"b", b"c-c"]
    assert b"c-c" not in other.ok("TOPICS")


def test_info_says_what_clients_look_for(client: RespClient) -> None:
    lines = client.ok("INFO").decode().split("\r\n")
    assert lines[:3] == [f"redis_version:penstock_v{__version__}", "redis_mode:standalone", "loading:0"]
    assert int(dict(line.split(":") for line in lines if line)["connected_clients"]) >= 1
    assert client.ok("INFO", "server", "clients").decode().split("\r\n")[0] == lines[0]


# Subscribers.


def test_a_message_that_is_there_comes_at_once_and_alone(client: RespClient) -> None:
    client.publish(b"\0\xff raw bytes\r\n", "second")
    assert raw(client, wire("SUBSCRIBE", client.topic), 21) == b"$14\r\n\0\xff raw bytes\r\n\r\n"
    assert client.settle("ack") == b"second"


@pytest.mark.parametrize("message", [b"", b"null", b'{"a": 1}', b"  ", b'"text"', b"x" * 1_000_000])
def test_messages_come_out_byte_for_byte(client: RespClient, message: bytes) -> None:
    client.publish(message)
    assert client.subscribe() == message


def test_a_subscriber_waits_until_something_is_published(client: RespClient, other: RespClient) -> None:
    client.send("SUBSCRIBE", client.topic)
    other.publish("first")
    assert client.read() == b"first"
    assert client.call("ACK") == b"OK"
    other.publish("second")
    assert client.read() == b"second"


def test_messages_keep_their_order(client: RespClient) -> None:
    client.publish(*range(50))
    message = client.subscribe()
    for number in range(49):
        assert message == str(number).encode()
        message = client.settle("ACK")
    assert message == b"49"
    assert client.call("ACK") == b"OK"


def test_two_topics_know_nothing_of_each_other(client: RespClient, server: ServerProcess) -> None:
    with RespClient(server.resp_port) as elsewhere:
        client.publish("here")
        elsewhere.publish("there")
        assert (client.subscribe(), elsewhere.subscribe()) == (b"here", b"there")


def test_nack_goes_to_the_front_and_back_to_the_back(client: RespClient) -> None:
    client.publish("a", "b", "c")
    assert client.subscribe() == b"a"
    assert client.settle("NACK") == b"a"
    assert client.settle("BACK") == b"b"
    assert client.settle("ACK") == b"c"
    assert client.settle("ACK") == b"a"


def test_dack_waits_a_second_or_as_long_as_it_says(client: RespClient) -> None:
    client.publish("a", "b")
    assert client.subscribe() == b"a"
    assert client.settle("DACK") == b"b"
    assert client.settle("DACK", "0") == b"b"  # in front again at once
    assert client.settle("DACK", "-5") == b"b"
    assert client.settle("ACK") == b"a"  # after its second


def test_two_subscribers_share_a_topic(client: RespClient, other: RespClient) -> None:
    client.publish(1, 2)
    assert (client.subscribe(), other.subscribe()) == (b"1", b"2")
    for each in (client, other):
        assert each.call("ACK") == b"OK"
    with RespClient(client.socket.getpeername()[1], client.topic) as third:
        third.publish(3, 4)
    assert {client.read(), other.read()} == {b"3", b"4"}


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (("ACK", "1"), "invalid command"),
        (("DACK", "1", "2"), "invalid command"),
        (("SUBSCRIBE", "t"), "invalid command"),
        (("PUBLISH", "t", "m"), "invalid command"),
        (("NOPE",), "invalid ack command"),
        (("TOPICS",), "invalid ack command"),
        (("DACK", "x"), "invalid DACK duration argument at position [1]: DACK must be a whole number"),
        (("DACK", "1.5"), "invalid DACK duration argument at position [1]"),
        (("DACK", "99999999999"), "invalid DACK duration argument at position [1]"),
    ],
)
def test_anything_else_closes_the_connection_and_the_message_goes_to_the_front(
    client: RespClient, other: RespClient, said: tuple[str, ...], answer: str
) -> None:
    other.publish("first", "second")
    assert client.subscribe() == b"first"
    client.send(*said)
    refusal = client.read()
    assert isinstance(refusal, Refused)
    assert refusal.startswith(answer)
    assert client.read() is END
    assert other.subscribe() == b"first"


@pytest.mark.parametrize("words", [("SUBSCRIBE",), ("SUBSCRIBE", "a", "b")])
def test_one_topic_at_a_time(client: RespClient, words: tuple[str, ...]) -> None:
    client.socket.sendall(wire("PING") + wire(*words) + wire("PING"))
    assert client.rest() == b"+pong\r\n-invalid number of args, want: 2\r\n"


def test_what_is_malformed_closes_a_subscriber_too(client: RespClient, other: RespClient) -> None:
    client.publish("m")
    assert client.subscribe() == b"m"
    client.socket.sendall(b"*x\r\n")
    assert client.rest() == b"-ERR Protocol error: invalid multibulk length\r\n"
    assert other.subscribe() == b"m"
    other.call("ACK")
    other.socket.sendall(b"*1\r\n$2147483647\r\n")  # while it waits
    assert other.rest() == b"-ERR Protocol error: invalid bulk length\r\n"


def test_ping_quit_and_reset_are_answered_while_subscribed(client: RespClient, other: RespClient) -> None:
    client.send("SUBSCRIBE", client.topic)
    assert client.call("PING") == b"pong"  # while it waits
    other.publish("m")
    assert client.read() == b"m"
    assert client.call("PING", "x") == b"pong"  # while it holds one
    assert client.call("RESET") == b"RESET"
    assert client.pull()[0][2] == "m"  # it was given back, and this is no subscriber any more
    assert client.call("RESET") == b"RESET"
    assert client.subscribe() == b"m"
    assert client.call("QUIT") == b"OK"
    assert client.read() is END
    assert other.subscribe() == b"m"


def test_quit_while_waiting(client: RespClient) -> None:
    client.socket.sendall(wire("SUBSCRIBE", client.topic) + wire("QUIT"))
    assert client.rest() == b"+OK\r\n"


# Hanging up.


def test_hanging_up_gives_the_message_to_the_next_at_once(client: RespClient, other: RespClient) -> None:
    client.publish("a", "b")
    assert client.subscribe() == b"a"
    other.publish("c")
    assert other.subscribe() == b"b"
    other.send("ACK")
    client.socket.close()
    assert other.read() == b"OK"
    assert other.read() in (b"a", b"c")


def test_one_that_hangs_up_while_it_waits_takes_nothing(client: RespClient, other: RespClient) -> None:
    client.send("SUBSCRIBE", client.topic)
    assert client.call("PING") == b"pong"
    client.socket.close()
    with RespClient(other.socket.getpeername()[1], other.topic) as looking:
        looking.publish("m")
        assert other.subscribe() == b"m"


def test_sending_no_more_is_hanging_up_but_what_was_said_counts(client: RespClient, other: RespClient) -> None:
    client.publish("a", "b")
    assert client.subscribe() == b"a"
    client.send_last("ACK")
    assert client.read() == b"OK"
    assert client.read() is END
    assert other.subscribe() == b"b"


def test_a_message_that_was_sent_before_the_client_hung_up_goes_back(client: RespClient, other: RespClient) -> None:
    """A client that says ACK and hangs up later may have been sent the next message meanwhile: it goes to the next one."""
    client.publish("a", "b")
    assert client.subscribe() == b"a"
    assert client.settle("ACK") == b"b"
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read() is END
    assert other.subscribe() == b"b"


def test_hanging_up_right_behind_a_subscription_is_noticed(client: RespClient, other: RespClient) -> None:
    client.socket.sendall(wire("SUBSCRIBE", client.topic) + wire("ACK"))
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read() is END
    other.publish("m")
    assert other.subscribe() == b"m"


def test_what_is_said_ahead_is_done_in_order(client: RespClient) -> None:
    client.publish(*range(4))
    client.socket.sendall(wire("SUBSCRIBE", client.topic) + wire("ACK") * 2 + wire("BACK") + b"ACK\r\n")
    assert client.many(9) == [b"0", b"OK", b"1", b"OK", b"2", b"OK", b"3", b"OK", b"2"]


# With the other doors.


def test_what_is_published_here_is_a_job_there(client: RespClient, server: ServerProcess) -> None:
    client.publish('{"to": "ada"}', b"\xff")
    with server.client() as http:
        api = Api(http, client.topic)
        jobs = api.ok("POST", "{q}/jobs/pull-batch", {"count": 2})["jobs"]
        assert [job["data"] for job in jobs] == [{"to": "ada"}, "/w=="]
        for job in jobs:
            api.ok("POST", f"/jobs/{job['id']}/ack", {})
        api.push({"n": 1}, priority=1)
    assert client.subscribe() == b'{"n":1}'


def test_what_is_published_over_http_comes_out_here(client: RespClient, server: ServerProcess) -> None:
    with server.client() as http:
        assert http.post(f"/publish/{client.topic}", content=b"\0hello").status_code == 201
        assert client.subscribe() == b"\0hello"
        assert http.delete(f"/{client.topic}").status_code == 200
        assert client.call("ACK") == b"OK"
        http.post(f"/publish/{client.topic}", content=b"again")
        assert client.read() == b"again"
