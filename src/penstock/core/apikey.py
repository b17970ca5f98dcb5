"""API keys.

A key defines which roles a client has in which namespaces. It is identified by a digest of its secret; only the owner has
the secret.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: The prefix of every key, so that a leaked key can be recognised.
PREFIX: Final = "pk_"


class ApiKey(msgspec.Struct, frozen=True):
    """An API key. Its text is ``pk_``, the id, ``_`` and a secret. Only a digest of the text is stored."""

    id: str
    digest: bytes  #: SHA-256 of the whole text
    namespaces: tuple[str, ...]  #: ``*``: all namespaces, and the server as a whole
    roles: tuple[str, ...]
    label: str
    created_at: int  #: wall clock, ms
    expires_at: int | None = None  #: wall clock, ms; None: never
    revoked_at: int | None = None  #: wall clock, ms; None: the key is not revoked

    @property
    def prefix(self) -> str:
        """The part of the key's text that may be shown."""
        return f"{PREFIX}{self.id}"
