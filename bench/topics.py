"""The topics door over HTTP/2 and over the Redis protocol, in turns with the jobs door, with durability ``always``."""

from __future__ import annotations

from bench.goals import Goal, Rounds, say
from bench.processes import penstock

STREAMS = 12
#: Connections and commands sent together on each: as many connections as HTTP has, and fewer where each does more.
PIPES = {"32 connections": (32, 1), "8 connections, pipelines of 64": (8, 64)}


def topics(rounds: int, seconds: float) -> list[Goal]:
    """Measure publishing and consuming at the topics door, in turns with push, pull and ack at the jobs door."""
    measured = Rounds()
    with penstock("always") as server:
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            measured.add("jobs door: push, 32 connections", server.load("push", seconds=seconds, queue="p"))
            measured.add("HTTP/2: publish, 12 streams", server.http2("publish", streams=STREAMS, seconds=seconds, topic="p"))
            for name, pipes in PIPES.items():
                measured.add(f"RESP: publish, {name}", server.resp("publish", pipes, seconds=seconds, topic="p"))
            server.load("bulk", seconds=seconds, queue="c")  # more than all of the following take
            measured.add("jobs door: pull + ack, 32 connections", server.load("pull_ack", seconds=seconds, queue="c"))
            for name, streams in (("1 stream", 1), ("12 streams", STREAMS)):
                consumed = server.http2("consume", streams=streams, seconds=seconds, topic="c")
                measured.add(f"HTTP/2: consume + ack, {name}", consumed)
            for name, pipes in PIPES.items():
                measured.add(f"RESP: pull + done, {name}", server.resp("pull_done", pipes, seconds=seconds, topic="c"))
    measured.say("what (durability always, 200-byte payloads)")
    return [
        Goal(
            "RESP publish in pipelines of 64 / single push over HTTP",
            measured.ratio("RESP: publish, 8 connections, pipelines of 64", "jobs door: push, 32 connections"),
            4,
        ),
        Goal(
            "consume + ack over 12 streams / pull + ack of the jobs door",
            measured.ratio("HTTP/2: consume + ack, 12 streams", "jobs door: pull + ack, 32 connections"),
            0.8,
        ),
    ]
