"""API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.apikey import ApiKey


class ApiKeyStore(Protocol):
    """API keys. Each change is durable when the call returns."""

    async def key_add(self, key: ApiKey, most: int) -> None:
        """Store a new API key, durably.

        At most ``most`` are kept; revoked and expired keys are deleted first. Raises TooMany.
        """

    async def key_revoke(self, key_id: str) -> bool:
        """Revoke an API key, durably. Returns whether there is such a key; revoking twice is allowed."""

    async def key_list(self) -> tuple[int, list[ApiKey]]:
        """Read all API keys, oldest first, also revoked and expired ones, and the number of changes so far."""

    async def key_revision(self) -> int:
        """Read the number of changes of API keys so far, by all servers."""
