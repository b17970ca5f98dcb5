"""``python -m bench fairness``: what a tenant notices of another one that asks for ten times as much.

One server. The quiet tenant has a few connections, each of which pushes a job, claims one, and rests for 10 ms after each. The
other tenant has ten times as many connections, which rest as long, so it asks for ten times as much. With
PENSTOCK_BENCH_FLOOD_REST_S=0 they never rest. Measured are the quiet tenant's push and claim, the median and p99: alone, and
beside each kind of flood, in turns; the goals are about the ratio of p99.

Each answer is timed twice: by the clock, and in processor time that the server used between the request and the answer. The
second is what the quiet tenant waits for because of the server, whatever other programs on the machine do. Of each figure the
lowest of the rounds counts, because other programs only add to it. If p99 alone is above five medians alone even so, the row is
marked "noisy", which is no verdict: repeat it on a quiet machine. Measured too is how much of the flood is answered beside the
quiet tenant, compared with a time in which only the flood was active. The generator of the flood has a lower priority (nice),
so that it does not take the processor from the server and from the quiet tenant.

``python -m bench.fairness '{"port": 6790, "script": "quiet", ...}'`` is one of the two tenants, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from bench.goals import Goal, say
from bench.load import JOB, PAYLOAD, command_line
from bench.processes import Penstock, penstock, running

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Script = Generator[bytes, bytes, None]

QUIET_CONNECTIONS = 8
FLOOD_CONNECTIONS = 10 * QUIET_CONNECTIONS
REST_S = 0.01
STEPS = ("push", "claim")
KINDS = ("wall", "work")
PARTS = (50, 99)
LARGE = b'{"data":"' + b"x" * 2_000_000 + b'"}'
FLOOD_REST_S = float(os.environ.get("PENSTOCK_BENCH_FLOOD_REST_S", REST_S))
#: p99 alone above so many medians means that the machine was not quiet.
NOISY = 5
#: A flood's own processor time must not be what the quiet tenant waits for.
FLOOD_NICENESS = "10"


class Took(NamedTuple):
    """What one answer took, in seconds: by the clock, and of the server's processor time."""

    wall: float
    work: float


