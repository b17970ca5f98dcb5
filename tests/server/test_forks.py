"""The tests' own way to start servers (``tests/support/forks.py``)."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

from tests.support import forks

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 8
ROUNDS = 5


def test_forks_that_threads_start_at_the_same_time_have_their_own_process_ids(tmp_path: Path) -> None:
    """A wrong id would let a test kill the server of another one, and wait for the end of its own without end."""
    pipe, errors, together = tmp_path / "settings.yaml", tmp_path / "errors", Barrier(THREADS)
    os.mkfifo(pipe)  # a command that reads it stays there until it is killed

    def start(_: int) -> forks.Fork:
        with errors.open("a") as log:
            together.wait()
            started = forks.fork(["config", "check", str(pipe)], os.environ, log.fileno())
        assert started is not None
        return started

    with ThreadPoolExecutor(THREADS) as threads:
        started = [fork for _ in range(ROUNDS) for fork in threads.map(start, range(THREADS))]
    for each in started:
        each.kill()
        assert each.wait(timeout=30) == -signal.SIGKILL
        each.stdout.close()
