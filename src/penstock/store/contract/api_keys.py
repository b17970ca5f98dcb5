"""API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.apikey import ApiKey


class ApiKeyStore(Protocol):
    """Kept API keys. Each change is durable when the call returns."""

    async def key_add(self, key: ApiKey, most: int) -> None:
        """Keep a new API key, durably. Of ``most`` that there may be, the ones that are over make room. Raises TooMany."""

    async def key_revoke(self, key_id: str) -> bool:
        """Have an API key be no longer good, durably; tell whether there is such a key. Revoking twice is fine."""

    async def key_list(self) -> tuple[int, list[ApiKey]]:
        """Read all API keys, those that are over too, oldest first, and the number of changes that made them so."""

    async def key_revision(self) -> int:
        """Read how many changes of API keys there were, by all servers."""
