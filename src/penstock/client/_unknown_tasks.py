"""Jobs whose task this worker does not have: how long they are deferred, and when that ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.client import _clock
from penstock.client._execute import Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.models import Job

log = logging.getLogger("penstock.client")

#: For how long a job is released, in seconds: as long as it was deferred already, within these bounds.
SHORTEST_S: Final = 1
LONGEST_S: Final = 60
#: A missing task is logged once in this time, in seconds; and at most so many different ones.
LOG_EVERY_S: Final = 60.0
LOGGED_MAX: Final = 1_000


class UnknownTaskPolicy:
    """Decides what happens to a job whose task this worker does not have.

    ``timeout``: after so many seconds in which no worker had the task, the job is dead. ``tasks``: the tasks of this worker.
    """

    def __init__(self, timeout: float, tasks: Sequence[str]) -> None:
        self._timeout = timeout
        self._tasks = ", ".join(sorted(tasks))
        self._logged: dict[str, float] = {}

    def decide(self, job: Job, task: str) -> int | Failed:
        """Return for how many seconds a job is released, or that it is dead.

        The server's timestamps give the time that the job was deferred: from its first release until this worker claimed it.
        """
        away = max(0, (job.started_at or 0) - job.deferred_since) / 1000 if job.deferred_since is not None else 0.0
        if away >= self._timeout:
            return Failed(
                f"No worker has had the task of this job ({task}) for {away:.0f} s. "
                f"The worker that had it last has these tasks: {self._tasks}",
                [],
                final=True,
            )
        seconds = SHORTEST_S
        while seconds * 2 <= min(away, LONGEST_S):
            seconds *= 2
        self._say_so(job, task, seconds)
        return seconds

    def _say_so(self, job: Job, task: str, seconds: int) -> None:
        now = _clock.steady()
        if now - self._logged.get(task, now - LOG_EVERY_S) < LOG_EVERY_S:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged[task] = now
        log.warning(
            "%s: this worker does not have this task. Job %s is released, and is ready again in %d s. No attempt is counted. "
            "If no worker has it within %g s, it is dead. This worker has: %s",
            task, job.id, seconds, self._timeout, self._tasks,
        )  # fmt: skip
