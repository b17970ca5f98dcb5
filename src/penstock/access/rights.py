"""Who may do what in which namespace. Doors ask; this decides.

Whoever a token lets in may do everything, so for now there is nothing to refuse. Credentials that are good for some namespaces
only (the scopes of a JWT) are refused here, with an error of their own.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.access.tokens import Headers


class Right(Enum):
    """What can be asked for in a namespace."""

    LOOK = "look"  #: list topics and dead letters
    PRODUCE = "produce"  #: bring messages
    TAKE = "take"  #: get messages to work on
    SETTLE = "settle"  #: say how they went, delete the dead


class Rights(Protocol):
    """Decides."""

    def check(self, headers: Headers, namespace: str, right: Right) -> None:
        """Return if whoever sent these headers has the right in the namespace; raises a PenstockError if not."""


class AllRights:
    """Whoever was let in may do everything."""

    def check(self, headers: Headers, namespace: str, right: Right) -> None:
        """Return."""
