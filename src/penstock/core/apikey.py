"""What an API key is: who may do what where, known by a digest of a secret that nobody has but its owner."""

from __future__ import annotations

from typing import Final

import msgspec

#: What every key begins with, so that one that leaked is recognised for what it is.
PREFIX: Final = "pk_"


class ApiKey(msgspec.Struct, frozen=True):
    """One key. Its text is ``pk_``, the id, ``_`` and a secret, of which only a digest is kept."""

    id: str
    digest: bytes  #: SHA-256 of the whole text
    namespaces: tuple[str, ...]  #: ``*`` is all of them, and the server as a whole
    roles: tuple[str, ...]
    label: str
    created_at: int  #: wall clock, ms
    expires_at: int | None = None  #: wall clock, ms; None: never
    revoked_at: int | None = None  #: wall clock, ms; None: it is good

    @property
    def prefix(self) -> str:
        """The part of its text that may be shown."""
        return f"{PREFIX}{self.id}"
