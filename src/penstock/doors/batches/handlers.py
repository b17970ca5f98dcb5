"""Handlers of the batches door. Each request is one command, with any number of messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Raw

from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.binary_payload import unwrap, wrap_steps
from penstock.core.errors import (
    InvalidInput,
    JobNotFound,
    JobQuarantined,
    PartlyDone,
    PartlyPushed,
    ServerError,
    WrongState,
)
from penstock.core.ids import ID_MAX
from penstock.core.job import IDEMPOTENCY_PREFIX, JobFlag, JobSpec, details_of
from penstock.core.json_depth import depth_steps
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey
from penstock.core.time_slices import in_slices
from penstock.core.timestamps import from_rfc3339, to_rfc3339
from penstock.doors import queue_lists
from penstock.doors.batches import wire
from penstock.doors.batches.leases import Leases
from penstock.doors.http.body import BodyReader
from penstock.doors.http.field_check import FieldCheck
from penstock.doors.http.route import Plain, Route
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import PushAcross
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob, NackById, RenewById
from penstock.engine.queues.admin import MoveBatch
from penstock.store.contract import Selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.core.job import Details, JobRecord, Payload
    from penstock.core.time_slices import Steps
    from penstock.doors.batches.metrics import BatchCounters
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import ItemOutcome

#: Delay before the first retry; each further retry doubles it.
BACKOFF_MS: Final = 2_000
#: Dead letters that are read together, so that large ones are not all in memory at once.
READ_AT_ONCE: Final = 20

ENQUEUE: Final = wire.StrictBodyReader(list[wire.EnqueueItem])
ENQUEUE_CHECK: Final[FieldCheck[list[wire.EnqueueItem]]] = FieldCheck(list[wire.EnqueueItem], list[wire.StrictItem])
ENQUEUE_QUERY: Final = BodyReader(wire.EnqueueQuery)
DEQUEUE: Final = wire.Query(wire.DequeueQuery, "Missing namespace or topic")
ITEM: Final = wire.StrictBodyReader(wire.ItemBody)
ITEMS: Final[wire.StrictBodyReader[wire.ItemBody | list[wire.ItemBody]]] = wire.StrictBodyReader(wire.Items)
NACKS: Final[wire.StrictBodyReader[wire.NackBody | list[wire.NackBody]]] = wire.StrictBodyReader(wire.Nacks)
HEARTBEATS: Final[wire.StrictBodyReader[wire.RenewItemBody | list[wire.RenewItemBody]]] = wire.StrictBodyReader(
    wire.Heartbeats
)
DEAD: Final = wire.Query(wire.DeadItemsQuery, "Missing namespace or topic")
TOPICS: Final = wire.Query(wire.TopicsQuery, "Missing namespace")
Item = TypeVar("Item", wire.EnqueueItem, wire.ItemBody, wire.NackBody, wire.RenewItemBody)
#: The value that a Go program sends for an unset time: 0001-01-01T00:00:00Z.
_GO_ZERO_MS: Final = -62_135_596_800_000
_OK: Final = Plain(b"OK")
_ROUNDED: Final = "JavaScript has rounded this number: send id_text, which is the same id as text."
_encode = msgspec.json.Encoder().encode


class BatchesDoor:
    """One method per route. ``counters`` counts messages. After ``max_retries`` failed deliveries a message is dead."""

    def __init__(self, engine: EngineApi, counters: BatchCounters, max_retries: int = 3) -> None:
        self._engine = engine
        self._store = engine.store
        self._counters = counters
        self._max_retries = max_retries
        self._leases = Leases()

    # Producers.

    async def enqueue(self, req: Request) -> list[int] | list[str]:
        as_text = ENQUEUE_QUERY.parse_query(req).ids == "text"
        body = await req.body()
        items = ENQUEUE_CHECK.sound(body) or await ENQUEUE_CHECK.read(req, body, ENQUEUE.steps(body))
        if len(items) > limits.bulk_jobs_max:
            raise InvalidInput(f"Too many items (max {limits.bulk_jobs_max}). Send them in several requests.")
        for namespace in {item.namespace for item in items}:
            req.allow(namespace, Right.PRODUCE)
        now_ms = self._engine.clock.now_ms()
        parts: dict[QueueKey, list[JobSpec]] = {}
        places: dict[QueueKey, list[int]] = {}
        overdue: dict[int, int] = {}

        def sort_in() -> Steps[None]:
            last: QueueKey | None = None
            for place, (topic, item) in enumerate(_with_topics(items)):
                if topic is not last:
                    last, jobs, at = topic, parts.setdefault(topic, []), places.setdefault(topic, [])
                wait = 0 if item.deliver_after is None else _wait(item.deliver_after, place, now_ms)
                if wait < 0:
                    overdue[place] = wait
                jobs.append((yield from _new_job(item, place, wait, self._max_retries)))
                at.append(place)
                yield

        await in_slices(sort_in())
        if not items:
            return []
        if overdue:
            _line_up(parts, places, overdue)
        try:
            pushed = await self._engine.run(PushAcross(list(parts.items()), now_ms))
        except PartlyPushed as error:
            raise told_apart(error, places, as_text=as_text) from error
        ids = [0] * len(items)
        for (topic, where), made in zip(places.items(), pushed, strict=True):
            self._counters.of(topic).enqueued += len(made)
            for place, job in zip(where, made, strict=True):
                ids[place] = job.id
        return [str(each) for each in ids] if as_text else ids

    # Consumers.

    async def dequeue(self, req: Request) -> list[wire.ItemView]:
        query = DEQUEUE.parse_query(req)
        topic = self._topic(req, query, Right.TAKE)
        count = min(query.limit, limits.claim_jobs_max)
        claimed = await self._engine.run(Claim(topic, count, lease_ms=query.lease_ms, owner=query.consumer))
        if claimed:
            self._counters.of(topic).dequeued += len(claimed)
            self._leases.take(topic, [job.id for job, _ in claimed], query.lease_ms, self._engine.clock.steady_ms())
        return [_item_view(topic, job, payload) for job, payload in claimed]

    async def ack(self, req: Request) -> Plain | list[wire.RefusalView]:
        body = await ITEMS.read(req)
        items = body if isinstance(body, list) else (body,)
        receipts = [ClaimedJob(topic, each.number) for topic, each in _with_topics(items)]
        outcomes = await self._settle(req, AckById, receipts)
        for topic, count in _counted(receipts, outcomes).items():
            self._counters.of(topic).acked += count
        return _answer(body, outcomes)

    async def nack(self, req: Request) -> Plain | list[wire.RefusalView]:
        body = await NACKS.read(req)
        items = body if isinstance(body, list) else (body,)
        receipts = [ClaimedJob(topic, each.number, each.error) for topic, each in _with_topics(items)]
        outcomes = await self._settle(req, NackById, receipts)
        for topic, count in _counted(receipts, outcomes).items():
            self._counters.of(topic).nacked += count
        return _answer(body, outcomes)

    async def heartbeat(self, req: Request) -> Plain | list[wire.RefusalView]:
        body = await HEARTBEATS.read(req)
        items = body if isinstance(body, list) else (body,)
        receipts = [ClaimedJob(topic, each.number, None, each.lease_ms) for topic, each in _with_topics(items)]
        return _answer(body, await self._settle(req, RenewById, receipts))

    async def _settle(
        self, req: Request, verb: type[AckById | NackById | RenewById], receipts: list[ClaimedJob]
    ) -> list[ItemOutcome]:
        """Settle or renew messages, if the caller has the right to all of them."""
        for namespace in {receipt.queue.namespace for receipt in receipts}:
            req.allow(namespace, Right.SETTLE)
        if not receipts:
            return []
        outcomes = await self._engine.run(verb(receipts))
        if len(self._leases):
            done = [receipt.id for receipt, problem in zip(receipts, outcomes, strict=True) if problem is None]
            now_ms = self._engine.clock.steady_ms()
            others = self._leases.renewed(done, now_ms) if verb is RenewById else self._leases.settled(done, now_ms)
            if others:
                with contextlib.suppress(ServerError):  # the request itself is done
                    await self._engine.run(RenewById(others))
        return outcomes

    # Dead letters.

    async def list_dead(self, req: Request) -> list[wire.DeadView]:
        query = DEAD.parse_query(req)
        topic = self._topic(req, query, Right.LOOK)
        queue = self._store.queue_find(topic)
        if queue is None:
            return []
        limit = min(query.limit, limits.claim_jobs_max)
        found = await self._store.job_select(Selection(queue, State.DEAD, limit, ID_MAX))
        views: list[wire.DeadView] = []
        size = 0
        for start in range(0, len(found), READ_AT_ONCE):
            for read in await asyncio.gather(*(self._read(topic, each.id) for each in found[start : start + READ_AT_ONCE])):
                if read is not None and read[0].state == State.DEAD:  # it may have been retried since
                    views.append(_dead_view(topic, *read))
                    size += read[0].size
            if size >= limits.list_bytes_max:
                break
        return views

    async def _read(self, topic: QueueKey, item_id: int) -> tuple[JobRecord, Payload] | None:
        """Return a message; None if it was removed or is damaged."""
        try:
            return await self._store.job_get(topic.namespace, item_id)
        except JobQuarantined:
            return None

    async def delete_dead(self, req: Request) -> Plain:
        body = await ITEM.read(req)
        topic = self._topic(req, body, Right.SETTLE)
        deleted = await self._engine.run(MoveBatch(topic, Arrow.PURGE, (State.DEAD,), (body.number,)))
        if not deleted and body.is_rounded:
            raise JobNotFound(f"There is no dead letter {body.id} in this topic. {_ROUNDED}")
        return _OK

    # Topics and health.

    async def topics(self, req: Request) -> list[str]:
        namespace = TOPICS.parse_query(req).namespace
        req.allow(namespace, Right.LOOK)
        steps = queue_lists.name_steps(self._store, namespace, queue_lists.has_jobs)
        return await queue_lists.listed(req, self._store.queue_count(namespace), steps)

    async def health(self, _req: Request) -> Plain:
        down = [number for number, shard in enumerate(self._store.journals) if not shard.status().writable]
        if not down:
            return _OK
        which = "".join(f"shard {number} is down\n" for number in down) if len(self._store.journals) > 1 else ""
        return Plain(f"Database unhealthy\n{which}".encode(), status=503)

    def _topic(self, req: Request, meant: wire.ItemBody | wire.DequeueQuery | wire.DeadItemsQuery, right: Right) -> QueueKey:
        """Return the topic of a request, if the caller has the right to it."""
        req.allow(meant.namespace, right)
        return QueueKey(meant.namespace, meant.topic)

    def routes(self) -> list[Route]:
        """Return the routes of the main listener, where ``/health`` is the server's own health check."""
        tag = "Batches"
        settles: dict[str, Any] = {"body_required": True, "listed_too": wire.RefusalView}
        ids: dict[str, Any] = {"body_required": True, "listed": int | str, "warned": True}
        routes = [
            Route(
                "POST",
                "/enqueue",
                self.enqueue,
                "Enqueue messages",
                tag,
                body=ENQUEUE,
                query=ENQUEUE_QUERY,
                **ids,
            ),
            Route("GET", "/dequeue", self.dequeue, "Dequeue messages", tag, query=DEQUEUE, listed=wire.ItemView),
            Route("POST", "/ack", self.ack, "Acknowledge messages", tag, body=ITEMS, **settles),
            Route("POST", "/nack", self.nack, "Nack messages", tag, body=NACKS, **settles),
            Route("POST", "/heartbeat", self.heartbeat, "Renew the leases of messages", tag, body=HEARTBEATS, **settles),
            Route("GET", "/dlq", self.list_dead, "List dead letters", tag, query=DEAD, listed=wire.DeadView),
            Route("POST", "/dlq/delete", self.delete_dead, "Delete a dead letter", tag, body=ITEM, body_required=True),
            Route("GET", "/topics", self.topics, "List topics", tag, query=TOPICS, listed=str),
        ]
        return [route._replace(plain_errors=True, asks=True) for route in routes]

    def own_routes(self) -> list[Route]:
        """Return the routes of this door's own listener."""
        return [*self.routes(), Route("GET", "/health", self.health, "Health check", "Batches", probe=True)]


