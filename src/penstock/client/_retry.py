"""When a call is tried again, and when it is given up. Decisions only; waiting and sending are the transport's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec

from penstock.client import _clock
from penstock.client.errors import ApiError, Conflict, ConnectionFailed, LeaseLost, NotFound

if TYPE_CHECKING:
    from penstock.client._call import Call

log = logging.getLogger("penstock.client")

#: The first pause, and the longest, in seconds. Each is twice the one before, with chance in it.
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
#: A server's Retry-After is honoured up to this many seconds.
RETRY_AFTER_S_MAX: Final = 30.0
#: It did not happen; the server says so. Trying again is always safe.
REFUSED_FOR_NOW: Final = (429, 503)
#: It may have happened: the answer got lost behind a proxy, or the disk failed in between.
UNKNOWN: Final = (502, 504)
#: The request never left.
NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class Attempts:
    """The tries of one call, for ``retry_for`` seconds from the first failure on."""

    def __init__(self, call: Call[Any], retry_for: float) -> None:
        self.call = call
        self.repeated = False  #: an earlier try may have counted
        self._retry_for = retry_for
        self._ends: float | None = None
        self._told = False
        self._pause = FIRST_PAUSE_S

    def after_no_answer(self, error: httpx2.TransportError) -> float:
        """Return how many seconds to wait before the next try. Raises ConnectionFailed if there is none."""
        unknown = not isinstance(error, NOT_SENT)
        self.repeated = self.repeated or unknown
        pause = None if isinstance(error, httpx2.UnsupportedProtocol) else self._next_pause(unknown=unknown)
        what = f"No answer to {self.call.method} {self.call.path}: {str(error) or type(error).__name__}"
        if pause is None:
            if self.repeated:
                what += ". It had been sent, so its outcome is unknown: it may have been done"
            raise ConnectionFailed(what, outcome_unknown=self.repeated) from error
        self._tell(what)
        return pause

    def after_refusal(self, response: httpx2.Response) -> float | None:
        """Return how many seconds to wait before the next try, or None: it is done. Raises ApiError if it is final."""
        status = response.status_code
        if self.repeated and status in self.call.already:
            return None
        error = error_of(response, repeated=self.repeated, settles=self.call.settles)
        unknown = error.outcome_unknown
        self.repeated = self.repeated or unknown
        if unknown or status in REFUSED_FOR_NOW:
            pause = self._next_pause(unknown=unknown, at_least=_retry_after(response))
            if pause is not None:
                self._tell(f"{self.call.method} {self.call.path} was refused for now: {error}")
                return pause
        raise error

    def _tell(self, what: str) -> None:
        """Say once, in the log, that a call takes longer, and why: whoever waits for it may wonder."""
        if not self._told:
            self._told = True
            log.warning("%s. Trying again for up to %g s.", what.rstrip("."), self._retry_for)

    def _next_pause(self, *, unknown: bool, at_least: float = 0.0) -> float | None:
        if unknown and not self.call.repeatable:
            return None
        now = _clock.steady()
        if self._ends is None:
            self._ends = now + self._retry_for
        pause = max(_clock.jittered(self._pause), at_least)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        return pause if now + pause <= self._ends else None


class _ErrorBody(msgspec.Struct):
    error: str = ""


def error_of(response: httpx2.Response, *, repeated: bool = False, settles: bool = False) -> ApiError:
    """Return the error an answer stands for. ``repeated``: see ApiError. ``settles``: see Call."""
    try:
        message = msgspec.json.decode(response.content, type=_ErrorBody).error
    except msgspec.DecodeError:
        message = response.text[:200]
    status, code = response.status_code, response.headers.get("penstock-error", "")
    kind = ApiError
    if status == 404:
        kind = NotFound
    elif status == 409:
        kind = Conflict
    elif status == 410 or code == "stale_lease" or (settles and code == "refused"):
        kind = LeaseLost
    return kind(status, code, message or response.reason_phrase, repeated=repeated)


def _retry_after(response: httpx2.Response) -> float:
    try:
        return min(float(response.headers.get("retry-after", "0")), RETRY_AFTER_S_MAX)
    except ValueError:
        return 0.0
