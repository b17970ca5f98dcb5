"""Large requests: other clients are answered while they are read, and memory is kept for what has arrived, not for promises."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import httpx2
import msgspec
import pytest

from penstock.core import limits
from penstock.core.clock import ManualClock
from penstock.core.errors import TooMany
from penstock.doors.http.request import Bodies
from penstock.doors.jobs import jsonable, tcp_frames
from penstock.engine.fair_share import FairShare
from tests.security.measure import MB, Bystander, cpu_s
from tests.security.ticked import TickedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.time_slices import Steps
    from tests.support.server import ServerProcess

T = TypeVar("T")
#: Of the processor time of a request, the part for which it may hold the event loop at once. All in one step: 1.
PART_MAX = 0.3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TickedServer]:
    with TickedServer(tmp_path_factory.mktemp("large")) as running:
        yield running


def post(server: ServerProcess, path: str, body: bytes) -> int:
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        return client.post(path, content=body, headers={"content-type": "application/json"}).status_code


def command(server: ServerProcess, frame: bytes) -> dict[str, object]:
    with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=60) as sock, sock.makefile("rb") as replies:
        sock.sendall(struct.pack(">I", len(frame)) + frame)
        (size,) = struct.unpack(">I", replies.read(4))
        reply: dict[str, object] = msgspec.msgpack.decode(replies.read(size))
        return reply


def bulk(*jobs: bytes) -> bytes:
    return b'{"jobs":[%s]}' % b",".join(jobs)


#: A job of 1 kB.
NUMBERS = b'{"data":{"a":[%s]},"tags":["a"]}' % b",".join([b"1"] * 480)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/queues/deep/jobs", b'{"data":[' + (b"[" * 62 + b"]" * 62 + b",") * (8 * MB // 125) + b"1]}", 200),
        ("/queues/bulk/jobs/bulk", bulk(*[b'{"data":1,"priority":5.0}'] * 10_000), 200),
        ("/queues/bulk/jobs/bulk", bulk(*[NUMBERS] * 9_999, b'{"data":1,"priority":"x"}'), 400),
    ],
    ids=["62 levels", "numbers that are forgiven", "last job of many"],
)
def test_others_are_answered_while_a_large_body_is_checked(
    server: TickedServer, path: str, body: bytes, status: int
) -> None:
    assert post(server, path, body) == status
    assert server.longest_part(lambda: post(server, path, body)) < PART_MAX


def test_others_are_answered_while_bytes_are_spelled(server: TickedServer) -> None:
    frame = msgspec.msgpack.encode({"cmd": "PUSH", "queue": "bytes", "data": b"x" * 1_000_000})
    assert "ok" in command(server, frame)
    assert server.longest_part(lambda: command(server, frame)) < PART_MAX


MANY = 600_000
MAPS = b"\xdd" + struct.pack(">I", MANY) + b"\x80" * MANY
KEYS = b"\xdf" + struct.pack(">I", MANY) + b"".join(b"\xce" + struct.pack(">I", number) + b"\1" for number in range(MANY))


@pytest.mark.parametrize("data", [MAPS, KEYS], ids=["empty maps", "numbers as keys"])
def test_no_step_of_reading_a_command_is_long(data: bytes) -> None:
    """Of the computing time that it takes, no step has more than a part."""
    decoding = tcp_frames.decode_steps(b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4data" + data)
    message = check_steps(decoding)
    check_steps(jsonable.convert_steps(message))


def check_steps(steps: Steps[T]) -> T:
    """Do all steps, and return their result; none may take more than a third of the computing time of all."""
    seconds = []
    while True:
        before = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            seconds.append(time.thread_time() - before)
            assert max(seconds) < sum(seconds) / 3
            result: T = end.value
            return result
        seconds.append(time.thread_time() - before)


def test_others_are_answered_while_many_maps_are_read(server: TickedServer) -> None:
    frame = b"\x83\xa3cmd\xa4PUSH\xa5queue\xa4maps\xa4data" + MAPS
    assert "ok" in command(server, frame)
    assert server.longest_part(lambda: command(server, frame)) < PART_MAX


@pytest.mark.parametrize(
    ("path", "good", "bad", "error"),
    [
        (
            "/queues/bulk/jobs/bulk",
            bulk(*[b'{"data":1,"tags":["a"],"priority":"x"}']),
            bulk(*[b'{"data":1,"tags":["a"]}'] * 9_999, b'{"data":1,"priority":"x"}'),
            "jobs[9999]: priority must be a number",
        ),
        (
            "/jobs/extend-locks",
            b'{"ids":["a"],"durations":["x"]}',
            b'{"ids":["a"],"durations":[%s1]}' % (b"1.0," * 2_500_000),
            "durations must have at most 10000 items",
        ),
    ],
    ids=["last job of many", "millions of numbers"],
)
def test_only_what_is_wrong_is_explained(server: ServerProcess, path: str, good: bytes, bad: bytes, error: str) -> None:
    """Refusing a body takes about as long as reading it: here, less than checking 10,000 items one field after the other."""
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        assert client.post(path, content=good).status_code == 400
        assert client.post(path, content=bad).json()["error"] == error
        forgiven = bulk(*[b'{"data":1,"priority":5.0}'] * 10_000)  # each of its items is looked at field by field
        before = cpu_s(server.pid)
        assert client.post("/queues/forgiven/jobs/bulk", content=forgiven).status_code == 200
        field_by_field = cpu_s(server.pid) - before
        before = cpu_s(server.pid)
        client.post(path, content=bad)
        assert cpu_s(server.pid) - before < field_by_field


def test_a_command_with_too_many_values_is_refused_before_they_are_made(server: ServerProcess) -> None:
    count = 16 * MB
    frame = b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa4data\xdd" + struct.pack(">I", count) + b"\x80" * count
    with Bystander(server) as bystander:
        reply = command(server, frame)
    assert reply["error"] == "Too many values in one command (max 2000000)"
    assert bystander.grown_mb < 200  # as maps, they would be 1 GiB


# What was announced, and never came.


def announce(server: ServerProcess, size: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = f"POST /queues/q/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
    sock.sendall(head.encode() + b'{"data":"')
    return sock


def test_announced_bodies_take_nothing_from_others(server: ServerProcess) -> None:
    size = limits.body_bytes_max
    with ExitStack() as silent:
        for _ in range(limits.bodies_bytes_max // size + 8):
            silent.enter_context(announce(server, size))
        # Larger than what is left of the budget when as many of the others as possible are counted in full.
        assert post(server, "/queues/q/jobs", b'{"data":"%s"}' % (b"x" * (limits.payload_bytes_max - 2))) == 200


def test_one_sender_leaves_room_for_others() -> None:
    clock = ManualClock()
    bodies = Bodies(clock, lambda scope: scope.client, FairShare(clock))
    bodies.hold(limits.bodies_share_bytes_max, "greedy")
    with pytest.raises(TooMany):
        bodies.hold(1, "greedy")
    bodies.hold(limits.body_bytes_max, "modest")
    bodies.release(limits.bodies_share_bytes_max, "greedy")
    bodies.hold(1, "greedy")
