"""``python -m bench schedule`` and ``python -m bench accuracy``: what it costs to keep messages for later, and how punctual
they are.

The first puts ten million scheduled messages into a store, and looks at memory, the start, and the rate of publishing, in turns
with a server whose store is empty. The second has messages fall due all the time while consumers wait.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path

from bench.fill import FROM_MS, SPAN_MS
from bench.goals import Goal, Rounds, say
from bench.processes import Penstock, penstock, running

SCHEDULED = 10_000_000
CONNECTIONS = 32
CONSUMERS = 20
DUE_MESSAGES, DUE_SECONDS = 20_000, 60


def schedule(rounds: int, seconds: float) -> list[Goal]:
    """Measure a server with ten million scheduled messages beside one with none."""
    measured = Rounds()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))) / "data"
        say(f"  putting {SCHEDULED:,} messages into a store")
        subprocess.run([sys.executable, "-m", "bench.fill", str(directory), str(SCHEDULED)], check=True)
        full = Penstock(directory, "interval")
        ready = stack.enter_context(running(full))
        at_first = full.rss_mb()
        empty = stack.enter_context(penstock("interval"))
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            for name, spread_ms in (("now", 0), ("for any time within 30 days", SPAN_MS)):
                for store, server in (("empty", empty), ("10,000,000 scheduled", full)):
                    rate = server.load(
                        "publish",
                        connections=CONNECTIONS,
                        seconds=seconds,
                        queue=f"q{number}",
                        from_ms=FROM_MS,
                        spread_ms=spread_ms,
                    )
                    measured.add(f"publish {name}, {store}", rate)
        memory = full.rss_mb()
        scheduled = full.get("/api/stats/summary")["total_scheduled"]
        assert scheduled >= SCHEDULED, scheduled
    measured.say("what (32 connections, HTTP/1.1, 200-byte bodies)")
    say(f"  memory: {at_first:.0f} MB at the start, {memory:.0f} MB at the end; ready in {ready:.1f} s")
    return [
        Goal("memory with 10,000,000 scheduled messages", memory, 400, "MB", at_most=True),
        Goal("ready after a start with them", ready, 10, "s", at_most=True),
        *(
            Goal(
                f"publish {name}, with 10,000,000 scheduled / with none",
                measured.ratio(f"publish {name}, 10,000,000 scheduled", f"publish {name}, empty"),
                0.7,
            )
            for name in ("now", "for any time within 30 days")
        ),
    ]


def accuracy(_rounds: int, _seconds: float) -> list[Goal]:
    """Measure how late messages come to consumers that wait for them."""
    with penstock("always") as server:
        begin_ms = int(time.time() * 1000) + 10_000
        moments = [begin_ms + number * DUE_SECONDS * 1_000 // DUE_MESSAGES for number in range(DUE_MESSAGES)]
        for begin in range(0, DUE_MESSAGES, 100):
            batch = [{"body": b64encode(b"%d" % at).decode(), "deliver_at": at} for at in moments[begin : begin + 100]]
            server.post("/namespaces/bench/queues/punctual/messages/batch", batch)
        say(f"  {DUE_MESSAGES:,} messages fall due over {DUE_SECONDS} s, {CONSUMERS} consumers wait")
        late = server.load(
            "punctual", connections=CONSUMERS, seconds=DUE_SECONDS + 60, queue="punctual", messages_max=DUE_MESSAGES
        )
    say(
        f"  {late['jobs']:,} messages, late by: p50 {late['p50_ms']:.1f} ms, p99 {late['p99_ms']:.1f} ms, at most "
        f"{late['max_ms']:.1f} ms; the earliest {late['min_ms']:.2f} ms after its moment"
    )
    return [
        Goal("messages that were delivered", late["jobs"], DUE_MESSAGES, ""),
        Goal("late by, p50", late["p50_ms"], 10, "ms", at_most=True),
        Goal("late by, p99", late["p99_ms"], 50, "ms", at_most=True),
        Goal("late by, the least (none is early)", late["min_ms"], 0, "ms"),
    ]
