"""Why the server closes a WebSocket, and how it says so: the HTTP server underneath has no words for it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.doors.net.raw_sockets import ends_of

if TYPE_CHECKING:
    from granian.rsgi import Scope

    from penstock.doors.net.raw_sockets import RawSockets
    from penstock.doors.net.send_queue import SendQueue


class Closing(IntEnum):
    """Why the server closes a connection, as the WebSocket protocol numbers it."""

    GOING_AWAY = 1001  #: the server stops
    BAD_FRAME = 1002  #: what came is not WebSocket
    NOT_ALLOWED = 1008  #: no token was shown in time, or the one that was has ended
    TOO_LARGE = 1009  #: a message was over the limit

    @property
    def reason(self) -> str:
        """Say it in words."""
        return _REASONS[self]


_REASONS: Final = {
    Closing.GOING_AWAY: "The server stops",
    Closing.BAD_FRAME: "Not a WebSocket frame",
    Closing.NOT_ALLOWED: "Not authenticated",
    Closing.TOO_LARGE: "Message too large (max 1MB)",
}


def close_frame(closing: Closing) -> bytes:
    """Return the frame that tells a client why its connection is closed."""
    body = closing.to_bytes(2) + closing.reason.encode()
    return bytes((0x88, len(body))) + body


async def say_why(links: RawSockets, scope: Scope, outbox: SendQueue[Any], closing: Closing | None) -> None:
    """Tell a client why its connection is closed, unless a message is half sent: then it is just cut off.

    ``closing``: None if the client takes nothing, so that it is told nothing.
    """
    if not links.reach(scope):
        return
    if outbox.broken_off:  # the server underneath would wait for the client for as long as it pleases
        await links.say(ends_of(scope), b"", over=True)
    elif closing is not None:
        await links.say(ends_of(scope), close_frame(closing))
