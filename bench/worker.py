"""``python -m bench worker``: what the SDK's worker does with a handler that does nothing, end to end.

One server, one worker process. Jobs are pushed beforehand; measured is from the start of the worker until the server has
counted the last acknowledgement. In turns with pulls and acknowledgements of single jobs over 32 connections, by a client
that costs as little as possible.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.goals import Goal, Rounds, say
from bench.processes import penstock

if TYPE_CHECKING:
    from bench.processes import Penstock

JOBS = 40_000
BATCH = 1_000
KINDS = ("function", "coroutine")


def function(_job: Any) -> None:
    """Do nothing, in a thread."""


async def coroutine(_job: Any) -> None:
    """Do nothing, in a loop."""


def work(url: str, queue: str, kind: str) -> float:
    """Work until so many jobs are done; return jobs per second."""
    from penstock.client import Worker  # noqa: PLC0415, of the process that works, not of the one that measures

    worker = Worker(url, queue, function if kind == "function" else coroutine)
    started = time.perf_counter()

    def watch() -> None:
        while worker.processed < JOBS:
            time.sleep(0.005)
        took.append(time.perf_counter() - started)
        worker.stop()

    took: list[float] = []
    threading.Thread(target=watch, daemon=True).start()
    worker.run()
    return JOBS / took[0]


def measure(server: Penstock, queue: str, kind: str) -> float:
    """Fill a queue, and let a worker empty it in a process of its own; return jobs per second."""
    server.load("bulk", connections=2, seconds=600, queue=queue, size=BATCH, jobs_max=JOBS // BATCH)
    command = [sys.executable, "-m", "bench.worker", f"http://127.0.0.1:{server.port}", queue, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rate: float = json.loads(done.stdout)
    return rate


def workers(rounds: int, seconds: float) -> list[Goal]:
    """Measure a worker process with functions and with coroutines, in turns with pulls and acks of single jobs."""
    measured = Rounds()
    single = "pull + ack, one job at a time, 32 connections"
    with penstock("interval") as server:
        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            for kind in KINDS:
                measured.rates[f"worker, no-op {kind}"].append(measure(server, f"{kind}{number}", kind))
            server.load("bulk", connections=2, seconds=600, queue="single", size=BATCH, jobs_max=JOBS // BATCH)
            measured.rates[single].append(server.load("pull_ack", connections=32, seconds=seconds, queue="single")["rate"])
    say("")
    for name, values in measured.rates.items():
        say(f"  {name:<52} {statistics.median(values):>11,.0f} jobs per second")
    say("")
    return [
        Goal(f"one SDK worker, no-op {kind} / pull + ack", measured.ratio(f"worker, no-op {kind}", single), 2)
        for kind in KINDS
    ]


if __name__ == "__main__":
    print(json.dumps(work(*sys.argv[1:])))
