"""The topics door over HTTP/2 and over the Redis protocol, in turns with the jobs door, with durability ``always``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.goals import Goal, Rounds, say
from bench.processes import penstock

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.processes import Penstock

    Measures = dict[str, Callable[[], dict[str, float]]]

PUSH = "jobs door: push, 32 connections"
PUBLISH_PIPELINED = "RESP: publish, 8 connections, pipelines of 64"
PULL_ACK = "jobs door: pull + ack, 32 connections"
CONSUME = "HTTP/2: consume + ack, 12 streams"
#: Connections, and commands sent together on each: as many connections as HTTP has, and fewer where each does more.
SINGLE, PIPELINED = (32, 1), (8, 64)


def publishers(server: Penstock, seconds: float) -> Measures:
    """Return what fills a queue."""
    return {
        PUSH: lambda: server.load("push", seconds=seconds, queue="p"),
        "HTTP/2: publish, 12 streams": lambda: server.http2("publish", streams=12, seconds=seconds, topic="p"),
        "RESP: publish, 32 connections": lambda: server.resp("publish", SINGLE, seconds=seconds, topic="p"),
        PUBLISH_PIPELINED: lambda: server.resp("publish", PIPELINED, seconds=seconds, topic="p"),
    }


def consumers(server: Penstock, seconds: float) -> Measures:
    """Return what empties one; all of them take from the same, and the jobs in it are the same."""
    return {
        PULL_ACK: lambda: server.load("pull_ack", seconds=seconds, queue="c"),
        CONSUME: lambda: server.http2("consume", streams=12, seconds=seconds, topic="c"),
        "HTTP/2: consume + ack, 1 stream": lambda: server.http2("consume", streams=1, seconds=seconds, topic="c"),
        "RESP: pull + done, 32 connections": lambda: server.resp("pull_done", SINGLE, seconds=seconds, topic="c"),
        "RESP: pull + done, 8 connections, pipelines of 64": lambda: server.resp(
            "pull_done", PIPELINED, seconds=seconds, topic="c"
        ),
    }


def topics(rounds: int, seconds: float) -> list[Goal]:
    """Measure publishing and consuming at the topics door, in turns with push, pull and ack at the jobs door."""
    measured = Rounds()

    def measure(number: int, measures: Measures) -> None:
        # The database is still busy for a while with what was pushed before, so everybody is first in some round.
        names = list(measures)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            measured.add(name, measures[name]())

    with penstock("always") as server:
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            measure(number, publishers(server, seconds))
            server.load("bulk", seconds=seconds, queue="c")  # more than all consumers take, however fast the machine is
            measure(number, consumers(server, seconds))
    measured.say("what (durability always, 200-byte payloads)")
    say("  A latency is that of all commands that were sent together.")
    return [
        Goal("RESP publish in pipelines of 64 / single push over HTTP", measured.ratio(PUBLISH_PIPELINED, PUSH), 4),
        Goal("consume + ack over 12 streams / pull + ack of the jobs door", measured.ratio(CONSUME, PULL_ACK), 0.8),
    ]
