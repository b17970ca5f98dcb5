"""Handlers of the messages door: publish, consume, acknowledge, and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Never

import msgspec
from msgspec import Raw

from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.binary_payload import wrap_steps
from penstock.core.errors import BodyTooLarge, InvalidInput, MethodRefused, RouteNotFound
from penstock.core.ids import ID_MAX, to_ulid
from penstock.core.job import JobFlag, JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.long_poll import claim_for
from penstock.doors.http.route import Plain, Route
from penstock.doors.http.router import Router
from penstock.doors.messages import wire
from penstock.doors.messages.rendering import view_of
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.dead_letters import LeaseDead
from penstock.engine.jobs.push import Push
from penstock.engine.queues import admin
from penstock.store.contract import Place, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import Request
    from penstock.doors.http.route import Handler
    from penstock.doors.messages.metrics import MessageCounters
    from penstock.doors.messages.queue_registry import MessageDefaults, QueueRegistry
    from penstock.doors.messages.settling import DeliverySettler
    from penstock.engine.api import EngineApi


#: An idempotency key of this door is stored as the custom id of its job, after this prefix and the queue name.
KEY_PREFIX: Final = "message:"


DEAD_DEFAULT: Final = 10


REPLAY_MAX: Final = 100


MESSAGE: Final[wire.MessageBodyReader[wire.MessageBody]] = wire.MessageBodyReader(wire.MessageBody)


BATCH: Final[wire.MessageBodyReader[list[wire.MessageBody]]] = wire.MessageBodyReader(list[wire.MessageBody])


NAMESPACE: Final[wire.MessageBodyReader[wire.NamespaceBody]] = wire.MessageBodyReader(wire.NamespaceBody)


QUEUE: Final[wire.MessageBodyReader[wire.QueueBody]] = wire.MessageBodyReader(wire.QueueBody)


CONSUME: Final = BodyReader(wire.ConsumeQuery)


DEAD: Final = BodyReader(wire.DeadLettersQuery)


_GONE: Final = Plain(b"", status=204)


_encode = msgspec.json.Encoder().encode


class MessagesDoor:
    """One method per route. ``counters`` counts messages, ``settling`` settles deliveries."""

    def __init__(
        self, engine: EngineApi, registry: QueueRegistry, counters: MessageCounters, settling: DeliverySettler
    ) -> None:
        self._engine = engine
        self._settling = settling
        self._store = engine.store
        self._registry = registry
        self._counters = counters

    # Namespaces and queues.

    async def make_namespace(self, req: Request) -> Plain:
        body = await NAMESPACE.read(req)
        req.allow(body.name, Right.ADMIN)
        await self._registry.make_namespace(body.name)
        return _created(wire.Created(name=body.name))

    async def list_namespaces(self, req: Request) -> wire.NamespacesReply:
        return wire.NamespacesReply(await self._registry.namespaces(req))

    async def remove_namespace(self, req: Request, ns: str) -> Plain:
        req.allow(ns, Right.ADMIN)
        await self._registry.remove_namespace(ns)
        return _GONE

    async def make_queue(self, req: Request, ns: str, queue: str) -> Plain:
        key = self._key(req, ns, queue, Right.ADMIN)
        await self._registry.make(key, await QUEUE.read(req))
        return _created(wire.Created())

    async def list_queues(self, req: Request, ns: str) -> wire.QueueNamesReply:
        req.allow(ns, Right.LOOK)
        return wire.QueueNamesReply(await self._registry.of(req, ns))

    async def remove_queue(self, req: Request, ns: str, queue: str) -> Plain:
        await self._registry.remove(self._key(req, ns, queue, Right.ADMIN))
        return _GONE

    # Producers.

    async def publish(self, req: Request, ns: str, queue: str) -> Plain:
        key = self._key(req, ns, queue, Right.PRODUCE)
        (message_id,) = await self._push(req, key, [await MESSAGE.read(req)])
        return _created(wire.NewIdReply(message_id))

    async def publish_batch(self, req: Request, ns: str, queue: str) -> Plain:
        key = self._key(req, ns, queue, Right.PRODUCE)
        bodies, most = await BATCH.read(req), self._registry.message_rules(key).max_batch_size
        if len(bodies) > most:
            raise BodyTooLarge(f"batch exceeds maximum of {most} messages")
        return _created(wire.NewIdsReply(await self._push(req, key, bodies) if bodies else []))

    async def _push(self, req: Request, key: QueueKey, bodies: Sequence[wire.MessageBody]) -> list[str]:
        """Publish all messages or none, and return their ids."""
        rules, now_ms = self._registry.message_rules(key), self._engine.clock.now_ms()
        given = req.header("idempotency-key")
        if given is not None and not 0 < len(given) <= limits.idempotency_key_chars_max:
            raise InvalidInput(f"Idempotency-Key must have 1 to {limits.idempotency_key_chars_max} characters")
        names = (
            [None] * len(bodies) if given is None else [f"{KEY_PREFIX}{key.name}/{given}:{n}" for n in range(len(bodies))]
        )

        def make() -> Steps[list[JobSpec]]:
            made = []
            for body, name in zip(bodies, names, strict=True):
                made.append((yield from _new_job(body, name, rules, now_ms)))
                yield
            return made

        jobs = await in_slices(make())
        await self._registry.use(key)
        pushed = await self._engine.run(Push(key, jobs, room=rules.max_messages))
        self._counters.of(key).published += len(pushed)
        return [to_ulid(job.id) for job in pushed]

    # Consumers.

    async def consume(self, req: Request, ns: str, queue: str) -> wire.MessagesReply:
        key = self._key(req, ns, queue, Right.TAKE)
        query, rules = CONSUME.parse_query(req), self._registry.message_rules(key)
        count = wire.number_in(query.n, rules.default_batch_size, 1, rules.max_batch_size)
        lease_ms = wire.number_in(query.visibility_timeout_ms, rules.visibility_timeout_ms, 1, limits.lease_ms_max)
        wait_ms = min(query.wait_ms, limits.claim_wait_ms_max)
        await self._registry.use(key)
        taken = await claim_for(req, self._engine, Claim(key, count, wait_ms=wait_ms, lease_ms=lease_ms))
        if taken:
            self._counters.of(key).consumed += len(taken)
        return wire.MessagesReply([view_of(key, each) for each in taken])

    async def ack(self, req: Request, receipt: str) -> Plain:
        await self._settling.settle(req.identity, receipt, done=True)
        return _GONE

    async def nack(self, req: Request, receipt: str) -> Plain:
        await self._settling.settle(req.identity, receipt, done=False)
        return _GONE

    async def purge(self, req: Request, ns: str, queue: str) -> wire.PurgedReply:
        key = self._key(req, ns, queue, Right.ADMIN)
        self._registry.find(key)
        return wire.PurgedReply(
            await admin.move_many(self._engine, key, Arrow.OBLITERATE, states=(State.WAITING, State.ACTIVE))
        )

    # Dead letters.

    async def drain(self, req: Request, ns: str, queue: str) -> wire.MessagesReply:
        key = self._key(req, ns, queue, Right.TAKE)
        rules = self._registry.message_rules(key)
        limit = wire.number_in(DEAD.parse_query(req).limit, DEAD_DEFAULT, 1, rules.max_batch_size)
        found = self._registry.find(key)
        taken: list[Delivery] = []
        after = Place(0, 0)
        while len(taken) < limit:
            page = await self._store.job_select(Selection(found, State.DEAD, limits.slice_jobs_max, ID_MAX, after=after))
            if not page:
                break
            left = limit - len(taken)
            inspected = await self._engine.run(LeaseDead(key, [each.id for each in page], left, rules.visibility_timeout_ms))
            taken += inspected
            after = page[-1]
        return wire.MessagesReply([view_of(key, each, dead=True) for each in taken])

    async def replay(self, req: Request, ns: str, queue: str) -> wire.ReplayedReply:
        key = self._key(req, ns, queue, Right.ADMIN)
        limit = wire.number_in(DEAD.parse_query(req).limit, REPLAY_MAX, 1, REPLAY_MAX)
        self._registry.find(key)
        return wire.ReplayedReply(await admin.revive(self._engine, key, limit))

    def _key(self, req: Request, namespace: str, queue: str, right: Right) -> QueueKey:
        """Return the queue that a path names, if the caller has the right to it."""
        req.allow(namespace, right)
        return self._registry.key(namespace, queue)

    def routes(self) -> list[Route]:
        """Return the routes of this door."""
        tag, queues = "Messages", "/namespaces/{ns}/queues/{queue}"
        made: dict[str, Any] = {"status": 201, "body_required": True}
        published: dict[str, Any] = {**made, "repeatable": True}
        once: dict[str, Any] = {**made, "also": ((409, ErrorReply),)}
        settled: dict[str, Any] = {"status": 204, "also": ((410, ErrorReply),)}
        routes = [
            Route("POST", "/namespaces", self.make_namespace, "Make a namespace", tag, wire.Created, NAMESPACE, **once),
            Route("GET", "/namespaces", self.list_namespaces, "List namespaces", tag, wire.NamespacesReply),
            Route("DELETE", "/namespaces/{ns}", self.remove_namespace, "Remove a namespace from the list", tag, status=204),
            Route("POST", queues, self.make_queue, "Make a queue", tag, wire.Created, QUEUE, **once),
            Route("GET", "/namespaces/{ns}/queues", self.list_queues, "List queues", tag, wire.QueueNamesReply),
            Route("DELETE", queues, self.remove_queue, "Remove a queue", tag, status=204),
            Route(
                "POST", f"{queues}/messages", self.publish, "Publish a message", tag, wire.NewIdReply, MESSAGE, **published
            ),
            Route(
                "POST",
                f"{queues}/messages/batch",
                self.publish_batch,
                "Publish messages",
                tag,
                wire.NewIdsReply,
                BATCH,
                **published,
            ),
            Route("GET", f"{queues}/messages", self.consume, "Consume messages", tag, wire.MessagesReply, query=CONSUME),
            Route("DELETE", f"{queues}/messages", self.purge, "Purge a queue", tag, wire.PurgedReply),
            Route("DELETE", "/messages/{receipt}", self.ack, "Acknowledge a message", tag, **settled),
            Route("POST", "/messages/{receipt}/nack", self.nack, "Nack a message", tag, **settled),
            Route("GET", f"{queues}/dlq", self.drain, "Take dead letters", tag, wire.MessagesReply, query=DEAD),
            Route("POST", f"{queues}/dlq/replay", self.replay, "Replay dead letters", tag, wire.ReplayedReply, query=DEAD),
        ]
        return [route._replace(asks=True) for route in routes]


def _created(body: msgspec.Struct) -> Plain:
    return Plain(_encode(body), "application/json", 201)


def _new_job(body: wire.MessageBody, name: str | None, rules: MessageDefaults, now_ms: int) -> Steps[JobSpec]:
    """Build the job of a message, in steps. Raises InvalidInput."""
    data = wire.bytes_in(body.body)
    metadata = None if not body.metadata else Raw(_encode(body.metadata))
    if len(data) + (0 if metadata is None else len(bytes(metadata))) > rules.message_bytes_max:
        raise InvalidInput(f"message too large: more than {rules.message_bytes_max} bytes")
    due_at = body.deliver_at if body.deliver_at is not None and body.deliver_at > now_ms else None
    if due_at is not None and due_at - now_ms > rules.schedule_ahead_ms:
        raise InvalidInput(f"deliver_at is more than {rules.schedule_ahead_ms // limits.DAY_MS} days ahead")
    stored, options = yield from wrap_steps(data, metadata)
    return JobSpec(
        stored,
        options,
        due_at=due_at,
        ttl=rules.retention_ms + (0 if due_at is None else due_at - now_ms) if rules.retention_ms else None,
        max_attempts=min(body.max_retries if body.max_retries > 0 else rules.max_retries, limits.attempts_max),
        backoff=0,
        job_id=name,
        # With a key, the completed job is kept, so that the key still finds the same message.
        flags=JobFlag.MESSAGE | (0 if name else JobFlag.REMOVE_ON_COMPLETE),
    )


def stray_among(routes: list[Route]) -> Handler:
    """Return the handler for requests that match none of these routes: 405 if the path has other methods, else 404."""
    router, methods = Router(routes), sorted({route.method for route in routes})

    async def stray(req: Request, **_params: str) -> Never:
        allowed = [method for method in methods if router.find(method, req.scope.path)[0] is not None]
        if allowed:
            raise MethodRefused(allow=", ".join(allowed))
        raise RouteNotFound

    return stray