def _with_topics(items: Iterable[Item]) -> Iterator[tuple[QueueKey, Item]]:
    """Yield messages with their topics. Consecutive messages of the same topic share one key."""
    topic = QueueKey("", "")
    for item in items:
        if item.topic != topic.name or item.namespace != topic.namespace:
            topic = QueueKey(item.namespace, item.topic)
        yield topic, item


def _counted(receipts: Sequence[ClaimedJob], outcomes: Sequence[ItemOutcome]) -> Counter[QueueKey]:
    """Return the number of changed messages per topic."""
    return Counter(receipt.queue for receipt, problem in zip(receipts, outcomes, strict=True) if problem is None)


def _answer(body: wire.ItemBody | Sequence[wire.ItemBody], outcomes: list[ItemOutcome]) -> Plain | list[wire.RefusalView]:
    """Return the answer: for a single message as mqueue gives it, for several the list of refused ones."""
    if isinstance(body, wire.ItemBody):
        (problem,) = outcomes
        if problem is not None:
            raise _explained(body, problem)
        return _OK
    return [
        wire.RefusalView(each.id, str(_explained(each, problem)), problem.code)
        for each, problem in zip(body, outcomes, strict=True)
        if problem is not None
    ]


def _explained(body: wire.ItemBody, problem: ServerError) -> ServerError:
    """Add the reason to an error if the id was rounded."""
    if isinstance(problem, JobNotFound) and body.is_rounded:
        return JobNotFound(f"{problem} {_ROUNDED}")
    if isinstance(problem, WrongState) and body.is_rounded:
        return WrongState(problem.state, f"{problem} {_ROUNDED}")
    return problem


