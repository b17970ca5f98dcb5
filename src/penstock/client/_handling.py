"""Runs a handler on a job and says what became of it."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from penstock.client._plain import encode
from penstock.client._texts import ERROR_CHARS_MAX, sendable, sendable_stack
from penstock.client._units import duration_ms
from penstock.client.context import JobCancelled, JobContext, set_current
from penstock.client.errors import Fail, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler: TypeAlias = Callable[[JobContext], Any]

NULL = msgspec.Raw(b"null")
#: A request may have 10 MB; a result needs a little company.
RESULT_BYTES_MAX = 9_900_000
#: The longest that the server lets a failed job wait: a year.
RETRY_MS_MAX: Final = 365 * 24 * 3_600_000


class Done(NamedTuple):
    """It worked; the result, as JSON."""

    result: msgspec.Raw


class Failed(NamedTuple):
    """It did not. ``final``: trying again is no use. ``retry_ms``: when to try again, in place of the backoff."""

    error: str
    stack: list[str]
    final: bool = False
    retry_ms: int | None = None


class Dropped(NamedTuple):
    """Nobody wants to know any more, or it was not begun."""


Outcome: TypeAlias = Done | Failed | Dropped
DROPPED = Dropped()


def is_async(handler: Handler) -> bool:
    """Tell whether a handler is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def run(handler: Handler, context: JobContext) -> Outcome:
    """Run a handler in this thread."""
    set_current(context)
    try:
        return done(handler(context))
    except BaseException as error:  # noqa: BLE001, whatever goes wrong, sys.exit() included, is the job's failure
        return failure(context, error)


async def run_async(handler: Handler, context: JobContext) -> Outcome:
    """Run a handler in this loop."""
    set_current(context)
    try:
        return done(await handler(context))
    except asyncio.CancelledError as error:
        if context.cancelled:
            return DROPPED
        return failure(context, error)  # it has cancelled itself
    except BaseException as error:  # noqa: BLE001, likewise
        return failure(context, error)


def done(result: Any) -> Done:
    """Return that it worked. Raises TypeError for a result that JSON cannot say, Fail for one the server would not take."""
    if result is None:
        return Done(NULL)
    encoded = encode(result)
    if len(encoded) > RESULT_BYTES_MAX:
        raise Fail(
            f"The result has {len(encoded)} bytes as JSON, and {RESULT_BYTES_MAX} at most are kept. Store it elsewhere."
        )
    return Done(msgspec.Raw(encoded))


def failure(context: JobContext, error: BaseException) -> Outcome:
    """Return what an exception means for the job. Raises nothing, whatever the exception is like."""
    try:
        return _failure(context, error)
    except BaseException as trouble:  # noqa: BLE001, who runs handlers must outlive all that they raise
        return Failed(f"An exception that cannot be shown: looking at it raised {type(trouble).__name__}", [])


def _failure(context: JobContext, error: BaseException) -> Outcome:
    if isinstance(error, JobCancelled) and context.cancelled:
        return DROPPED
    stack = sendable_stack(traceback.format_exception(error))
    said = _said(error)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, Retry):
        retry_ms, remark = _retry_ms(getattr(error, "after", None))  # a subclass may have none
        room = ERROR_CHARS_MAX - len(remark)
        return Failed(sendable(said or text, room) + remark, stack, retry_ms=retry_ms)
    final = isinstance(error, Fail)
    return Failed(sendable(said if said and final else text, ERROR_CHARS_MAX), stack, final=final)


def _said(error: BaseException) -> str:
    """Return the text of an exception, as much of it as can be kept."""
    try:
        return str(error)[:ERROR_CHARS_MAX]
    except Exception as trouble:  # noqa: BLE001, a __str__ may do anything
        return f"(its text cannot be had: __str__ raised {type(trouble).__name__})"


def _retry_ms(after: Any) -> tuple[int | None, str]:
    """Return when to try again, and a remark if that is not what the handler asked for."""
    if after is None:
        return None, ""
    try:
        wanted = duration_ms(after, "after")
    except Exception as wrong:  # noqa: BLE001, it may be anything
        return None, sendable(f" (Retry was raised wrongly, so the job's backoff decides: {wrong})", 1000)
    if wanted > RETRY_MS_MAX:
        return RETRY_MS_MAX, " (Retry asked for more than a year, which is the longest there is)"
    return wanted, ""
