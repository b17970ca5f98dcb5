"""``python -m bench loop``: for how long one large request keeps all others waiting.

One server with a ticker on its event loop (``bench.ticked_server``). Each kind of request is sent alone, and the longest time
between two ticks is read: by the clock, and in processor time of the loop's thread. The goals (``limits.loop_hold_ms``) are
about the second, in the round in which it was lowest: other programs on the machine do not change it much. It does not contain
the time for which the loop waits for a thread that holds the interpreter's lock: compare the first on a quiet machine.

PENSTOCK_BENCH_REQUESTS names some of the requests only, by parts of their names, separated by commas.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bench.goals import Goal, say
from bench.processes import Penstock, free_port, running
from bench.ticked_server import BYTES, ticks
from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MB = 2**20
#: The longest hold of a server at rest, in seconds, below which the next request is sent.
QUIET_S = 0.005
TRIES = 200


class Ticked:
    """A server whose event loop is watched."""

    def __init__(self, directory: Path) -> None:
        path = directory / "ticks"
        path.write_bytes(bytes(BYTES))
        self.tcp_port = free_port()
        self.server = Penstock(
            directory / "data", "interval", "--tcp", f"127.0.0.1:{self.tcp_port}",
            settings={"PENSTOCK_BENCH_TICKS": str(path)}, module="bench.ticked_server",
        )  # fmt: skip
        self.longest = ticks(path)

    def begin(self) -> None:
        """Wait until the server is done with what came before, and measure from now on."""
        for _ in range(TRIES):
            self.longest[0] = self.longest[1] = 0.0
            time.sleep(0.05)
            if self.longest[1] < QUIET_S:
                break
        self.longest[0] = self.longest[1] = 0.0

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request over HTTP, and return the body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse().read()
        connection.close()
        return answer

    def command(self, frame: bytes) -> bytes:
        """Send a command over TCP, and return the reply."""
        with socket.create_connection(("127.0.0.1", self.tcp_port), timeout=120) as link, link.makefile("rb") as replies:
            link.sendall(struct.pack(">I", len(frame)) + frame)
            (size,) = struct.unpack(">I", replies.read(4))
            return replies.read(size)

    def publish(self, payload: bytes) -> bytes:
        """Publish a message over the Redis protocol, and return the reply."""
        with (
            socket.create_connection(("127.0.0.1", self.server.resp_port), timeout=120) as link,
            link.makefile("rb") as replies,
        ):
            link.sendall(b"*3\r\n$7\r\nPUBLISH\r\n$5\r\ntopic\r\n$%d\r\n%b\r\n" % (len(payload), payload))
            return replies.readline()


class Request(NamedTuple):
    """A kind of request. ``before``: what is done first, and not measured."""

    what: str
    send: Callable[[Ticked], bytes]
    expected: bytes  #: what the answer has in it
    before: Callable[[Ticked], object] | None = None


def bulk(job: bytes, jobs: int, last: bytes = b"") -> bytes:
    return b'{"jobs":[%b]}' % b",".join([job] * (jobs - bool(last)) + [last] * bool(last))


#: A job of 1 kB.
NUMBERS = b'{"data":{"a":[%b]},"tags":["a"]}' % b",".join([b"1"] * 480)
DEEP = b"[" + (b"[" * 61 + b"]" * 61 + b",") * (8 * MB // 123) + b"1]"
COUNT = 600_000
NEEDED = b",".join(b'"needed-%d"' % number for number in range(100))
MAPS = b"\xdd" + struct.pack(">I", COUNT) + b"\x80" * COUNT
pack = msgspec.msgpack.encode


def push_large(ticked: Ticked) -> None:
    for _ in range(6):
        ticked.ask("POST", "/queues/large/jobs/bulk", bulk(b'{"data":"%b"}' % (b"x" * (MB - 100)), 10))


def push_needed(ticked: Ticked) -> None:
    jobs = b",".join(b'{"data":1,"jobId":"needed-%d"}' % number for number in range(100))
    ticked.ask("POST", "/queues/needed/jobs/bulk", b'{"jobs":[%b]}' % jobs)


def nothing(_: Ticked) -> bytes:
    time.sleep(1)
    return b""


REQUESTS = (
    Request("nothing for a second", nothing, b""),
    Request("first /openapi.json", lambda each: each.ask("GET", "/openapi.json"), b"paths"),
    Request(
        "10 MB bulk push, last job wrong",
        lambda each: each.ask("POST", "/queues/q/jobs/bulk", bulk(NUMBERS, 10_000, b'{"data":1,"priority":"x"}')),
        b"must be a number",
    ),
    Request(
        "10 MB bulk push, good",
        lambda each: each.ask("POST", "/queues/numbers/jobs/bulk", bulk(NUMBERS, 9_999)),
        b"ids",
    ),
    Request(
        "bulk push of 10,000 small jobs",
        lambda each: each.ask("POST", "/queues/small/jobs/bulk", bulk(b'{"data":1}', 10_000)),
        b"ids",
    ),
    Request(
        "bulk push with 10,000 dependencies",
        lambda each: each.ask("POST", "/queues/flow/jobs/bulk", bulk(b'{"data":1,"dependsOn":[%b]}' % NEEDED, 100)),
        b"ids",
        push_needed,
    ),
    Request("push of 62 levels", lambda each: each.ask("POST", "/queues/deep/jobs", b'{"data":%b}' % DEEP), b"id"),
    Request("publish of 62 levels", lambda each: each.ask("POST", "/publish/deep", DEEP), b""),
    Request("publish of 62 levels over RESP", lambda each: each.publish(DEEP), b"OK"),
    Request("listing, 14 MB", lambda each: each.ask("GET", "/queues/numbers/jobs/list?limit=10000"), b"jobs"),
    Request("listing, 60 MB", lambda each: each.ask("GET", "/queues/large/jobs/list"), b"jobs", push_large),
    Request("pull of 32 MB", lambda each: each.ask("POST", "/queues/large/jobs/pull-batch", b'{"count":1000}'), b"tokens"),
    Request(
        "TCP listing, 11 MB",
        lambda each: each.command(pack({"cmd": "GetJobs", "queue": "numbers", "limit": 10_000})),
        b"jobs",
    ),
    Request(
        "TCP listing, 28 MB", lambda each: each.command(pack({"cmd": "GetJobs", "queue": "large", "limit": 28})), b"jobs"
    ),
    Request(
        "TCP push of 600,000 maps",
        lambda each: each.command(b"\x83\xa3cmd\xa4PUSH\xa5queue\xa4maps\xa4data" + MAPS),
        b"id",
    ),
    Request("TCP pull of 600,000 maps", lambda each: each.command(pack({"cmd": "PULL", "queue": "maps"})), b"token"),
    Request("TCP pull of 62 levels", lambda each: each.command(pack({"cmd": "PULL", "queue": "deep"})), b"token"),
)


def loop(rounds: int, _seconds: float) -> list[Goal]:
    """Measure each kind of request on a fresh server, a few rounds."""
    wanted = os.environ.get("PENSTOCK_BENCH_REQUESTS")
    only = [each for each in REQUESTS if not wanted or any(name in each.what for name in wanted.split(","))]
    held: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(min(rounds, 3)):
        say(f"  round {number + 1} of {min(rounds, 3)}")
        with ticked() as server:
            for request in only:
                if request.before is not None:
                    request.before(server)
                server.begin()
                answer = request.send(server)
                if request.expected not in answer:
                    raise SystemExit(f"{request.what}: {answer[:200]!r}")
                time.sleep(0.05)  # the ticker writes after the loop was held
                held[request.what].append((server.longest[0] * 1_000, server.longest[1] * 1_000))
    say(f"\n  {'longest hold of the event loop, ms; lowest of the rounds':<60} {'clock':>8} {'work':>8}")
    for what, found in held.items():
        clock, work = map(min, zip(*found, strict=True))
        say(f"  {what:<60} {clock:>8.1f} {work:>8.1f}")
    say("")
    most = limits.loop_hold_ms
    return [Goal(f"loop held by: {what}", min(work for _, work in held[what]), most, "ms", at_most=True) for what in held]


@contextmanager
def ticked() -> Iterator[Ticked]:
    """Run a server on a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        each = Ticked(Path(directory))
        with running(each.server):
            yield each
