"""Webhooks of the jobs door: URLs to which the server sends events of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client import _replies as replies
from penstock.client._request import ApiCall, body, nothing, path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client._async.transport import AsyncTransport
    from penstock.client.models import Webhook


class AsyncWebhooks:
    """Webhooks of a namespace. An attribute of the client: ``client.webhooks``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._send = transport.send

    async def add(self, url: str, events: Sequence[str], *, queue: str | None = None, secret: str | None = None) -> str:
        """Register a URL and return the webhook's id.

        ``events``: any of pushed, started, completed, failed, progress, stalled. ``queue``: only events of this queue; all
        queues. ``secret``: the key with which requests to the URL are signed.
        """
        fields = body(url=url, events=list(events), queue=queue, secret=secret)
        return await self._send(ApiCall("POST", "/webhooks", replies.WEBHOOK_ID, fields, repeatable=False))

    async def all(self) -> list[Webhook]:
        """Return all webhooks of the namespace."""
        return await self._send(ApiCall("GET", "/webhooks", replies.WEBHOOKS))

    async def remove(self, webhook_id: str) -> None:
        """Remove a webhook. Raises NotFound."""
        await self._send(ApiCall("DELETE", path("/webhooks/{}", webhook_id), nothing, already=(404,)))

    async def enable(self, webhook_id: str, *, enabled: bool = True) -> None:
        """Enable a webhook, or disable it. Raises NotFound."""
        await self._send(ApiCall("PUT", path("/webhooks/{}/enabled", webhook_id), nothing, body(enabled=enabled)))
