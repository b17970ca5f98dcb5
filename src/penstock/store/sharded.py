"""All shards as one store, for reads. A queue is on one shard; lists and sums include all shards.

A shard that is down is left out of queries, and ``down`` reports it; data in memory is still available.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.core import limits
from penstock.core.errors import QueueMoving, StorageFailed
from penstock.core.ids import shard_of
from penstock.core.queue import MoveStep, StateCounts
from penstock.core.sharding import shard_for
from penstock.store.contract import Capabilities, StoreStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.core.cron import CronKey, CronRecord
    from penstock.core.dependencies import Dependency, Need
    from penstock.core.job import Delivery, JobRecord, Payload
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue, QueueKey
    from penstock.core.sharding import Layout
    from penstock.core.webhook import WebhookRecord
    from penstock.store.contract import FinishedMinutes, LogEntry, Page, Place, Selection, Store


T = TypeVar("T")


class ShardedStore:
    """The methods are documented in ``contract.Store``."""

    def __init__(self, shards: Sequence[Store]) -> None:
        self.shards = tuple(shards)
        self.capabilities: Capabilities = shards[0].capabilities
        self.has_moved = False  #: the number in an id may not be the shard of its job
        self._settled: int | None = None  #: number of shards with queues; None while they are being moved
        self._found: dict[int, int] = {}  #: shards of jobs that are not on the shard in their ids; a hint
        for shard in shards:
            shard.when_moved.append(self._read_layouts)
        self._read_layouts()

    # Locations.

    @property
    def layouts(self) -> list[Layout]:
        """The layouts of the shards, as far as they have been reached."""
        return [shard.layout for shard in self.shards if shard.layout is not None]

    def _read_layouts(self) -> None:
        layouts = self.layouts
        self.has_moved = any(each.has_moved for each in layouts)
        same = {(each.shards, each.epoch, each.target) for each in layouts}
        first = layouts[0] if len(same) == 1 else None
        self._settled = first.shards if first is not None and first.target is None else None
        if not layouts:
            self._settled = len(self.shards)

    @property
    def is_moving(self) -> bool:
        """Whether queues are being moved between shards."""
        return self._settled is None

    def place_of(self, key: QueueKey) -> int:
        """Return the number of the shard of a queue.

        During a rebalance its old place decides. That shard has the queue, unless it records that the queue has moved, or
        has finished its part of the rebalance: then the queue is at its new place.
        """
        if self._settled is not None:
            return shard_for(key, self._settled)
        layouts = self.layouts
        epoch = max(each.epoch for each in layouts)
        moving = [each for each in layouts if each.target is not None and each.epoch >= epoch - 1]
        if not moving:
            return shard_for(key, next(each.shards for each in layouts if each.epoch == epoch))
        old = min(moving, key=lambda each: each.epoch)
        place = shard_for(key, old.shards)
        there = self.shards[place].layout
        if there is not None and there.epoch > old.epoch:
            return shard_for(key, there.shards)
        away = self.shards[place].queue_away(key)
        return place if away is None or not away.move.step.has_left else away.move.peer

    def of_queue(self, key: QueueKey) -> Store:
        """Return the shard of a queue."""
        return self.shards[self.place_of(key)]

    def guess(self, job_id: int) -> int | None:
        """Return the number of the probable shard of a job; None if there is no such shard."""
        number = self._found.get(job_id, shard_of(job_id)) if self._found else shard_of(job_id)
        return number if number < len(self.shards) else None

    async def locate(
        self, ids: Sequence[int], may: Callable[[QueueKey], bool] | None = None
    ) -> dict[int, tuple[int, MoveStep]]:
        """Find the shards of jobs, and the state of the moves of their queues. Jobs that are on no shard are left out.

        ``may``: whether the client may access jobs of a queue; jobs that it may not access are left out, too. The search
        runs twice: a job may move from a shard that was queried too late to one that was queried too early. Raises
        StorageFailed if a shard that may have them cannot be queried.
        """
        found: dict[int, tuple[int, MoveStep]] = {}
        wanted, failure = list(ids), None
        shards = self.shards[: max((each.needed for each in self.layouts), default=None)]  # a spare shard has none
        for _ in range(2):
            answers = await asyncio.gather(*(shard.job_places(wanted) for shard in shards), return_exceptions=True)
            for number, places in enumerate(answers):
                if isinstance(places, StorageFailed):
                    failure = places
                elif isinstance(places, BaseException):
                    raise places
                else:
                    for job_id, (step, queue) in places.items():
                        if may is not None and not may(queue):
                            continue
                        if step.is_seen:
                            found[job_id] = number, step
                            self._note(job_id, number)
                        elif step is MoveStep.ARRIVING:  # it arrives soon
                            found.setdefault(job_id, (number, step))
            wanted = [job_id for job_id in ids if job_id not in found]
            if not wanted:
                return found
        if failure is not None:
            raise failure
        return found

    async def shards_of(self, ids: Sequence[int], may: Callable[[QueueKey], bool] | None = None) -> dict[int, int]:
        """Return the shard of each job; for an unknown job, the shard in its id. Raises QueueMoving, StorageFailed.

        ``may``: see ``locate``.
        """
        if not self.has_moved:
            return {job_id: shard_of(job_id) for job_id in ids}
        found = await self.locate(ids, may)
        if any(not step.is_seen for _, step in found.values()):
            raise QueueMoving
        return {job_id: found[job_id][0] if job_id in found else shard_of(job_id) for job_id in ids}

    @property
    def spread(self) -> int:
        """Number of shards that names are spread over. Raises QueueMoving while the shards do not agree on it."""
        numbers = {each.shards for each in self.layouts} or {len(self.shards)}
        if len(numbers) > 1:
            raise QueueMoving
        return numbers.pop()

    async def name_places(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        """Find the shards of jobs with these names. The search runs twice, as in ``locate``.

        Raises StorageFailed if not all were found, and a shard that may have them cannot be queried.
        """
        found: dict[str, int] = {}
        for _ in range(2):
            for shard in self.shards[: max((each.needed for each in self.layouts), default=None)]:
                left = [name for name in names if name not in found]
                if left:
                    found.update(dict.fromkeys(await shard.name_find(namespace, left), shard.shard))
        return found

    def _note(self, job_id: int, number: int) -> None:
        if number != shard_of(job_id):
            if len(self._found) >= limits.moved_jobs_known_max:
                self._found.clear()
            self._found[job_id] = number

    async def _holder(self, job_id: int) -> Store | None:
        """Return the shard of a job; None if there is none."""
        guess = self.guess(job_id)
        if not self.has_moved:
            return None if guess is None else self.shards[guess]
        if guess is not None:
            here = (await self.shards[guess].job_places([job_id])).get(job_id)
            if here is not None and here.step.is_seen:
                return self.shards[guess]
        found = (await self.locate([job_id])).get(job_id)
        return None if found is None else self.shards[found[0]]

    @property
    def journals(self) -> tuple[Store, ...]:
        """The journals of all shards; each shard has its own."""
        return self.shards

    def down(self) -> list[str]:
        """Return the shards that are down, with the reasons."""
        return [
            f"shard {number}: {status.error}"
            for number, status in enumerate(shard.status() for shard in self.shards)
            if status.error is not None
        ]

    def status(self) -> StoreStatus:
        """Return the combined state of the shards: writable as long as one of them is."""
        each = [shard.status() for shard in self.shards]
        since = [status.since_ms for status in each if status.since_ms is not None]
        reserves = [status.reserve_bytes for status in each if status.reserve_bytes is not None]
        return StoreStatus(
            writable=any(status.writable for status in each),
            full=all(status.full for status in each),
            error="; ".join(self.down()) or None,
            since_ms=min(since, default=None),
            quarantined=sum(status.quarantined for status in each),
            reserve_bytes=sum(reserves) if reserves else None,
        )

    def size_bytes(self) -> int:
        return sum(shard.size_bytes() for shard in self.shards)

    # Queues.

    def queue_find(self, key: QueueKey) -> Queue | None:
        return self.of_queue(key).queue_find(key)

    def queues(self) -> list[Queue]:
        return [queue for shard in self.shards for queue in shard.queues()]

    def queues_of(self, namespace: str) -> list[Queue]:
        return [queue for shard in self.shards for queue in shard.queues_of(namespace)]

    def queues_subscribed(self) -> list[Queue]:
        return [queue for shard in self.shards for queue in shard.queues_subscribed()]

    def queue_namespaces(self) -> list[str]:
        return list(dict.fromkeys(name for shard in self.shards for name in shard.queue_namespaces()))

    def queue_count(self, namespace: str | None = None) -> int:
        return sum(shard.queue_count(namespace) for shard in self.shards)

    def queue_of(self, job: JobRecord) -> Queue:
        """Return the queue of a job that was just read."""
        guess = self.guess(job.id)
        assert guess is not None
        return self.shards[guess].queue_of(job)

    def counts(self, queue: Queue) -> StateCounts:
        return self._shard_with(queue).counts(queue)

    def _shard_with(self, queue: Queue) -> Store:
        """Return the shard that a queue was read from: it may have moved since."""
        if self._settled is None:
            for shard in self.shards:
                if shard.queue_find(queue.key) is queue:
                    return shard
        return self.of_queue(queue.key)

    def totals(self) -> StateCounts:
        each = [shard.totals() for shard in self.shards]
        return StateCounts(*(sum(getattr(counts, name) for counts in each) for name in StateCounts.__struct_fields__))

    # Jobs.

    async def job_get(self, namespace: str, ref: int | str) -> tuple[JobRecord, Payload] | None:
        if isinstance(ref, int):
            guess = self.guess(ref)
            found = None if guess is None else await self.shards[guess].job_get(namespace, ref)
            if found is None and self.has_moved:
                place = (await self.locate([ref])).get(ref)
                found = None if place is None else await self.shards[place[0]].job_get(namespace, ref)
            return found
        return next(iter(await self.jobs_named(namespace, ref)), None)

    async def jobs_named(self, namespace: str, name: str) -> list[tuple[JobRecord, Payload]]:
        """Read the jobs with a custom id: at most one per shard. Raises StorageFailed if there may be more."""
        answers = await self._ask(*(shard.job_get(namespace, name) for shard in self._up()))
        found = [each for each in answers if each is not None]
        if self.has_moved and found:
            await self.locate([job.id for job, _ in found])
        if not found and self.down():
            raise self._not_all()
        return found

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        """Find the ids of jobs by their custom ids.

        Raises StorageFailed if not all were found and some may be on a shard that is down.
        """
        answers = await self._ask(*(shard.name_find(namespace, names) for shard in self._up()))
        found = {name: job_id for answer in answers for name, job_id in answer.items()}
        if len(found) < len(set(names)) and self.down():
            raise StorageFailed(f"Not all shards could be queried ({'; '.join(self.down())}). Retry in a moment.")
        return found

    async def job_select(self, selection: Selection) -> list[Place]:
        return await self._shard_with(selection.queue).job_select(selection)

    async def job_page(self, page: Page) -> list[Delivery]:
        return await self._shard_with(page.queue).job_page(page)

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        return await self._shard_with(queue).priority_counts(queue)

    async def prioritized_count(self, queue: Queue) -> int:
        return await self._shard_with(queue).prioritized_count(queue)

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        return await self._shard_with(queue).group_count(queue, state, group)

    async def finished_minutes(self, queue: Queue, state: State) -> FinishedMinutes:
        return await self._shard_with(queue).finished_minutes(queue, state)

    async def result_get(self, job_id: int, *, namespace: str = "") -> bytes | None:
        shard = await self._holder(job_id)
        return None if shard is None else await shard.result_get(job_id, namespace=namespace)

    async def need_list(
        self,
        job_id: int,
        states: Sequence[Need] | None = None,
        limit: int = limits.list_jobs_max,
        offset: int = 0,
        *,
        namespace: str = "",
    ) -> list[Dependency]:
        shard = await self._holder(job_id)
        return [] if shard is None else await shard.need_list(job_id, states, limit, offset, namespace=namespace)

    async def log_get(self, job_id: int, *, namespace: str = "") -> list[LogEntry]:
        shard = await self._holder(job_id)
        return [] if shard is None else await shard.log_get(job_id, namespace=namespace)

    # Crons and webhooks.

    async def cron_get(self, key: CronKey) -> CronRecord | None:
        """Read one cron. Raises StorageFailed if it may be on a shard that is down."""
        found = await self._ask(*(shard.cron_get(key) for shard in self._up()))
        cron = next((each for each in found if each is not None), None)
        if cron is None and self.down():
            raise self._not_all()
        return cron

    async def cron_list(self, namespace: str) -> list[CronRecord]:
        found = await self._ask(*(shard.cron_list(namespace) for shard in self._up()))
        by_name = {cron.key.name: cron for crons in found for cron in crons}  # a cron that is being moved is on two shards
        return [by_name[name] for name in sorted(by_name)]

    def cron_count(self) -> int:
        return sum(shard.cron_count() for shard in self.shards)

    def webhook_list(self) -> list[WebhookRecord]:
        """Return all webhooks. Each shard delivers its own events, so the numbers of deliveries are added up."""
        by_id: dict[int, WebhookRecord] = {}
        for shard in self.shards:
            for webhook in shard.webhook_list():
                known = by_id.get(webhook.id)
                by_id[webhook.id] = webhook if known is None else add_up(known, webhook)
        return sorted(by_id.values(), key=lambda each: each.id)

    def webhook_find(self, webhook_id: int) -> WebhookRecord | None:
        return next((each for each in self.webhook_list() if each.id == webhook_id), None)

    # Helpers.

    def _up(self) -> list[Store]:
        return [shard for shard in self.shards if shard.status().writable]

    def _not_all(self) -> StorageFailed:
        return StorageFailed(f"Not all shards could be queried ({'; '.join(self.down())}). Retry in a moment.")

    @staticmethod
    async def _ask(*questions: Awaitable[T]) -> list[T]:
        """Query several shards at once. Failed queries are left out; if all fail, the first error is raised."""
        answers = await asyncio.gather(*questions, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, StorageFailed)]
        if len(failures) == len(answers) > 0:
            raise failures[0]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, StorageFailed):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def add_up(one: WebhookRecord, other: WebhookRecord) -> WebhookRecord:
    """Return a webhook with the sums of its deliveries on two shards."""
    return msgspec.structs.replace(
        one,
        enabled=one.enabled or other.enabled,
        successes=one.successes + other.successes,
        failures=one.failures + other.failures,
        last_triggered=max((each for each in (one.last_triggered, other.last_triggered) if each is not None), default=None),
    )
