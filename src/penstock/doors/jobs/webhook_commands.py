"""The commands about webhooks. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.doors.jobs import webhooks as h
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import ID

if TYPE_CHECKING:
    from penstock.doors.jobs.webhooks import WebhookHandlers


def webhook_commands(webhooks: WebhookHandlers) -> dict[str, CommandEntry]:
    """Return the commands about webhooks."""
    return {
        "AddWebhook": CommandEntry(webhooks.add, h.ADD),
        "RemoveWebhook": CommandEntry(webhooks.remove, None, {"id": "webhookId"}),
        "ListWebhooks": CommandEntry(webhooks.list_webhooks),
        "SetWebhookEnabled": CommandEntry(webhooks.set_enabled, h.ENABLED, ID),
    }
