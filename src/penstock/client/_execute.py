"""Run a handler on a job and return the outcome."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.client import _results
from penstock.client._durations import duration_ms
from penstock.client._sanitize import ERROR_CHARS_MAX, sendable
from penstock.client._stack import stack_of
from penstock.client.context import JobCancelled, JobContext, set_current
from penstock.client.errors import Fail, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    Handler: TypeAlias = Callable[[JobContext], Any]

#: The longest delay of a retry that the server accepts: a year.
RETRY_MS_MAX: Final = 365 * 24 * 3_600_000


class Done(NamedTuple):
    """The attempt succeeded; the result, as JSON."""

    result: msgspec.Raw


class Failed(NamedTuple):
    """The attempt failed. ``final``: no retry. ``retry_ms``: the delay of the retry, instead of the backoff."""

    error: str
    stack: list[str]
    final: bool = False
    retry_ms: int | None = None


class Dropped(NamedTuple):
    """The lease is lost, or the job was not started: it is released, and no attempt is counted."""


class Deferred(NamedTuple):
    """This worker cannot run the job, and another one may: it is released with a delay, and no attempt is counted."""

    task: str  #: the name of the missing task


class UnknownTask(Exception):
    """Raised when a job calls a task that this worker does not have."""


Outcome: TypeAlias = Done | Failed | Dropped | Deferred
DROPPED = Dropped()


def is_async(handler: Handler) -> bool:
    """Return whether a handler is a coroutine function, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def run(handler: Handler, context: JobContext) -> Outcome:
    """Run a handler in the current thread."""
    set_current(context)
    try:
        return Done(_results.encoded(handler(context)))
    except BaseException as error:  # noqa: BLE001, every exception, also of sys.exit(), is the job's failure
        return failure(context, error)


async def run_async(handler: Handler, context: JobContext) -> Outcome:
    """Run a handler in the running loop."""
    set_current(context)
    try:
        return Done(_results.encoded(await handler(context)))
    except BaseException as error:  # noqa: BLE001, likewise
        return failure(context, error)


def timed_out(context: JobContext, stack: list[str], remark: str = "") -> Failed:
    """Return the failure of an attempt that took longer than the job's timeout."""
    seconds = (context.info.timeout or 0) / 1000
    return Failed(f"Job timeout exceeded: the attempt took longer than {seconds:g} s{remark}", stack)


def failure(context: JobContext, error: BaseException) -> Outcome:
    """Return the outcome that an exception means for the job. Never raises, whatever the exception is."""
    try:
        return _failure(context, error)
    except BaseException as trouble:  # noqa: BLE001, who runs handlers must outlive all that they raise
        return Failed(f"An exception that cannot be shown: reading it raised {type(trouble).__name__}", [])


def _failure(context: JobContext, error: BaseException) -> Outcome:
    if isinstance(error, UnknownTask):
        return Deferred(str(error))
    if context.cancelled and isinstance(error, JobCancelled | asyncio.CancelledError):
        return timed_out(context, stack_of(error)) if context.timed_out else DROPPED
    stack = stack_of(error)
    said = _said(error)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, Retry):
        retry_ms, remark = _retry_ms(getattr(error, "after", None))  # a subclass may have none
        room = ERROR_CHARS_MAX - len(remark)
        return Failed(sendable(said or text, room) + remark, stack, retry_ms=retry_ms)
    final = isinstance(error, Fail)
    return Failed(sendable(said if said and final else text, ERROR_CHARS_MAX), stack, final=final)


def _said(error: BaseException) -> str:
    """Return the text of an exception, cut to the length that is stored."""
    try:
        return str(error)[:ERROR_CHARS_MAX]
    except Exception as trouble:  # noqa: BLE001, a __str__ may do anything
        return f"(its text is not available: __str__ raised {type(trouble).__name__})"


def _retry_ms(after: Any) -> tuple[int | None, str]:
    """Return the delay of the retry, and a remark if it differs from what the handler requested."""
    if after is None:
        return None, ""
    try:
        wanted = duration_ms(after, "after")
    except Exception as wrong:  # noqa: BLE001, it may be anything
        return None, sendable(f" (Retry was raised wrongly, so the job's backoff decides: {wrong})", 1000)
    if wanted > RETRY_MS_MAX:
        return RETRY_MS_MAX, " (Retry requested more than a year, which is the maximum)"
    return wanted, ""
