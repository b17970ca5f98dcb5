"""Requests that wait: they end when the key or token of the client expires or is revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.access.expiry import Expiry
from penstock.core.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.access.identity import Identity
    from penstock.core.clock import Clock
    from penstock.doors.http.request import ApiRequest

ENDED: Final = "The token or key was revoked, or has expired, while the request waited. Get a new one."


class IdentityWatch:
    """Calls ``when_ended`` when the identity of a request has ended, and at once if it has already.

    Call ``cancel`` at the end.

    If the client has shown another token on its connection meanwhile, the new token counts.
    """

    def __init__(self, req: ApiRequest, clock: Clock, when_ended: Callable[[], object]) -> None:
        self._req = req
        self._clock = clock
        self._when_ended = when_ended
        self._expiry: Expiry | None = None
        self.is_over = False
        self._watch()

    def _watch(self) -> None:
        identity: Identity | None = self._req.identity
        if identity is not None:
            self._expiry = Expiry(identity, self._clock, lambda: self._ended(identity))

    def _ended(self, identity: Identity) -> None:
        if self._req.identity is not identity:
            self._watch()
            return
        self.is_over = True
        self._when_ended()

    def check(self) -> None:
        """Raise Unauthorized if the identity has ended."""
        if self.is_over:
            raise Unauthorized(ENDED)

    def cancel(self) -> None:
        """Stop watching."""
        if self._expiry is not None:
            self._expiry.cancel()
