"""Handlers of push subscriptions: subscribe, list, unsubscribe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, SubscriptionNotFound
from penstock.core.ids import from_ulid, to_ulid
from penstock.doors.http.route import JSON, Plain, Route
from penstock.doors.messages import wire
from penstock.engine.queues.push_subscriptions import AddSubscription, RemoveSubscription

if TYPE_CHECKING:
    from penstock.doors.http.request import Request
    from penstock.doors.messages.queue_registry import QueueRegistry
    from penstock.engine.api import EngineApi
    from penstock.outbound.guard import Guard

SUBSCRIPTION: Final[wire.MessageBodyReader[wire.SubscriptionBody]] = wire.MessageBodyReader(wire.SubscriptionBody)
#: An id that no subscription has: the result for text that is not an id.
_NO_ID: Final = 0
_encode = msgspec.json.Encoder().encode


class SubscriptionHandlers:
    """One method per route. ``guard`` decides which URLs may be called."""

    def __init__(self, engine: EngineApi, registry: QueueRegistry, guard: Guard) -> None:
        self._engine = engine
        self._registry = registry
        self._guard = guard

    async def add(self, req: Request, ns: str, queue: str) -> Plain:
        req.allow(ns, Right.ADMIN)
        key = self._registry.key(ns, queue)
        body = await SUBSCRIPTION.read(req)
        self._check(body)
        await self._registry.use(key)
        added = await self._engine.run(AddSubscription(key, body.url, body.secret))
        return Plain(_encode(wire.NewIdReply(to_ulid(added.id))), JSON, 201)

    async def list_subscriptions(self, req: Request, ns: str, queue: str) -> wire.SubscriptionsReply:
        req.allow(ns, Right.ADMIN)
        found = self._engine.store.queue_find(self._registry.key(ns, queue))
        return wire.SubscriptionsReply(
            [
                wire.SubscriptionView(to_ulid(each.id), each.url, bool(each.secret), each.created_at)
                for each in (() if found is None else found.settings.subscriptions)
            ]
        )

    async def remove(self, req: Request, id: str) -> Plain:
        try:
            await self._engine.run(
                RemoveSubscription(from_ulid(id) or _NO_ID, lambda key: req.identity.may(key.namespace, Right.ADMIN))
            )
        except SubscriptionNotFound:
            raise SubscriptionNotFound(f"consumer: subscription not found: {id[:64]}") from None
        return Plain(b"", status=204)

    def _check(self, body: wire.SubscriptionBody) -> None:
        """Raise InvalidInput if messages must not be pushed to this URL, as far as this is known without a lookup."""
        if not body.url:
            raise InvalidInput("url is required")
        if len(body.secret) > limits.push_secret_chars_max:
            raise InvalidInput(f"secret too long (max {limits.push_secret_chars_max} characters)")
        try:
            self._guard.check(body.url)
        except InvalidInput as error:
            text = str(error).replace("Webhook URL", "url")
            if text.startswith("url cannot point"):
                text += ". If that is meant, allow the host with push_allowed_hosts."
            elif not text.startswith(("url cannot", "url too long")):
                text = "url must be an http or https URL"
            raise InvalidInput(text) from None

    def routes(self) -> list[Route]:
        """Return the routes of push subscriptions."""
        tag, path = "Messages", "/namespaces/{ns}/queues/{queue}/subscriptions"
        routes = [
            Route(
                "POST", path, self.add, "Push messages to a webhook", tag, wire.NewIdReply, SUBSCRIPTION,
                status=201, body_required=True,
            ),
            Route("GET", path, self.list_subscriptions, "List the webhooks of a queue", tag, wire.SubscriptionsReply),
            Route("DELETE", "/subscriptions/{id}", self.remove, "Stop pushing messages", tag, status=204),
        ]  # fmt: skip
        return [route._replace(asks=True) for route in routes]
