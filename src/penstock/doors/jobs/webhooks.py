"""Handlers about webhooks: register, list, switch, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import ids
from penstock.core.webhook import check_events
from penstock.doors.http.body import BodyReader
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import JobsDoor, check_queue_name
from penstock.doors.jobs.wire import webhooks as webhook_wire
from penstock.doors.jobs.wire.replies import Ok
from penstock.engine.queues.webhooks import AddWebhook, EnableWebhook, RemoveWebhook

if TYPE_CHECKING:
    from penstock.core.webhook import WebhookRecord
    from penstock.doors.http.request import ApiRequest
    from penstock.engine.api import EngineApi
    from penstock.outbound.guard import Guard

ADD = BodyReader(webhook_wire.WebhookBody)
ENABLED = BodyReader(webhook_wire.EnabledBody)

#: An id that no webhook has: a text that is not in the format of an id names no webhook.
_NO_ID = 0


class WebhookHandlers(JobsDoor):
    """One method per route. ``guard`` decides which URLs may be called."""

    def __init__(self, engine: EngineApi, guard: Guard) -> None:
        super().__init__(engine)
        self._guard = guard

    async def add(self, req: ApiRequest) -> webhook_wire.RegisteredReply:
        namespace = self.namespace(req)
        body = await ADD.read(req)
        self._guard.check(body.url)
        events = check_events(body.events or ())
        if body.queue is not None:
            check_queue_name(body.queue)
        added = await self.engine.run(AddWebhook(namespace, body.url, events, body.queue, body.secret))
        data = webhook_wire.RegisteredData(
            ids.to_uuid(added.id), added.url, list(added.events), added.queue, added.created_at
        )
        return webhook_wire.RegisteredReply(data=data)

    async def list_webhooks(self, req: ApiRequest) -> webhook_wire.WebhooksReply:
        namespace = self.namespace(req)
        views = [webhook_view(each) for each in self.store.webhook_list() if each.namespace == namespace]
        stats = webhook_wire.WebhookStats(len(views), sum(view.enabled for view in views))
        return webhook_wire.WebhooksReply(data=webhook_wire.WebhooksData(views, stats))

    async def remove(self, req: ApiRequest, id: str) -> webhook_wire.RemovedReply:
        await self.engine.run(RemoveWebhook(self.namespace(req), ids.from_uuid(id) or _NO_ID))
        return webhook_wire.RemovedReply(data=webhook_wire.RemovedData())

    async def set_enabled(self, req: ApiRequest, id: str) -> Ok:
        body = await ENABLED.read(req)
        await self.engine.run(EnableWebhook(self.namespace(req), ids.from_uuid(id) or _NO_ID, enabled=body.enabled))
        return Ok()

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract."""
        tag = "Webhooks"
        return self.namespaced(
            Route("GET", "/webhooks", self.list_webhooks, "List webhooks", tag, webhook_wire.WebhooksReply),
            Route(
                "POST", "/webhooks", self.add, "Add webhook", tag, webhook_wire.RegisteredReply, body=ADD, body_required=True
            ),
            Route("DELETE", "/webhooks/{id}", self.remove, "Remove webhook", tag, webhook_wire.RemovedReply),
            Route(
                "PUT",
                "/webhooks/{id}/enabled",
                self.set_enabled,
                "Toggle webhook",
                tag,
                Ok,
                body=ENABLED,
                body_required=True,
            ),
        )


def webhook_view(webhook: WebhookRecord) -> webhook_wire.WebhookView:
    """Return the view of a webhook, without its secret."""
    return webhook_wire.WebhookView(
        id=ids.to_uuid(webhook.id),
        url=webhook.url,
        events=list(webhook.events),
        queue=webhook.queue,
        created_at=webhook.created_at,
        last_triggered=webhook.last_triggered,
        success_count=webhook.successes,
        failure_count=webhook.failures,
        enabled=webhook.enabled,
    )
