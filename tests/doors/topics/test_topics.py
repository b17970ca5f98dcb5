"""The topics door over HTTP: every behaviour of the original, with curl as the client, over HTTP/2 and HTTP/1.1."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import redis

from penstock.core import limits
from tests.support.curl import CurlStream, needs_curl
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

pytestmark = needs_curl
_numbers = itertools.count()


class Topic:
    """One topic of a server, in short words."""

    def __init__(self, url: str, client: httpx2.Client, name: str | None = None) -> None:
        self.url = url
        self.http = client
        self.name = name or f"published{os.getpid()}-{next(_numbers)}"

    def publish(self, *messages: bytes, **headers: str) -> None:
        for message in messages:
            response = self.http.post(f"/publish/{quote(self.name, safe='')}", content=message, headers=headers)
            assert response.status_code == 201, response.text
            assert response.content == b""

    def subscribe(self, *options: str, **more: Any) -> CurlStream:
        return CurlStream(f"{self.url}/subscribe/{quote(self.name, safe='')}", *options, **more)

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.http.get(f"/queues/{self.name}/counts").json()["counts"]
        return counts

    def delete(self) -> None:
        response = self.http.delete(f"/{quote(self.name, safe='')}")
        assert (response.status_code, response.content) == (200, b"")


@pytest.fixture
def topic(server: ServerProcess) -> Iterator[Topic]:
    with server.client() as client:
        yield Topic(server.url, client)


@pytest.fixture(params=["--http2-prior-knowledge", "--http1.1"])
def http(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


# Publishing.


@pytest.mark.parametrize("message", [b"helloworld", b"", b'{"a":1}', b"\x00\xff\r\n", b'"dGVzdA=="', b" 1 ", "ü".encode()])
def test_bytes_come_out_as_they_went_in(topic: Topic, message: bytes) -> None:
    topic.publish(message)
    stream = topic.subscribe()
    line = stream.ask("INIT")
    assert stream.status == 200
    if message:
        assert set(line) == {"msg"}, "nothing that is empty or zero is told"
        topic.publish(b"next")
        stream.say("NACK")
        assert stream.message() == message
    else:
        assert line == {}


def test_a_message_may_be_as_large_as_a_payload_and_no_larger(topic: Topic) -> None:
    largest = b"x" * limits.payload_bytes_max
    topic.publish(largest)
    response = topic.http.post(f"/publish/{topic.name}", content=largest + b"x")
    assert response.status_code == 413
    assert "too large" in response.json()["error"]
    assert topic.subscribe().get("INIT") == largest


def test_a_publish_over_http2_with_curl(topic: Topic) -> None:
    stream = CurlStream(f"{topic.url}/publish/{topic.name}", body="helloworld")
    with stream:
        assert stream.rest() == []
        assert stream.status == 201
    assert topic.subscribe().get("INIT") == b"helloworld"


@pytest.mark.parametrize("name", ["with-dash", "ünï", "a b", "per%cent", "queues", "x" * limits.name_chars_max, "?&#"])
def test_a_topic_may_have_nearly_any_name(server: ServerProcess, name: str) -> None:
    with server.client() as client:
        topic = Topic(server.url, client, name)
        topic.publish(b"1")
        stream = topic.subscribe()
        assert stream.get("INIT") == b"1"
        stream.say("ACK")
        topic.publish(b"2")
        assert stream.message() == b"2"
        stream.say("ACK")
        stream.finish()


@pytest.mark.parametrize("name", ["%00", "a%0Ab", "x" * (limits.name_chars_max + 1), "%7F", "%ff", "a%fe"])
def test_a_name_that_cannot_be_is_refused(topic: Topic, name: str) -> None:
    for path in (f"/publish/{name}", f"/subscribe/{name}"):
        response = topic.http.post(path, content=b"x")
        assert response.status_code == 400
        assert "invalid topic value" in response.json()["error"]


# The stream.


def test_init_gives_the_first_and_each_ack_the_next(topic: Topic, http: str) -> None:
    topic.publish(b"1", b"2", b"3")
    stream = topic.subscribe(http=http)
    assert [stream.get("INIT"), stream.get("ACK"), stream.get("ACK")] == [b"1", b"2", b"3"]


def test_headers_come_before_the_first_message(topic: Topic, http: str) -> None:
    stream = topic.subscribe(http=http)
    stream.say("NOTHING")
    assert stream.line() == {"error": "unrecognised command received"}
    assert stream.status == 200
    stream.say("INIT")
    topic.publish(b"1")
    assert stream.message() == b"1"


def test_a_subscriber_waits_for_what_is_published_later(topic: Topic, http: str) -> None:
    stream = topic.subscribe(http=http)
    stream.say("INIT")
    topic.publish(b"1")
    assert stream.message() == b"1"
    stream.say("ACK")
    topic.publish(b"2")
    assert stream.message() == b"2"


@pytest.mark.parametrize("between", ["", " ", "\n", "\r\n\t ", "\n\n"])
def test_commands_need_no_white_space_between_them(topic: Topic, between: str) -> None:
    topic.publish(b"1", b"2", b"3")
    stream = topic.subscribe()
    stream.send(between.join(['"INIT"', '"ACK"', '"A\\u0043K"']))
    assert [stream.message() for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_command_may_come_in_pieces(topic: Topic) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe()
    assert stream.ask("x")["error"]
    for piece in ('"IN', 'IT"', '  "', "ACK", '"'):
        stream.send(piece)
    assert [stream.message(), stream.message()] == [b"1", b"2"]


def test_a_second_init_is_refused_and_the_stream_goes_on(topic: Topic) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe()
    stream.get("INIT")
    assert stream.ask("INIT") == {"error": "error getting next value for consumer"}
    assert stream.get("ACK") == b"2"


def test_an_ack_for_nothing_gives_the_next(topic: Topic) -> None:
    topic.publish(b"1")
    assert topic.subscribe().get("ACK") == b"1"


def test_an_ack_for_nothing_is_about_nobody_elses_message(topic: Topic) -> None:
    topic.publish(b"1", b"2")
    holder, other = topic.subscribe(), topic.subscribe()
    assert holder.get("INIT") == b"1"
    assert other.get("ACK") == b"2"
    assert holder.get("NACK") == b"1"


@pytest.mark.parametrize("command", ["NACK", "BACK", "DACK 1"])
def test_nothing_to_give_back_ends_the_stream(topic: Topic, command: str) -> None:
    topic.publish(b"1")
    stream = topic.subscribe(body=f'"{command}" "INIT"')
    assert stream.rest() == [{"error": f"error {command.split(maxsplit=1)[0]}ing message"}]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("DACK", "too few arguments provided to DACK"),
        ("DACK oops", "invalid DACK duration argument at position [1]"),
        ("DACK 1.5", "invalid DACK duration argument at position [1]"),
        ("DACK ", "invalid DACK duration argument at position [1]"),
        ("DACK 99999999999999", "invalid DACK duration argument at position [1]"),
    ],
)
def test_a_bad_dack_ends_the_stream_and_gives_the_message_back(topic: Topic, command: str, error: str) -> None:
    topic.publish(b"1", b"2")
    assert topic.subscribe(body=f'"INIT" "{command}" "ACK"').rest() == [{"msg": "MQ=="}, {"error": error}]
    settled(topic, active=0)
    stays = topic.subscribe()
    assert stays.get("INIT") == b"1"
    stays.say(command)
    settled(topic, active=0)
    assert topic.subscribe().get("INIT") == b"1", "though the client has not gone"


@pytest.mark.parametrize("command", ["ack", "Ack", "ACK1", "", " ACK", "INITX", "ACK\n"])
def test_unknown_commands_are_told_and_change_nothing(topic: Topic, command: str) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe()
    stream.get("INIT")
    assert stream.ask(command) == {"error": "unrecognised command received"}
    assert stream.get("ACK") == b"2"


@pytest.mark.parametrize("text", ["123", "{}", "null", "garbage", '"\x01"', '"\\x"', '["ACK"]', '"' + "A" * 2_000, "'ACK'"])
def test_what_is_no_command_ends_the_stream_and_gives_the_message_back(topic: Topic, text: str) -> None:
    topic.publish(b"1", b"2")
    assert topic.subscribe(body='"INIT"' + text).rest() == [{"msg": "MQ=="}, {"error": "error decoding command"}]
    settled(topic, active=0)
    stays = topic.subscribe()
    stays.send('"INIT"')
    assert stays.message() == b"1"
    stays.send(text)
    settled(topic, active=0)
    assert topic.subscribe().get("INIT") == b"1", "though the client has not gone"


# Giving back.


def test_nack_gives_the_same_message_back_at_once(topic: Topic) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe()
    assert [stream.get("INIT"), stream.get("NACK"), stream.get("NACK"), stream.get("ACK")] == [b"1", b"1", b"1", b"2"]


def test_nack_serves_who_waits_already(topic: Topic) -> None:
    topic.publish(b"1")
    holder, waiting = topic.subscribe(), topic.subscribe()
    assert holder.get("INIT") == b"1"
    waiting.say("INIT")
    topic.publish(b"2")
    assert waiting.message() == b"2"
    waiting.say("ACK")
    settled(topic, active=1, waiting=0)
    holder.say("NACK")
    assert waiting.message() == b"1"


def settled(topic: Topic, **counts: int) -> None:
    """Return when so many messages of a topic are in these states."""
    while not topic.counts().items() >= counts.items():
        time.sleep(0.01)


def test_back_lets_the_others_go_first(topic: Topic) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe()
    assert [stream.get("INIT"), stream.get("BACK"), stream.get("ACK")] == [b"1", b"2", b"1"]


def test_dack_puts_a_message_off_and_counts(topic: Topic) -> None:
    topic.publish(b"1")
    stream = topic.subscribe()
    assert "dackCount" not in stream.ask("INIT")
    assert stream.ask("DACK 1") == {"msg": "MQ==", "dackCount": 1}
    assert stream.ask("DACK 0") == {"msg": "MQ==", "dackCount": 2}
    assert stream.ask("DACK -5") == {"msg": "MQ==", "dackCount": 3}
    assert stream.ask("NACK") == {"msg": "MQ==", "dackCount": 3}


def test_a_message_that_was_put_off_comes_back_in_front(topic: Topic) -> None:
    topic.publish(b"1", b"2", b"3")
    stream = topic.subscribe()
    assert [stream.get("INIT"), stream.get("DACK 1")] == [b"1", b"2"]
    other = topic.subscribe()
    assert other.get("INIT") == b"3"
    assert other.get("ACK") == b"1", "it waits for it"
    topic.publish(b"4")
    assert other.get("NACK") == b"1"


def test_several_that_are_due_at_once_come_back_last_delayed_first(topic: Topic) -> None:
    topic.publish(*(b"%d" % number for number in range(5)))
    stream = topic.subscribe()
    stream.get("INIT")
    for _ in range(3):
        stream.get("DACK 1")  # 0, 1 and 2; 3 is held
    holder = topic.subscribe()
    assert holder.get("INIT") == b"4"
    late = topic.subscribe()
    assert late.get("INIT") in (b"0", b"1", b"2")
    settled(topic, waiting=2)
    first, *_ = late.get("NACK"), None
    order = [first, late.get("ACK"), late.get("ACK")]
    assert sorted(order) == [b"0", b"1", b"2"]
    assert order[1:] == sorted(order[1:], reverse=True), "but for the one that was taken before the others were due"


# Ends.


def test_a_client_that_goes_gives_its_message_back_to_the_front(topic: Topic, http: str) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe(http=http)
    assert stream.get("INIT") == b"1"
    stream.kill()
    settled(topic, active=0)
    other = topic.subscribe()
    assert [other.get("INIT"), other.get("ACK")] == [b"1", b"2"]


def test_a_waiting_subscriber_gets_the_message_of_one_that_goes(topic: Topic, http: str) -> None:
    topic.publish(b"1")
    holder, waiting = topic.subscribe(http=http), topic.subscribe()
    assert holder.get("INIT") == b"1"
    waiting.ask("x")
    waiting.say("INIT")
    holder.kill()
    assert waiting.message() == b"1"
    topic.publish(b"2")
    assert waiting.get("ACK") == b"2", "nobody else is there to get it"


def waiters(server: ServerProcess) -> int:
    with redis.Redis(port=server.resp_port) as client:
        count: int = client.info()["blocked_clients"]
        return count


def test_a_subscriber_that_goes_while_it_waits_is_noticed(topic: Topic, server: ServerProcess, http: str) -> None:
    gone, stays = topic.subscribe(http=http), topic.subscribe()
    gone.ask("x")
    gone.say("INIT")
    while not waiters(server):
        time.sleep(0.01)
    gone.kill()
    while waiters(server):
        time.sleep(0.01)
    topic.publish(b"1")
    assert stays.get("INIT") == b"1"


def test_the_end_of_the_request_gives_the_message_back(topic: Topic, http: str) -> None:
    topic.publish(b"1", b"2")
    stream = topic.subscribe(http=http)
    assert stream.get("INIT") == b"1"
    assert stream.rest() == []
    settled(topic, active=0)
    assert topic.subscribe().get("INIT") == b"1"


def test_a_request_with_an_end_gets_a_message_and_gives_it_back(topic: Topic, http: str) -> None:
    topic.publish(b"1", b"2")
    for _ in range(2):
        assert topic.subscribe(http=http, body='"INIT"').rest() == [{"msg": "MQ=="}]
        settled(topic, active=0)
    assert topic.subscribe(http=http, body='"INIT" "ACK"').rest() == [{"msg": "MQ=="}, {"msg": "Mg=="}]
    settled(topic, active=0)
    assert topic.subscribe(http=http, body='"INIT"').rest() == [{"msg": "Mg=="}]


def test_several_subscribers_get_different_messages(topic: Topic) -> None:
    topic.publish(b"1", b"2")
    one, two = topic.subscribe(), topic.subscribe()
    assert [one.get("INIT"), two.get("INIT")] == [b"1", b"2"]
    topic.publish(b"3", b"4")
    assert [one.get("ACK"), two.get("ACK")] == [b"3", b"4"]


# Deleting.


def test_delete_removes_everything_and_the_topic_goes_on(topic: Topic) -> None:
    topic.publish(b"1", b"2", b"3")
    stream = topic.subscribe()
    stream.get("INIT")
    stream.get("DACK 100")
    topic.delete()
    stream.say("ACK")
    topic.publish(b"new")
    assert stream.message() == b"new", "and the acknowledgement of what is gone is no error"
    assert topic.counts()["delayed"] == 0


def test_delete_leaves_topics_alone_whose_names_begin_alike(topic: Topic) -> None:
    alike = [Topic(topic.url, topic.http, topic.name + more) for more in ("bar", "-x")]
    topic.publish(b"1")
    for each in alike:
        each.publish(b"1")
    topic.delete()
    for each in alike:
        assert each.subscribe().get("INIT") == b"1"


def test_a_topic_that_never_was_can_be_deleted(topic: Topic) -> None:
    topic.delete()


@pytest.mark.parametrize("name", ["queues", "jobs", "health", "crons", "publish", "ws"])
def test_no_topic_is_deleted_because_a_path_was_cut_short(topic: Topic, name: str) -> None:
    Topic(topic.url, topic.http, name).publish(b"1")
    assert topic.http.delete(f"/{name}").status_code == 404
    assert topic.http.get(f"/queues/{name}/counts").json()["counts"]["waiting"] >= 1


# Between doors.


def test_what_is_published_here_is_consumed_at_the_jobs_door(topic: Topic) -> None:
    topic.publish(b'{"a":1}', b"\xff")
    jobs = [topic.http.get(f"/queues/{topic.name}/jobs").json() for _ in range(2)]
    assert [each["job"]["data"] for each in jobs] == [{"a": 1}, "/w=="]
    for each in jobs:
        assert topic.http.post(f"/jobs/{each['job']['id']}/ack", json={"token": each["token"]}).json()["ok"]


def test_what_is_pushed_at_the_jobs_door_is_consumed_here(topic: Topic) -> None:
    topic.http.post(f"/queues/{topic.name}/jobs", json={"data": {"a": 1}, "priority": 1})
    topic.http.post(f"/queues/{topic.name}/jobs", json={"data": "urgent", "priority": 5})
    stream = topic.subscribe()
    assert [json.loads(stream.get("INIT")), json.loads(stream.get("ACK"))] == ["urgent", {"a": 1}]


def test_namespaces_keep_topics_apart(topic: Topic) -> None:
    topic.publish(b"mine", **{"X-Namespace": "one"})
    topic.publish(b"yours", **{"X-Namespace": "two"})
    assert topic.subscribe("-H", "X-Namespace: two").get("INIT") == b"yours"
    assert topic.subscribe("-H", "X-Namespace: one").get("INIT") == b"mine"


def test_commands_count_against_the_limit_of_the_client_behind_a_proxy(tmp_path: Any) -> None:
    env = {"RATE_LIMIT_MAX_REQUESTS": "5"}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client() as client:
        topic = Topic(running.url, client, "foo")
        busy, other = (topic.subscribe("-H", f"X-Forwarded-For: 203.0.113.{number}") for number in (1, 2))
        errors = {busy.ask("x")["error"] for _ in range(8)}
        assert len(errors) == 2
        assert other.ask("x") == {"error": "unrecognised command received"}


# The listener of its own, and the end of the server.


def test_its_own_listener_speaks_as_the_original_does(tmp_path: Any) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--topics", f"127.0.0.1:{port}") as running, running.client() as client:
        url = f"http://127.0.0.1:{port}"
        topic = Topic(url, client, "queues")
        assert client.post(f"{url}/publish/queues", content=b"1").status_code == 201
        assert topic.subscribe(body='"INIT"').rest() == [{"msg": "MQ=="}]
        assert client.delete(f"{url}/queues").status_code == 200
        for method, path in (("GET", "/"), ("GET", "/a/b/c"), ("POST", "/nothing/x")):
            response = client.request(method, f"{url}{path}")
            assert (response.status_code, response.text) == (404, "404 page not found\n")
        assert client.post(f"{url}/publish/").status_code == 404
        for method, path in (("GET", "/publish/x"), ("PUT", "/subscribe/x"), ("GET", "/foo")):
            response = client.request(method, f"{url}{path}")
            assert (response.status_code, response.text) == (405, "")


def test_a_server_that_stops_ends_the_streams_and_keeps_the_messages(tmp_path: Any) -> None:
    running = ServerProcess(tmp_path / "data").start()
    with running.client() as client:
        topic = Topic(running.url, client, "foo")
        topic.publish(b"1", b"2", b"3")
        one, two, waiting = topic.subscribe(), topic.subscribe(), Topic(running.url, client, "empty").subscribe()
        assert [one.get("INIT"), two.get("INIT")] == [b"1", b"2"]
        waiting.ask("x")
        waiting.say("INIT")
        assert running.stop() == 0
    for stream in (one, two, waiting):
        assert stream.rest() == []
    with running, running.client() as client:
        topic = Topic(running.url, client, "foo")
        stream = topic.subscribe()
        assert [stream.get("INIT"), stream.get("ACK"), stream.get("ACK")] == [b"1", b"2", b"3"]
