"""The job in a handler: its data, and methods to report progress and log lines."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from penstock.client._sanitize import LOG_CHARS_MAX, PROGRESS_CHARS_MAX, sendable
from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.client.models import Job

Level = Literal["info", "warn", "error"]
#: Lines of a job's log that wait to be sent; the server keeps no more.
LOG_LINES_MAX: Final = 100


class JobCancelled(PenstockError):
    """The lease is lost, or the worker has to stop: the outcome of the handler is not counted any more."""


class Reports(NamedTuple):
    """Reports of a handler that are not sent yet."""

    progress: tuple[int, str | None] | None
    lines: list[tuple[str, Level]]


class JobContext:
    """A job in a handler. Its methods can be called from any thread, and from coroutines; none of them waits."""

    __slots__ = (
        "_cancelled", "_lines", "_open", "_progress", "_report", "begun", "ends_at", "info", "look_at", "replaced", "reporter",
        "taken_at", "task", "thread", "timed_out",
    )  # fmt: skip

    def __init__(self, info: Job, report: Callable[[JobContext], None], taken_at: float = 0.0) -> None:
        self.info = info  #: the job as the server sent it
        self.taken_at = taken_at  #: when it was claimed, in seconds of the steady clock, like the next two
        self.ends_at = 0.0  #: when its timeout ends, if it has one
        self.look_at: float | None = None  #: when to check whether its timeout is over
        self.timed_out = False  #: whether its timeout is over
        self.begun = False  #: whether a handler was started
        self.replaced = False  #: whether its thread was abandoned, and another one has replaced it
        self.thread: int | None = None  #: in which its function runs
        self.task: asyncio.Task[None] | None = None  #: in which its coroutine runs
        self.reporter: asyncio.Task[None] | None = None  #: in which reports are being sent
        self._open = [None]  #: emptied by the first caller that records the outcome
        self._report = report
        self._cancelled = False
        self._progress: tuple[int, str | None] | None = None
        self._lines: deque[tuple[str, Level]] | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.info.id

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self.info.queue

    @property
    def data(self) -> Any:
        """The payload that was pushed."""
        return self.info.data

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on."""
        return self.info.attempts + 1

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final."""
        return self.attempt >= self.info.max_attempts

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the job was removed, its lease or timeout is over, or the worker's stop timeout is over."""
        return self._cancelled

    def check(self) -> None:
        """Raise JobCancelled if the handler should stop. For handlers that run in a thread: coroutines are cancelled."""
        if self._cancelled:
            raise JobCancelled(f"Job {self.id} is not ours any more")

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report the progress, from 0 to 100, in whole percents; of several reports in a row the last is sent.

        ``message``: up to 4,096 characters are kept. Raises JobCancelled like ``check``, TypeError or ValueError for invalid
        values.
        """
        self.check()
        if isinstance(percent, bool) or not isinstance(percent, int | float):
            raise TypeError(f"percent must be a number, not {type(percent).__name__}")
        if not isinstance(message, str | None):
            raise TypeError(f"message must be a text, not {type(message).__name__}")
        if percent != percent:  # noqa: PLR0124, math.isnan() would fail for huge ints
            raise ValueError("percent must be a number from 0 to 100, not NaN")
        text = None if message is None else sendable(message, PROGRESS_CHARS_MAX)
        self._progress = (round(min(100, max(0, percent))), text)
        self._report(self)

    def log(self, message: str, level: Level = "info") -> None:
        """Add a line to the job's log. Of many lines in a row, the last 100 are sent; of a line, 65,536 characters.

        Raises JobCancelled like ``check``, TypeError or ValueError for invalid values.
        """
        self.check()
        if not isinstance(message, str):
            raise TypeError(f"message must be a text, not {type(message).__name__}")
        if level not in get_args(Level):
            raise ValueError(f"level must be one of {', '.join(get_args(Level))}, not {level!r}")
        if self._lines is None:
            self._lines = deque(maxlen=LOG_LINES_MAX)
        self._lines.append((sendable(message, LOG_CHARS_MAX), level))
        self._report(self)

    # Used by the worker.

    def cancel(self) -> None:
        """Request that the handler stops."""
        self._cancelled = True

    @property
    def finished(self) -> bool:
        """Whether the outcome was recorded."""
        return not self._open

    def finish(self) -> bool:
        """Record that there is an outcome; False if there was one before. From any thread."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return True

    @property
    def has_reports(self) -> bool:
        """Whether there are reports that were not taken yet."""
        return self._progress is not None or bool(self._lines)

    def take_reports(self) -> Reports | None:
        """Return the reports that were not taken yet."""
        progress, self._progress = self._progress, None
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return Reports(progress, lines) if progress is not None or lines else None


_current: ContextVar[JobContext] = ContextVar("penstock_job")
set_current = _current.set


def current_job() -> JobContext:
    """Return the job of the current thread or coroutine. Raises LookupError outside of a worker."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("current_job() is known only while a worker runs a handler or a task") from None
