"""WebSocket push of the messages door, over a client we did not write: the window, what comes back, and what is refused."""

from __future__ import annotations

import base64
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from penstock.core import limits
from penstock.core.ids import from_ulid, to_uuid
from penstock.doors.websocket import Closing
from tests.doors.messages.test_messages import Queue, now_ms
from tests.support import stores
from tests.support.issuer import SECRET, token
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from websockets.sync.client import ClientConnection

WAIT_S = 20
QUIET_S = 0.3


class Consumer:
    """A WebSocket that messages come in over."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def frame(self, timeout: float = WAIT_S) -> Any:
        return json.loads(self.socket.recv(timeout=timeout))

    def message(self) -> Any:
        frame = self.frame()
        assert frame["type"] == "message", frame
        return frame

    def bodies(self, count: int) -> list[bytes]:
        return [base64.b64decode(self.message()["body"]) for _ in range(count)]

    def say(self, word: str, message: Any) -> None:
        self.socket.send(json.dumps({"type": word, "receipt_handle": message["receipt_handle"]}))

    def error(self) -> str:
        frame = self.frame()
        assert frame["type"] == "error", frame
        text: str = frame["error"]
        return text

    def is_quiet(self) -> bool:
        try:
            self.frame(QUIET_S)
        except TimeoutError:
            return True
        return False

    def closed(self) -> int:
        """Return the code with which the server closes the connection, after whatever is on its way."""
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                self.socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code


@contextmanager
def consumer(server: ServerProcess, queue: Queue, query: str = "", **options: Any) -> Iterator[Consumer]:
    with connect(f"ws://127.0.0.1:{server.port}{queue.path}/ws{query}", **options) as socket:
        yield Consumer(socket)


@pytest.fixture
def queue(server: ServerProcess) -> Iterator[Queue]:
    with server.client() as client:
        yield Queue(client)


def publish(queue: Queue, count: int) -> list[bytes]:
    bodies = [b"message %d" % number for number in range(count)]
    for body in bodies:
        queue.publish(body)
    return bodies


def settled(queue: Queue, **stats: int) -> None:
    """Wait until a queue holds so many messages."""
    while not queue.stats().items() >= stats.items():
        time.sleep(0.01)


# What comes.


def test_a_message_comes_with_all_that_a_consumer_gets(server: ServerProcess, queue: Queue) -> None:
    with consumer(server, queue) as ws:
        before = now_ms()
        message_id = queue.publish(b"\x00\xff", metadata={"a": "b"})
        frame = ws.message()
        assert before <= frame.pop("published_at") <= now_ms()
        assert len(frame["receipt_handle"]) == 26
        assert frame == {
            "type": "message", "id": message_id, "body": base64.b64encode(b"\x00\xff").decode(), "namespace": queue.namespace,
            "receipt_handle": frame["receipt_handle"], "queue": queue.name, "attempt": 1, "metadata": {"a": "b"},
        }  # fmt: skip
        ws.say("ack", frame)
        settled(queue, ready=0, in_flight=0, dlq_depth=0)
        queue.publish(b"plain")
        assert "metadata" not in ws.message()


def test_a_scheduled_message_comes_when_it_is_due(server: ServerProcess, queue: Queue) -> None:
    with consumer(server, queue) as ws:
        due = now_ms() + 400
        queue.publish(b"later", deliver_at=due)
        queue.publish(b"now")
        assert ws.bodies(2) == [b"now", b"later"]
        assert due <= now_ms()


# The window.


def test_the_window_is_filled_and_resumed_by_acks_and_nacks(server: ServerProcess, queue: Queue) -> None:
    bodies = publish(queue, 5)
    with consumer(server, queue, "?window=2") as ws:
        first, second = ws.message(), ws.message()
        assert ws.is_quiet()
        assert queue.stats()["in_flight"] == 2
        ws.say("ack", first)
        third = ws.message()
        assert base64.b64decode(third["body"]) == bodies[2]
        assert ws.is_quiet()
        ws.say("nack", second)
        fourth = ws.message()
        ws.say("ack", third)
        fifth = ws.message()
        ws.say("ack", fourth)
        again = ws.message()
        assert (again["id"], again["attempt"]) == (second["id"], 2), "to the back of the line, and counted"
        assert again["receipt_handle"] != second["receipt_handle"]
        for each in (fifth, again):
            ws.say("ack", each)
        settled(queue, ready=0, in_flight=0)


def test_acks_over_http_make_room(server: ServerProcess, queue: Queue) -> None:
    bodies = publish(queue, 35)
    with consumer(server, queue) as ws:
        for body in bodies:
            message = ws.message()
            assert base64.b64decode(message["body"]) == body
            queue.ack(message["receipt_handle"])
        settled(queue, ready=0, in_flight=0)


def test_nacks_over_http_make_room(server: ServerProcess, queue: Queue) -> None:
    publish(queue, 8)
    with consumer(server, queue, "?window=2") as ws:
        for attempt in (1, 2, 3):
            for _ in range(8):
                message = ws.message()
                assert message["attempt"] == attempt
                queue.nack(message["receipt_handle"])
        settled(queue, ready=0, in_flight=0, dlq_depth=8)


def test_acks_over_another_connection_make_room(server: ServerProcess, queue: Queue) -> None:
    bodies = publish(queue, 12)
    elsewhere = Queue(queue.http, queue.namespace, "elsewhere")
    with consumer(server, queue, "?window=1") as ws, consumer(server, elsewhere) as other:
        for body in bodies:
            message = ws.message()
            assert base64.b64decode(message["body"]) == body
            other.say("ack", message)
        settled(queue, ready=0, in_flight=0)


def test_an_ack_at_the_jobs_door_makes_room(server: ServerProcess, queue: Queue) -> None:
    publish(queue, 3)
    with consumer(server, queue, "?window=1") as ws:
        for _ in range(3):
            job_id = from_ulid(ws.message()["id"])
            assert job_id is not None
            done = queue.http.post(f"/jobs/{to_uuid(job_id)}/ack", headers={"X-Namespace": queue.namespace})
            assert done.status_code == 200, done.text


def test_a_purge_makes_room(server: ServerProcess, queue: Queue) -> None:
    publish(queue, 3)
    with consumer(server, queue, "?window=3") as ws:
        ws.bodies(3)
        assert queue.ok("DELETE", f"{queue.path}/messages") == {"purged": 3}
        bodies = publish(queue, 3)
        assert ws.bodies(3) == bodies


def test_a_late_ack_over_http_is_a_sign_of_life(server: ServerProcess, queue: Queue) -> None:
    queue.make(visibility_timeout_ms=500)
    bodies = publish(queue, 2)
    with consumer(server, queue, "?window=1") as ws:
        first = ws.message()
        settled(queue, ready=2, in_flight=0)
        assert queue.refused("DELETE", f"/messages/{first['receipt_handle']}")[0] == 410
        second = ws.message()
        assert base64.b64decode(second["body"]) == bodies[1]
        queue.ack(second["receipt_handle"])
        again = ws.message()
        assert (again["id"], again["attempt"]) == (first["id"], 2)


@pytest.mark.skipif(stores.chosen() == "sqlite", reason="a file has one server")
def test_acks_at_another_server_make_room(server: ServerProcess, queue: Queue, tmp_path: Path) -> None:
    shared = {name: value for name, value in server.env.items() if name.startswith("PENSTOCK_")}
    bodies = publish(queue, 25)
    with ServerProcess(tmp_path / "two", env=shared) as two, two.client() as client, consumer(server, queue) as ws:
        there = Queue(client, queue.namespace)
        for body in bodies:
            message = ws.message()
            assert base64.b64decode(message["body"]) == body
            there.ack(message["receipt_handle"])
        settled(queue, ready=0, in_flight=0)


@pytest.mark.parametrize(("query", "count"), [("", 10), ("?window=", 10), ("?window=3", 3)])
def test_how_many_a_connection_holds(server: ServerProcess, queue: Queue, query: str, count: int) -> None:
    publish(queue, 12)
    with consumer(server, queue, query) as ws:
        ws.bodies(count)
        assert ws.is_quiet()
        assert queue.stats()["in_flight"] == count


def test_no_window_is_larger_than_the_largest(server: ServerProcess, queue: Queue) -> None:
    batch = [{"body": "x"}] * 100
    for _ in range(limits.push_window_max // 100 + 1):
        queue.ok("POST", f"{queue.path}/messages/batch", 201, json=batch)
    with consumer(server, queue, "?window=1000000") as ws:
        ws.bodies(limits.push_window_max)
        assert ws.is_quiet()


def test_a_nack_of_the_last_delivery_makes_a_dead_letter(server: ServerProcess, queue: Queue) -> None:
    queue.publish(b"bad", max_retries=1)
    with consumer(server, queue) as ws:
        ws.say("nack", ws.message())
        settled(queue, in_flight=0, dlq_depth=1)
    assert [queue.counted(name) for name in ("consumed", "nacked", "dlq_routed")] == [1, 1, 1]
    shaken = 'epochq_http_requests_total{method="GET",path="/namespaces/{ns}/queues/{queue}/ws",status="101"}'
    assert shaken in queue.http.get("/prometheus").text


def test_two_consumers_share_a_queue(server: ServerProcess, queue: Queue) -> None:
    with consumer(server, queue, "?window=5") as one, consumer(server, queue, "?window=5") as other:
        publish(queue, 10)
        both = [one.message() for _ in range(5)] + [other.message() for _ in range(5)]
        assert len({each["id"] for each in both}) == 10


def test_a_reader_that_takes_nothing_is_given_little(server: ServerProcess, queue: Queue) -> None:
    body = base64.b64encode(bytes(180_000)).decode()
    for _ in range(10):
        queue.ok("POST", f"{queue.path}/messages/batch", 201, json=[{"body": body}] * 20)
    with connect(f"ws://127.0.0.1:{server.port}{queue.path}/ws?window=1000", max_queue=1) as socket:
        before = 0
        while (held := queue.stats()["in_flight"]) != before or not held:
            before = held
        assert held < 150
        ws = Consumer(socket)
        assert len({ws.message()["id"] for _ in range(200)}) == 200, "it is slow, not lost"


# What comes back.


def test_what_is_out_goes_back_in_order_when_the_connection_ends(server: ServerProcess, queue: Queue) -> None:
    bodies = publish(queue, 6)
    with consumer(server, queue, "?window=4") as ws:
        taken = [ws.message() for _ in range(4)]
        ws.say("ack", taken[1])
        ws.message()
    settled(queue, ready=5, in_flight=0)
    left = queue.consume(10)
    assert [base64.b64decode(each["body"]) for each in left] == [bodies[0], *bodies[2:]]
    assert {each["attempt"] for each in left} == {1}, "nobody has failed"


def test_what_is_out_for_too_long_is_the_queues_again_and_makes_room(server: ServerProcess, queue: Queue) -> None:
    queue.make(visibility_timeout_ms=500)
    bodies = publish(queue, 2)
    with consumer(server, queue, "?window=1") as ws:
        first = ws.message()
        settled(queue, ready=2, in_flight=0)  # who says nothing is sent nothing more
        ws.say("ack", first)
        unknown = f'ack: unknown or expired receipt handle "{first["receipt_handle"]}"'
        assert ws.error() == unknown
        second = ws.message()
        assert base64.b64decode(second["body"]) == bodies[1], "what ran out went to the back"
        ws.say("ack", second)
        again = ws.message()
        assert (again["id"], again["attempt"]) == (first["id"], 2)
        ws.say("ack", again)
        settled(queue, ready=0, in_flight=0, dlq_depth=0)
        ws.say("ack", again)
        assert "unknown or expired" in ws.error(), "a receipt handle is good for once"


def test_a_server_that_stops_gives_back_and_says_so(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    with server.client() as client:
        queue = Queue(client)
        bodies = publish(queue, 3)
        with consumer(server, queue) as ws:
            ws.bodies(3)
            assert server.stop() == 0
            assert ws.closed() == Closing.GOING_AWAY
    with server, server.client() as client:
        left: list[dict[str, Any]] = []
        while len(left) < 3:  # what was on a ready list of the old server takes the new one a moment
            left += (more := Queue(client, queue.namespace).consume(10, wait_ms=20_000))
            assert more
        assert [base64.b64decode(each["body"]) for each in left] == bodies
        assert {each["attempt"] for each in left} == {1}, "given back, not expired"


def test_what_a_killed_server_had_sent_comes_again(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    with server.client() as client:
        queue = Queue(client)
        queue.make(visibility_timeout_ms=1_000)
        publish(queue, 3)
        with consumer(server, queue) as ws:
            ws.say("ack", ws.message())
            settled(queue, in_flight=2, ready=0)
            ids = {ws.message()["id"] for _ in range(2)}
            server.kill()
    with server, consumer(server, queue) as ws:
        again = [ws.message() for _ in range(2)]
        assert {each["id"] for each in again} == ids
        assert {each["attempt"] for each in again} == {2}


# What is refused.


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ("{", "invalid json: Input data was truncated"),
        ("[]", "invalid json: Expected `object`, got `array`"),
        ('{"type":"stop"}', 'unknown type "stop": expected ack or nack'),
        ('{"type":1}', "invalid json: Expected `str`, got `int` - at `$.type`"),
        ('{"type":"ack"}', "broker: unknown receipt handle: "),
        ('{"type":"nack","receipt_handle":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}', "nack: unknown or expired receipt handle"),
        (b"\xff", "invalid json"),
    ],
)
def test_words_that_are_none_are_told_and_nothing_happens(
    server: ServerProcess, queue: Queue, frame: str | bytes, error: str
) -> None:
    queue.publish()
    with consumer(server, queue) as ws:
        message = ws.message()
        ws.socket.send(frame)
        assert ws.error().startswith(error)
        ws.say("ack", message)
        settled(queue, in_flight=0, ready=0)


def test_a_receipt_of_another_delivery_is_taken_too(server: ServerProcess, queue: Queue) -> None:
    queue.publish(b"one")
    queue.publish(b"two", max_retries=1)
    done, failed = queue.take(), queue.take()
    with consumer(server, queue) as ws:
        ws.say("ack", {"receipt_handle": done.lower()})
        ws.say("nack", {"receipt_handle": failed})
        settled(queue, ready=0, in_flight=0, dlq_depth=1)
        (dead,) = queue.dead()
        ws.say("ack", dead)
        settled(queue, dlq_depth=0)
        ws.say("ack", dead)
        assert "unknown or expired" in ws.error()


def test_words_that_are_too_long_end_the_connection(server: ServerProcess, queue: Queue) -> None:
    with consumer(server, queue) as ws:
        ws.socket.send(" " * (limits.message_bytes_max + 1))
        assert ws.closed() == Closing.TOO_LARGE


def refused(server: ServerProcess, path: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as error, connect(f"ws://127.0.0.1:{server.port}{path}", **options):
        pass
    response = error.value.response
    assert response.body is not None
    return response.status_code, json.loads(response.body)["error"]


def test_only_queues_have_consumers(server: ServerProcess) -> None:
    for path in ("/namespaces/a/ws", "/namespaces/a/queues/b", "/namespaces/a/queues/b/c/ws", "/namespaces"):
        assert refused(server, path) == (404, "Not found")
    assert refused(server, "/namespaces/a%20b/queues/c/ws")[0] == 400
    for wrong in ("0", "-1", "x", "1.5", "9" * 30):
        assert refused(server, f"/namespaces/a/queues/b/ws?window={wrong}") == (
            400,
            "window must be a number of messages: 1 or more",
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"JWT_SECRET": SECRET, "CORS_ALLOW_ORIGIN": "https://dash.example", "RATE_LIMIT_MAX_REQUESTS": "40"}
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env=env) as running:
        yield running


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**claims)}"}


def test_a_receipt_of_another_namespace_is_unknown(guarded: ServerProcess) -> None:
    with guarded.client(headers=bearer(scopes=["theirs:*"])) as client:
        theirs = Queue(client, "theirs")
        theirs.publish()
        handle = theirs.take()
        shown = bearer(scopes=["mine:consume"])
        with connect(f"ws://127.0.0.1:{guarded.port}/namespaces/mine/queues/jobs/ws", additional_headers=shown) as socket:
            ws = Consumer(socket)
            ws.say("ack", {"receipt_handle": handle})
            assert ws.error() == f'ack: unknown or expired receipt handle "{handle}"'
        theirs.ack(handle)


def test_who_may_consume_may_connect(guarded: ServerProcess) -> None:
    path = "/namespaces/mine/queues/jobs/ws"
    assert refused(guarded, path)[0] == 401
    for scope in ("mine:produce", "mine:read", "other:consume"):
        assert refused(guarded, path, additional_headers=bearer(scopes=[scope]))[0] == 403
    consume = bearer(scopes=["mine:consume"])
    assert refused(guarded, path, additional_headers=consume | {"Origin": "https://evil.example"})[0] == 403
    with connect(
        f"ws://127.0.0.1:{guarded.port}{path}", additional_headers=consume | {"Origin": "https://dash.example"}
    ) as socket:
        socket.send("{")
        assert Consumer(socket).error()


def test_a_key_that_is_revoked_ends_the_connection_and_gives_back(tmp_path: Path) -> None:
    root = {"X-Api-Key": "root"}
    env = {"EPOCHQ_AUTH_API_KEY": "root"}
    with ServerProcess(tmp_path / "data", env=env) as server, server.client(headers=root) as client:
        queue = Queue(client, "mine")
        queue.publish(b"x")
        made = client.post("/keys", json={"namespaces": ["mine"], "roles": ["consume"]}).json()
        with consumer(server, queue, additional_headers={"X-Api-Key": made["secret"]}) as ws:
            ws.message()
            assert client.delete(f"/keys/{made['key']['id']}").json() == {"ok": True}
            assert ws.closed() == Closing.NOT_ALLOWED
        (message,) = queue.consume(wait_ms=5_000)
        assert message["attempt"] == 1
        path = f"{queue.path}/ws"
        assert refused(server, path, additional_headers={"X-Api-Key": made["secret"]})[0] == 401
        other = client.post("/keys", json={"namespaces": ["other"], "roles": ["admin"]}).json()
        assert refused(server, path, additional_headers={"X-Api-Key": other["secret"]})[0] == 403


def test_words_count_against_the_rate_limit(tmp_path: Path) -> None:
    env = {"RATE_LIMIT_MAX_REQUESTS": "3", "RATE_LIMIT_WINDOW_MS": "3600000"}
    with ServerProcess(tmp_path / "data", env=env) as server, server.client() as client:
        queue = Queue(client)
        with consumer(server, queue) as ws:
            queue.publish()
            message = ws.message()
            ws.socket.send("{")
            assert ws.error().startswith("invalid json")
            ws.say("ack", message)
            assert ws.frame() == {
                "type": "error", "error": "Rate limit exceeded", "receipt_handle": message["receipt_handle"],
            }  # fmt: skip


def test_a_connection_ends_with_its_token(guarded: ServerProcess) -> None:
    shown = bearer(scopes=["mine:consume"], exp=now_ms() / 1_000 + 1.5)
    with connect(f"ws://127.0.0.1:{guarded.port}/namespaces/mine/queues/jobs/ws", additional_headers=shown) as socket:
        assert Consumer(socket).closed() == Closing.NOT_ALLOWED


def test_a_shorter_visibility_timeout_holds_for_what_comes_after_it(server: ServerProcess, queue: Queue) -> None:
    with consumer(server, queue, "?window=2") as ws:
        queue.make(visibility_timeout_ms=300)
        queue.publish(b"long")  # it was asked for before
        ws.message()
        queue.publish(b"short")
        for attempt in (1, 2, 3):
            short = ws.message()
            assert short["attempt"] == attempt
            settled(queue, in_flight=1)
            ws.say("nack", short)
            assert "unknown or expired" in ws.error()


def test_the_listener_of_the_door_has_consumers_and_subscriptions(tmp_path: Path) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--messages", f"127.0.0.1:{port}") as server, server.client() as client:
        queue = Queue(client)
        queue.publish(b"x")
        with connect(f"ws://127.0.0.1:{port}{queue.path}/ws") as socket:
            assert Consumer(socket).bodies(1) == [b"x"]
        with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{port}/ws"):
            pass
        url = f"http://127.0.0.1:{port}{queue.path}/subscriptions"
        assert client.post(url, json={"url": "https://good.com/"}).status_code == 201
        assert len(client.get(url).json()["subscriptions"]) == 1
