"""When a call is tried again, and when it is given up. Only decisions; the transport waits and sends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec

from penstock.client import _clock
from penstock.client._request import IF_SETTLED
from penstock.client.errors import ApiError, Conflict, ConnectionFailed, LeaseLost, NotFound

if TYPE_CHECKING:
    from penstock.client._request import ApiCall

log = logging.getLogger("penstock.client")

#: The first pause, and the longest, in seconds. Each is twice the one before, with a random part.
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
#: The longest pause of a call about a lease. A server that has restarted waits 2 s before it expires leases.
LONGEST_SETTLING_PAUSE_S: Final = 1.0
#: A connection may take at least this many seconds, whatever ``connect_timeout`` is.
SHORTEST_CONNECT_S: Final = 0.1
#: A server's Retry-After is honoured up to this many seconds.
RETRY_AFTER_S_MAX: Final = 30.0
#: The server did not do it. A retry is always safe.
REFUSED_FOR_NOW: Final = (429, 503)
#: The server did not do it, because its disk is full. Settling a job needs additional space for a short time only.
DISK_FULL: Final = 507
#: A call that may take so many seconds is tried until the server answers.
ENDLESS_S: Final = 365 * 86_400.0
#: The server may have done it: a proxy lost the answer, or the disk failed in between.
UNKNOWN: Final = (502, 504)
#: The request was not sent.
NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
#: No connection could be made.
UNREACHABLE: Final = (httpx2.ConnectError, httpx2.ConnectTimeout)


class Attempts:
    """The tries of one call, for ``retry_for`` seconds from the first failure on.

    ``connect_for``: give up earlier, after so many seconds without any connection; ``retry_for``.
    """

    def __init__(self, call: ApiCall[Any], retry_for: float, connect_for: float | None = None) -> None:
        self.call = call
        self.repeated = False  #: an earlier try may have counted
        self._retry_for = retry_for
        self._connect_for = retry_for if connect_for is None else min(connect_for, retry_for)
        self._ends: float | None = None
        self._try_began = _clock.steady()
        self._unreachable_since: float | None = None
        self._told = False
        self._pause = FIRST_PAUSE_S

    def after_no_answer(self, error: httpx2.TransportError) -> float:
        """Return how many seconds to wait before the next try. Raises ConnectionFailed if there is none."""
        unknown = not isinstance(error, NOT_SENT)
        self.repeated = self.repeated or unknown
        self._note_reach(error)
        pause = None if isinstance(error, httpx2.UnsupportedProtocol) else self._next_pause(unknown=unknown)
        what = f"No answer to {self.call.method} {self.call.path}: {_reason(error)}"
        if pause is None:
            if self.repeated:
                meaning = IF_SETTLED if self.call.settles else self.call.if_unknown
                what += f". It had been sent, so its outcome is unknown: {meaning}"
            raise ConnectionFailed(what, outcome_unknown=self.repeated) from error
        self._tell(what, self._retry_for if self._unreachable_since is None else self._connect_for)
        return pause

    def _note_reach(self, error: httpx2.TransportError) -> None:
        """Record since when no connection could be made."""
        if not isinstance(error, UNREACHABLE):
            self._unreachable_since = None
        elif self._unreachable_since is None:
            self._unreachable_since = self._try_began

    def after_refusal(self, response: httpx2.Response) -> float | None:
        """Return how many seconds to wait before the next try; None: it is done. Raises ApiError if the refusal is final."""
        status = response.status_code
        self._unreachable_since = None
        if self.repeated and status in self.call.already:
            return None
        error = error_of(response, repeated=self.repeated, settles=self.call.settles)
        unknown = error.outcome_unknown
        self.repeated = self.repeated or unknown
        if unknown or status in REFUSED_FOR_NOW or (status == DISK_FULL and self.call.settles):
            pause = self._next_pause(unknown=unknown, at_least=_retry_after(response))
            if pause is not None:
                self._tell(f"{self.call.method} {self.call.path} was refused for now: {error}", self._retry_for)
                return pause
        raise error

    def _tell(self, what: str, seconds: float) -> None:
        """Log once that a call takes longer, and why."""
        if not self._told:
            self._told = True
            how_long = "until there is an answer" if seconds >= ENDLESS_S else f"for up to {seconds:g} s"
            log.warning("%s. Trying again %s.", what.rstrip("."), how_long)

    def _next_pause(self, *, unknown: bool, at_least: float = 0.0) -> float | None:
        if unknown and not self.call.repeatable:
            return None
        now = _clock.steady()
        if self._ends is None:
            self._ends = now + self._retry_for
        ends = self._ends
        if self._unreachable_since is not None:
            ends = min(ends, self._unreachable_since + self._connect_for)
        left = ends - now
        if left <= 0 or at_least > left:
            return None
        # The last pause ends at the deadline, so that the last try is made then and not earlier.
        pause = min(max(_clock.jittered(self._pause), at_least), left)
        self._pause = min(self._pause * 2, LONGEST_SETTLING_PAUSE_S if self.call.settles else LONGEST_PAUSE_S)
        self._try_began = now + pause
        return pause


class _ErrorBody(msgspec.Struct):
    error: str = ""


def error_of(response: httpx2.Response, *, repeated: bool = False, settles: bool = False) -> ApiError:
    """Return the error for an answer. ``repeated``: see ApiError. ``settles``: see ApiCall."""
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


def _reason(error: httpx2.TransportError) -> str:
    """Return why there was no answer, with the host and port of the request."""
    text = str(error) or type(error).__name__
    try:
        url = error.request.url
    except RuntimeError:  # it was raised without a request
        return text
    address = f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"
    return f"cannot connect to {address} ({text})" if isinstance(error, UNREACHABLE) else f"{text} ({address})"


def _retry_after(response: httpx2.Response) -> float:
    try:
        return min(float(response.headers.get("retry-after", "0")), RETRY_AFTER_S_MAX)
    except ValueError:
        return 0.0