def told_apart(error: PartlyPushed, places: dict[QueueKey, list[int]], *, as_text: bool = False) -> PartlyDone:
    """Return the error that lists the stored messages: a line of text, and a line with ids, null for each not stored."""
    ids: list[int | str | None] = [None] * sum(map(len, places.values()))
    for where, stored in zip(places.values(), error.stored, strict=True):
        for place, item_id in zip(where, stored, strict=True):
            ids[place] = str(item_id) if as_text and item_id is not None else item_id
    return PartlyDone(f"{error}\n{_encode(ids).decode()}")


def _line_up(parts: dict[QueueKey, list[JobSpec]], places: dict[QueueKey, list[int]], overdue: dict[int, int]) -> None:
    """Sort the messages of each topic that were due before this request to the front, by due time."""
    for topic, at in places.items():
        jobs = parts[topic]
        keys = [job.job_id for job in jobs if job.job_id is not None]
        if len(set(keys)) < len(keys):
            continue  # of messages with the same key the last one counts, so their order must stay
        order = sorted(range(len(at)), key=lambda number: overdue.get(at[number], 0))
        parts[topic] = [jobs[number] for number in order]
        places[topic] = [at[number] for number in order]


def _new_job(item: wire.EnqueueItem, place: int, wait: int, max_retries: int) -> Steps[JobSpec]:
    """Build the job of an item, in steps. Raises InvalidInput."""
    metadata = None if item.metadata is None else (yield from _metadata(item.metadata, place))
    data, options = yield from wrap_steps(item.payload or b"", metadata)
    return JobSpec(
        data,
        options,
        priority=-(item.priority or 0),
        delay=max(0, wait),
        max_attempts=item.max_retries or max_retries,
        backoff=BACKOFF_MS,
        job_id=f"{IDEMPOTENCY_PREFIX}{item.idempotency_key}" if item.idempotency_key else None,
        flags=0 if item.idempotency_key else JobFlag.REMOVE_ON_COMPLETE,  # with a key the job is kept, for its id
    )


