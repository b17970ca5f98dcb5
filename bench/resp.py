"""The load over the Redis protocol: many commands at a time on each connection.

``python -m bench.resp '{"port": 6380, "script": "publish", "topic": "t", "connections": 8, "pipeline": 64, "seconds": 2}'``
prints one JSON object with what it measured. A latency is that of all the commands sent together.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bench.load import PAYLOAD, Counter, command_line, play

if TYPE_CHECKING:
    from collections.abc import Generator


class Batch(NamedTuple):
    """Commands sent together, how many replies they get, and what one of their replies looks like."""

    wire: bytes
    replies: int
    reply: re.Pattern[bytes]


if TYPE_CHECKING:
    Script = Generator[Batch, list[Any], None]

_STATUS = re.compile(rb"^\+(OK)\r\n|^-[^\r]*\r\n", re.MULTILINE)
#: The id and the token of a job, both empty for a queue that is empty or an error; our payload has no line ends.
_JOB = re.compile(
    rb"^\$\d+\r\n([^\r]+)\r\n\$\d+\r\n([^\r]+)\r\n\$\d+\r\n[^\r]*\r\n|^\*(?:0|-1)\r\n|^_\r\n|^-[^\r]*\r\n", re.MULTILINE
)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def publish(counter: Counter, topic: str, pipeline: int) -> Script:
    """Publish as many messages at a time as the pipeline holds."""
    batch = Batch(command(b"PUBLISH", topic.encode(), PAYLOAD) * pipeline, pipeline, _STATUS)
    while counter.goes_on():
        replies = yield batch
        counter.jobs += pipeline
        counter.errors += pipeline - replies.count(b"OK")


def pull_done(counter: Counter, topic: str, pipeline: int) -> Script:
    """Pull as many jobs as the pipeline holds, each with a command of its own; then say of each that it is done."""
    pull = Batch(command(b"PULL", topic.encode(), b"COUNT", b"1") * pipeline, pipeline, _JOB)
    while counter.goes_on():
        pulled = yield pull
        done = [b"*3\r\n$4\r\nDONE\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(i), i, len(t), t) for i, t in pulled if i]
        if not done:
            return
        replies = yield Batch(b"".join(done), len(done), _STATUS)
        counter.jobs += len(done)
        counter.errors += len(done) - replies.count(b"OK")


SCRIPTS: dict[str, Any] = {"publish": publish, "pull_done": pull_done}


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
        self.send(next(self.script, None))

    def send(self, batch: Batch | None) -> None:
        self.batch = batch
        if batch is None:
            self.transport.close()
            return
        self.sent_at = time.perf_counter()
        self.transport.write(batch.wire)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        assert self.batch is not None, "nothing was asked"
        replies = self.batch.reply.findall(self.buffer)
        if len(replies) < self.batch.replies:
            return
        self.buffer = b""
        self.counter.latencies.append(time.perf_counter() - self.sent_at)
        try:
            self.send(self.script.send(replies))
        except StopIteration:
            self.send(None)

    def connection_lost(self, _error: Exception | None) -> None:
        self.counter.errors += self.batch is not None
        if not self.done.done():
            self.done.set_result(None)


async def run(
    *, port: int, script: str, topic: str, connections: int, pipeline: int, seconds: float, jobs_max: int | None = None
) -> dict[str, float]:
    """Run a script on many connections and return rates and latencies."""
    counter = Counter(seconds, jobs_max)
    scripts = (SCRIPTS[script](counter, topic, pipeline) for _ in range(connections))
    return await play(port, counter, (partial(Connection, each, counter) for each in scripts))


if __name__ == "__main__":
    command_line(run)
