"""The load: a small HTTP/1.1 client that costs as little as possible, run in a process of its own.

``python -m bench.load '{"port": 6790, "script": "push", ...}'`` prints one JSON object with what it measured.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    #: Makes the protocol of one connection, which sets the future when the connection is closed.
    Player = Callable[[asyncio.Future[None]], asyncio.Protocol]
    Script = Generator[bytes, bytes, None]

PAYLOAD = b'{"to":"user@example.com","subject":"Welcome","text":"' + b"x" * 137 + b'"}'  # 200 bytes
JOB = b'{"data":' + PAYLOAD + b"}"
_ID = re.compile(rb'[{]"id":([0-9]+),"namespace"')


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Counter:
    """What all connections of one run count together."""

    def __init__(self, seconds: float, jobs_max: int | None) -> None:
        self.jobs = 0
        self.errors = 0
        self.latencies: list[float] = []
        self.lateness: list[float] = []  #: of what has a moment at which it should come; counts instead, if there is any
        self.started = time.perf_counter()
        self.ends = self.started + seconds
        self.jobs_max = jobs_max
        self.asked = 0

    def goes_on(self) -> bool:
        if self.jobs_max is not None and self.asked >= self.jobs_max:
            return False
        self.asked += 1
        return time.perf_counter() < self.ends


def push(counter: Counter, queue: str, path: str | None = None) -> Script:
    """Push one job after the other."""
    wire = request("POST", path or f"/queues/{queue}/jobs", JOB)
    while counter.goes_on():
        reply = yield wire
        counter.jobs += 1
        counter.errors += not reply.startswith(b'{"ok":true')


def bulk(counter: Counter, queue: str, size: int = 100, delay: int = 0) -> Script:
    """Push a hundred jobs at a time."""
    job = JOB if not delay else b'{"delay":%d,"data":' % delay + PAYLOAD + b"}"
    wire = request("POST", f"/queues/{queue}/jobs/bulk", b'{"jobs":[' + b",".join([job] * size) + b"]}")
    while counter.goes_on():
        reply = yield wire
        counter.jobs += size
        counter.errors += not reply.startswith(b'{"ok":true')


def pull(counter: Counter, queue: str) -> Script:
    """Pull one job after the other, and leave it at that."""
    wire = request("GET", f"/queues/{queue}/jobs")
    while counter.goes_on():
        reply = yield wire
        if reply.startswith(b'{"ok":true,"job":null'):
            return
        counter.jobs += 1
        counter.errors += not reply.startswith(b'{"ok":true')


def pull_ack(counter: Counter, queue: str) -> Script:
    """Pull a job, acknowledge it with its token, and so on."""
    wire = request("GET", f"/queues/{queue}/jobs")
    while counter.goes_on():
        reply = yield wire
        if reply.startswith(b'{"ok":true,"job":null'):
            return
        job_id = reply[24:60].decode()
        token = reply[-38:-2]
        done = yield request("POST", f"/jobs/{job_id}/ack", b'{"token":"' + token + b'"}')
        counter.jobs += 1
        counter.errors += done != b'{"ok":true}'


def batches(counter: Counter, queue: str, size: int = 100, *, together: bool = True) -> Script:
    """Enqueue a batch at the batches door, dequeue one, and acknowledge it. Counts acknowledgements.

    ``together``: in one request, instead of one for each message.
    """
    message = {"namespace": "bench", "topic": queue, "payload": base64.b64encode(PAYLOAD).decode()}
    enqueue = request("POST", "/enqueue", json.dumps([message] * size).encode())
    dequeue = request("GET", f"/dequeue?namespace=bench&topic={queue}&limit={size}")
    while counter.goes_on():
        reply = yield enqueue
        counter.errors += not reply.startswith(b"[")
        reply = yield dequeue
        done = [b'{"id":%b,"namespace":"bench","topic":"%b"}' % (each, queue.encode()) for each in _ID.findall(reply)]
        if together:
            reply = yield request("POST", "/ack", b"[" + b",".join(done) + b"]")
            counter.jobs += len(done)
            counter.errors += reply != b"[]"
        else:
            for each in done:
                reply = yield request("POST", "/ack", each)
                counter.jobs += 1
                counter.errors += reply != b"OK"


def enqueue(counter: Counter, queue: str, size: int = 500) -> Script:
    """Enqueue at the batches door, a batch at a time. Counts messages."""
    message = {"namespace": "bench", "topic": queue, "payload": base64.b64encode(PAYLOAD).decode()}
    wire = request("POST", "/enqueue", json.dumps([message] * size).encode())
    while counter.goes_on():
        reply = yield wire
        counter.errors += not reply.startswith(b"[")
        counter.jobs += size


def dequeue(counter: Counter, queue: str, size: int = 10) -> Script:
    """Dequeue at the batches door, and leave it at that. Counts messages."""
    wire = request("GET", f"/dequeue?namespace=bench&topic={queue}&limit={size}")
    while counter.goes_on():
        reply = yield wire
        counter.errors += not reply.startswith(b"[")
        taken = reply.count(b'"created_at"')
        if not taken:
            return
        counter.jobs += taken


def cycle(counter: Counter, queue: str, size: int = 100) -> Script:
    """Push, pull and acknowledge at the jobs door, a batch at a time. Counts acknowledgements."""
    job = b",".join([JOB] * size)
    push_all = request("POST", f"/queues/{queue}/jobs/bulk", b'{"jobs":[' + job + b"]}")
    pull_all = request("POST", f"/queues/{queue}/jobs/pull-batch", json.dumps({"count": size}).encode())
    while counter.goes_on():
        reply = yield push_all
        counter.errors += not reply.startswith(b'{"ok":true')
        pulled = json.loads((yield pull_all))
        ids = [each["id"] for each in pulled["jobs"]]
        if ids:
            reply = yield request("POST", "/jobs/ack-batch", json.dumps({"ids": ids, "tokens": pulled["tokens"]}).encode())
            counter.jobs += len(ids)
            counter.errors += not reply.startswith(b'{"ok":true')


def publish(counter: Counter, queue: str, from_ms: int = 0, spread_ms: int = 0) -> Script:
    """Publish one message after the other at the messages door: now or, with ``spread_ms``, some time from ``from_ms`` on."""
    path, body = f"/namespaces/bench/queues/{queue}/messages", base64.b64encode(PAYLOAD)
    wire = request("POST", path, b'{"body":"%b"}' % body)
    while counter.goes_on():
        if spread_ms:
            at = int(time.time() * 1000) + from_ms + random.randrange(spread_ms)
            wire = request("POST", path, b'{"body":"%b","deliver_at":%d}' % (body, at))
        reply = yield wire
        counter.jobs += 1
        counter.errors += not reply.startswith(b'{"id":"')


def punctual(counter: Counter, queue: str, messages_max: int) -> Script:
    """Wait for messages whose bodies say when they are due, and acknowledge them. Measures how late they come."""
    wire = request("GET", f"/namespaces/bench/queues/{queue}/messages?wait_ms=1000")
    while counter.goes_on() and counter.jobs < messages_max:
        reply = yield wire
        now = time.time()
        for message in json.loads(reply)["messages"]:
            counter.lateness.append(now - int(base64.b64decode(message["body"])) / 1000)
            counter.jobs += 1
            counter.errors += bool((yield request("DELETE", f"/messages/{message['receipt_handle']}")))


SCRIPTS: dict[str, Any] = {
    "push": push,
    "bulk": bulk,
    "publish": publish,
    "pull": pull,
    "pull_ack": pull_ack,
    "punctual": punctual,
    "batches": batches,
    "batches_one_by_one": partial(batches, together=False),
    "cycle": cycle,
    "dequeue": dequeue,
    "enqueue": enqueue,
}


class Connection(asyncio.Protocol):
    """Plays a script: sends what it yields, hands back what was answered."""

    def __init__(self, script: Script, counter: Counter, done: asyncio.Future[None]) -> None:
        self.script = script
        self.counter = counter
        self.done = done
        self.buffer = b""
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self.advance(None)

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        head_end = buffer.find(b"\r\n\r\n")
        if head_end >= 0:
            at = buffer.find(b"content-length: ")
            length = int(buffer[at + 16 : buffer.find(b"\r\n", at)]) if at >= 0 else 0
            if len(buffer) >= head_end + 4 + length:
                self.buffer = b""
                self.counter.latencies.append(time.perf_counter() - self.sent_at)
                self.advance(buffer[head_end + 4 :])
                return
        self.buffer = buffer

    def advance(self, reply: bytes | None) -> None:
        try:
            wire = next(self.script) if reply is None else self.script.send(reply)
        except StopIteration:
            self.transport.close()
            return
        self.sent_at = time.perf_counter()
        self.transport.write(wire)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def play(port: int, counter: Counter, players: Iterable[Player]) -> dict[str, float]:
    """Give each player a connection of its own, wait until all have closed theirs, and return rates and latencies."""
    loop = asyncio.get_running_loop()
    finished = []
    for player in players:
        done: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(partial(player, done), "127.0.0.1", port)
        finished.append(done)
    await asyncio.gather(*finished)
    took = time.perf_counter() - counter.started
    latencies = sorted(counter.lateness or counter.latencies) or [0.0]
    return {
        "rate": counter.jobs / took,
        "jobs": counter.jobs,
        "errors": counter.errors,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        "min_ms": latencies[0] * 1000,
        "max_ms": latencies[-1] * 1000,
    }


async def run(
    port: int, script: str, connections: int, seconds: float, jobs_max: int | None = None, **options: Any
) -> dict[str, float]:
    """Run a script on many connections and return rates and latencies."""
    counter = Counter(seconds, jobs_max)
    scripts = (SCRIPTS[script](counter, **options) for _ in range(connections))
    return await play(port, counter, (partial(Connection, each, counter) for each in scripts))


def command_line(measure: Callable[..., Coroutine[Any, Any, dict[str, float]]]) -> None:
    """Measure what the only argument asks for and print it, both as JSON."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    command_line(run)