def _metadata(given: dict[str, Raw], place: int) -> Steps[Raw]:
    value = _encode(given)
    try:
        yield from depth_steps(value)
    except InvalidInput as error:
        raise InvalidInput(f"Invalid request body: {error} - at `$[{place}].metadata`") from None
    return Raw(value)


def _wait(text: str, place: int, now_ms: int) -> int:
    """Return the delay in ms until a message is due; negative if it was due earlier. Go's zero time means now."""
    at = from_rfc3339(text)
    if at is None:
        example = "2025-12-25T10:00:00Z"
        raise InvalidInput(f"Invalid request body: expected RFC 3339 like {example} - at `$[{place}].deliver_after`")
    if at - now_ms > limits.delay_ms_max:
        days = limits.delay_ms_max // limits.DAY_MS
        raise InvalidInput(f"Invalid request body: more than {days} days ahead - at `$[{place}].deliver_after`")
    return at - now_ms if at > _GO_ZERO_MS else 0


def _item_view(topic: QueueKey, job: JobRecord, payload: Payload) -> wire.ItemView:
    data, metadata = unwrap(payload)
    details = details_of(job)
    return wire.ItemView(
        job.id,
        str(job.id),
        *topic,
        -job.priority,
        data,
        metadata,
        _idempotency_key(job),
        to_rfc3339(job.run_at),
        to_rfc3339((job.started_at or 0) + job.lease_ms),
        details.owner,
        _ttl(job),
        "ready",
        job.attempts,
        job.max_attempts,
        _moment(details.first_failed_at),
        _error(job, details),
        to_rfc3339(job.created_at),
        to_rfc3339(job.started_at or job.created_at),
    )


def _dead_view(topic: QueueKey, job: JobRecord, payload: Payload) -> wire.DeadView:
    data, metadata = unwrap(payload)
    details = details_of(job)
    return wire.DeadView(
        job.id,
        str(job.id),
        job.id,
        *topic,
        -job.priority,
        data,
        metadata,
        _idempotency_key(job),
        details.owner,
        _ttl(job),
        "dead",
        job.attempts,
        job.max_attempts,
        _moment(details.first_failed_at),
        _error(job, details),
        to_rfc3339(job.created_at),
        to_rfc3339(job.finished_at or 0),
        to_rfc3339(job.finished_at or 0),
    )


def _ttl(job: JobRecord) -> int | None:
    return None if job.expires_at is None else job.expires_at - job.created_at


def _moment(ms: int | None) -> str | None:
    return None if ms is None else to_rfc3339(ms)


def _error(job: JobRecord, details: Details) -> str | None:
    """Return why a message failed last. What the jobs door calls a stall is an expired lease here."""
    if details.error is not None and details.error == f"Job stalled {job.stalls} times":
        return "lease expired" if job.stalls == 1 else f"lease expired ({job.stalls} times)"
    return details.error


def _idempotency_key(job: JobRecord) -> str | None:
    own = job.custom_id
    return own.removeprefix(IDEMPOTENCY_PREFIX) if own is not None and own.startswith(IDEMPOTENCY_PREFIX) else None
