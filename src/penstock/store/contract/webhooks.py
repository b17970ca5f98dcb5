"""Webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.webhook import WebhookRecord


class WebhookTransaction(Protocol):
    """Webhooks, inside of a transaction."""

    async def webhook_save(self, webhooks: Sequence[WebhookRecord]) -> None:
        """Write webhooks, new ones and changed ones."""

    async def webhook_remove(self, ids: Sequence[int]) -> None:
        """Delete webhooks. Unknown ids are ignored."""


class WebhookReads(Protocol):
    """Webhooks, from memory."""

    def webhook_list(self) -> list[WebhookRecord]:
        """Return all webhooks of all namespaces, oldest first, from memory."""

    def webhook_find(self, webhook_id: int) -> WebhookRecord | None:
        """Return a webhook, from memory. Inside of a transaction, with the changes of the transaction."""