def request(namespace: str, method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Namespace: {namespace}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def quiet() -> Script:
    """Push a job, and claim one."""
    push, claim = request("quiet", "POST", "/queues/q/jobs", JOB), request("quiet", "GET", "/queues/q/jobs")
    while True:
        yield push
        yield claim


def flood(method: str, path: str, body: bytes = b"") -> Script:
    """Ask for the same again and again."""
    wire = request("flood", method, path, body)
    while True:
        yield wire


def bulk_body(size: int) -> bytes:
    return b'{"jobs":[' + b",".join([b'{"data":' + PAYLOAD + b"}"] * size) + b"]}"


FLOODS: dict[str, Callable[[], Script]] = {
    "pushes": partial(flood, "POST", "/queues/q/jobs", JOB),
    "bulk pushes": partial(flood, "POST", "/queues/bulk/jobs/bulk", bulk_body(1_000)),
    "claims": partial(flood, "GET", "/queues/full/jobs"),
    "listings": partial(flood, "GET", "/queues/full/jobs/list?limit=1000"),
    "events": partial(flood, "POST", "/queues/q/jobs", JOB),
    "large bodies": partial(flood, "POST", "/queues/large/jobs", LARGE),
}
SCRIPTS: dict[str, Callable[[], Script]] = {"quiet": quiet} | FLOODS


class Connection(asyncio.Protocol):
    """Sends what a script yields, one after the other, and notes how long each answer took."""

    def __init__(self, script: Script, rest_s: float, latencies: list[list[Took]], pid: int) -> None:
        self.script = script
        self.processor = (~pid << 3) | 2  #: the clock of the processor time of a process, see clock_getcpuclockid(3)
        self.rest_s = rest_s
        self.latencies = latencies
        self.asked = 0
        self.errors = 0
        self.missing = 0  #: bytes of the answer that are not here yet; 0: its head is not
        self.head = b""
        self.sent_at = Took(0, 0)
        self.waits = False  #: for an answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        if not self.transport.is_closing():
            self.waits = True
            self.sent_at = self.now()
            self.transport.write(next(self.script))

    def data_received(self, data: bytes) -> None:
        if not self.missing:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self.head.find(b"content-length: ")
            length = int(self.head[at + 16 : self.head.find(b"\r\n", at)])
            self.errors += not self.head.startswith(b"HTTP/1.1 200")
            self.missing = length - (len(self.head) - end - 4)
            self.head = b""
        else:
            self.missing -= len(data)
        if not self.missing:
            self.answered()

    def answered(self) -> None:
        self.note()
        self.asked += 1
        self.waits = False
        if self.rest_s:
            asyncio.get_running_loop().call_later(self.rest_s, self.send)
        else:
            self.send()

    def give_up(self) -> None:
        """End it. What is not answered yet took at least until now."""
        if self.waits:
            self.note()
        self.transport.close()

    def now(self) -> Took:
        return Took(time.perf_counter(), time.clock_gettime(self.processor))

    def note(self) -> None:
        now, sent_at = self.now(), self.sent_at
        self.latencies[self.asked % len(self.latencies)].append(Took(now.wall - sent_at.wall, now.work - sent_at.work))


class Listener(asyncio.Protocol):
    """Reads events, and drops them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(request("flood", "GET", "/events"))


async def tenant(*, port: int, pid: int, script: str, connections: int, seconds: float, rest_s: float) -> dict[str, float]:
    """Be one of the tenants of the server with a port and a process id; with 0 seconds, until SIGTERM."""
    loop = asyncio.get_running_loop()
    latencies: list[list[Took]] = [[], []] if script == "quiet" else [[]]
    if script == "events":
        for _ in range(connections):
            await loop.create_connection(Listener, "127.0.0.1", port)
    talks = [Connection(SCRIPTS[script](), rest_s, latencies, pid) for _ in range(connections)]
    for talk in talks:
        await loop.create_connection(partial(_same, talk), "127.0.0.1", port)
    began, over = time.perf_counter(), asyncio.Event()
    if seconds:
        loop.call_later(seconds, over.set)
    else:
        loop.add_signal_handler(signal.SIGTERM, over.set)
        print("ready", flush=True)
    await over.wait()
    asked = sum(talk.asked for talk in talks)
    result: dict[str, float] = {"errors": sum(talk.errors for talk in talks), "rate": asked / (time.perf_counter() - began)}
    for talk in talks:
        talk.give_up()
    for step, found in zip(STEPS, latencies, strict=False):
        for kind in KINDS:
            times = sorted(getattr(each, kind) for each in found)
            result |= {f"{step} {kind} p{part}": _part_ms(times, part) for part in PARTS}
    return result


def _same(talk: Connection) -> Connection:
    return talk


def _part_ms(times: list[float], part: int) -> float:
    return times[len(times) * part // 100] * 1000 if times else math.nan


@contextmanager
def flooded(each: Penstock, kind: str, rates: list[float]) -> Iterator[None]:
    """Have the other tenant flood the server meanwhile; add to ``rates`` how many requests of it were answered per second."""
    options = {
        "port": each.port, "pid": each.process.pid, "script": kind, "connections": FLOOD_CONNECTIONS, "seconds": 0,
        "rest_s": FLOOD_REST_S,
    }  # fmt: skip
    command = ["nice", "-n", FLOOD_NICENESS, sys.executable, "-m", "bench.fairness", json.dumps(options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.terminate()
        rates.append(json.loads(process.stdout.read())["rate"])
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def measure(each: Penstock, seconds: float) -> dict[str, float]:
    """Be the quiet tenant for some seconds."""
    options = {
        "port": each.port, "pid": each.process.pid, "script": "quiet", "connections": QUIET_CONNECTIONS, "seconds": seconds,
        "rest_s": REST_S,
    }  # fmt: skip
    command = [sys.executable, "-m", "bench.fairness", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    if measured["errors"]:
        raise SystemExit(f"the quiet tenant: {measured['errors']:.0f} requests failed")
    return measured


def fairness(rounds: int, seconds: float) -> list[Goal]:
    """Measure the quiet tenant alone, and beside each flood, in turns; before that, each flood without the quiet tenant."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rates: dict[str, list[float]] = defaultdict(list)
    unshared: dict[str, list[float]] = defaultdict(list)
    wanted = os.environ.get("PENSTOCK_BENCH_FLOODS")  # some of them only, separated by commas
    only = [kind for kind in FLOODS if not wanted or kind in wanted.split(",")]
    with server() as each:
        for _ in range(20):
            each.post("/queues/full/jobs/bulk", json.loads(bulk_body(10_000)), {"X-Namespace": "flood"})
        for kind in only:
            for _ in range(min(rounds, 3)):
                with flooded(each, kind, unshared[kind]):
                    time.sleep(seconds)
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            for kind in only:
                for name, value in measure(each, seconds).items():
                    alone[kind][name].append(value)
                with flooded(each, kind, rates[kind]):
                    for name, value in measure(each, seconds).items():
                        found[kind][name].append(value)
    say(f"\n  {'lowest of the rounds, ms':<28} {'clock':>20} {'work of the server':>28}")
    say(f"  {'':<28} {'p50':>9} {'p99':>10} {'p50':>17} {'p99':>10}")
    for step in STEPS:
        for kind in only:
            for what, row in ((f"{step} alone", alone[kind]), (f"{step} beside {kind}", found[kind])):
                wall, work = ([min(row[f"{step} {clock} p{part}"]) for part in PARTS] for clock in KINDS)
                say(f"  {what:<28} {wall[0]:9.2f} {wall[1]:10.2f} {work[0]:17.2f} {work[1]:10.2f}")
    say("")
    goals = [goal for kind in only for step in STEPS for goal in _goals(step, kind, alone[kind], found[kind])]
    goals += [Goal(f"answers to {kind}, shared / not shared", max(rates[kind]) / max(unshared[kind]), 0.7) for kind in only]
    return goals


def _goals(step: str, kind: str, alone: dict[str, list[float]], beside: dict[str, list[float]]) -> list[Goal]:
    """Compare p99 by the clock and by the work of the server, each in the round in which it was lowest.

    What other programs do only adds to it. If p99 alone is far from the median even so, a ratio to it means nothing.
    """
    goals = []
    for clock, name in zip(KINDS, ("clock", "work"), strict=True):
        p50, p99, flooded_p99 = alone[f"{step} {clock} p50"], alone[f"{step} {clock} p99"], beside[f"{step} {clock} p99"]
        ratio = min(flooded_p99) / min(p99)
        is_noisy = min(p99) > NOISY * min(p50)
        goals.append(Goal(f"p99 of {step} beside {kind} / alone, by {name}", ratio, 3, at_most=True, is_noisy=is_noisy))
    return goals


@contextmanager
def server() -> Iterator[Penstock]:
    """Run the server that is asked: on SQLite, or where PENSTOCK_BENCH_STORES says."""
    stores = os.environ.get("PENSTOCK_BENCH_STORES")
    if not stores:
        with penstock("always") as each:
            yield each
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        each = Penstock(Path(directory) / "data", "always", settings={"PENSTOCK_STORES": stores})
        with running(each):
            yield each


if __name__ == "__main__":
    command_line(tenant)
