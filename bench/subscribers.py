"""``python -m bench.subscribers``: what a thousand WebSocket readers cost those who push.

Pushes are measured without readers, with readers of something that never happens, and with readers of the queues' counts, in
turns, several rounds; the medians are compared. The readers are a process of their own that throws away what it gets, so that
what is measured is the server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import uvloop

from bench.processes import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

READERS = 1_000
#: What the readers subscribe to, and the share of the pushes without readers that should be left.
CASES = {"cron:missed": 0.9, "queue:counts": 0.5}


def frame(text: bytes) -> bytes:
    """Return a text message as a client sends it; the mask of zeros leaves it as it is."""
    return bytes((0x81, 0x80 | len(text))) + bytes(4) + text


class SocketReader(asyncio.Protocol):
    """Subscribes, then counts bytes."""

    received = 0

    def __init__(self, event: str, ready: asyncio.Future[None]) -> None:
        self.event = event
        self.ready = ready
        self.replied = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        key = base64.b64encode(bytes(16)).decode()
        self.transport.write(
            f"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 101"):
            self.transport.write(frame(json.dumps({"cmd": "Subscribe", "events": [self.event]}).encode()))
        elif not self.ready.done():
            self.ready.set_result(None)
        SocketReader.received += len(data)


async def read(port: int, event: str) -> None:
    """Connect all readers, say so, and read until the standard input ends."""
    loop = asyncio.get_running_loop()
    waiting = []
    for _ in range(READERS):
        ready: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(lambda ready=ready: SocketReader(event, ready), "127.0.0.1", port)  # type: ignore[misc]
        waiting.append(ready)
    await asyncio.gather(*waiting)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(SocketReader.received)


@contextmanager
def readers(port: int, event: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.subscribers", "--read", event, "--port", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("the readers could not connect")
        yield
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(read(asked.port, asked.read))
        return
    rates: dict[str, list[float]] = defaultdict(list)
    with penstock("always") as server:
        server.load("push", seconds=1.0, queue="bench")
        for _ in range(asked.rounds):
            rates["nobody"].append(server.load("push", seconds=asked.seconds, queue="bench")["rate"])
            for event in CASES:
                with readers(server.port, event):
                    rates[event].append(server.load("push", seconds=asked.seconds, queue="bench")["rate"])
    alone = statistics.median(rates["nobody"])
    print(f"pushes per second without readers: {alone:.0f}")
    for event, goal in CASES.items():
        rate = statistics.median(rates[event])
        mark = "ok  " if rate / alone >= goal else "MISS"
        print(f"  {mark}  with {READERS} readers of {event:<14} {rate:8.0f}  {rate / alone:5.2f} x (goal >= {goal} x)")


if __name__ == "__main__":
    main()
