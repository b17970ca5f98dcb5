"""All shards as one, for whoever only reads. A queue lives on one shard; lists and sums go over all of them.

A shard that is down is left out of what has to be asked for, and ``down`` says so; what is in memory is still known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.core import limits
from penstock.core.errors import StorageFailed
from penstock.core.ids import shard_of
from penstock.core.queue import Counts
from penstock.core.sharding import shard_for
from penstock.store.contract import Capabilities, StoreStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from penstock.core.cron import Cron, CronKey
    from penstock.core.flow import Dependency, Need
    from penstock.core.job import Delivery, Job, Payload
    from penstock.core.queue import Queue, QueueKey
    from penstock.core.webhook import Webhook
    from penstock.store.contract import LogEntry, Page, Place, Selection, Store


T = TypeVar("T")


class ShardedStore:
    """See ``contract.Store`` for what each method promises."""

    def __init__(self, shards: Sequence[Store]) -> None:
        self.shards = tuple(shards)
        self.capabilities: Capabilities = shards[0].capabilities

    def of_queue(self, key: QueueKey) -> Store:
        """Return the shard of a queue."""
        return self.shards[shard_for(key, len(self.shards))]

    def of_job(self, job_id: int) -> Store | None:
        """Return the shard of a job; None if there is no such shard."""
        number = shard_of(job_id)
        return self.shards[number] if number < len(self.shards) else None

    @property
    def journals(self) -> tuple[Store, ...]:
        """Each shard's journal is its own."""
        return self.shards

    def down(self) -> list[str]:
        """Return what is wrong with which shards."""
        return [
            f"shard {number}: {status.error}"
            for number, status in enumerate(shard.status() for shard in self.shards)
            if status.error is not None
        ]

    def status(self) -> StoreStatus:
        """Sum up how the shards are doing: writable as long as one of them is."""
        each = [shard.status() for shard in self.shards]
        since = [status.since_ms for status in each if status.since_ms is not None]
        return StoreStatus(
            writable=any(status.writable for status in each),
            full=all(status.full for status in each),
            error="; ".join(self.down()) or None,
            since_ms=min(since, default=None),
            quarantined=sum(status.quarantined for status in each),
        )

    def size_bytes(self) -> int:
        return sum(shard.size_bytes() for shard in self.shards)

    # Queues.

    def queue_find(self, key: QueueKey) -> Queue | None:
        return self.of_queue(key).queue_find(key)

    def queues(self) -> list[Queue]:
        return [queue for shard in self.shards for queue in shard.queues()]

    def queue_of(self, job: Job) -> Queue:
        shard = self.of_job(job.id)
        assert shard is not None
        return shard.queue_of(job)

    def counts(self, queue: Queue) -> Counts:
        return self.of_queue(queue.key).counts(queue)

    def totals(self) -> Counts:
        each = [shard.totals() for shard in self.shards]
        return Counts(*(sum(getattr(counts, name) for counts in each) for name in Counts.__struct_fields__))

    # Jobs.

    async def job_get(self, namespace: str, ref: int | str) -> tuple[Job, Payload] | None:
        if isinstance(ref, int):
            shard = self.of_job(ref)
            return None if shard is None else await shard.job_get(namespace, ref)
        return next(iter(await self.jobs_named(namespace, ref)), None)

    async def jobs_named(self, namespace: str, name: str) -> list[tuple[Job, Payload]]:
        """Read the jobs that carry a producer's own id: one per shard at most. Raises StorageFailed if there may be more."""
        answers = await self._ask(*(shard.job_get(namespace, name) for shard in self._up()))
        found = [each for each in answers if each is not None]
        if not found and self.down():
            raise self._not_all()
        return found

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        """Find the ids of jobs by their producers' own ids. Raises StorageFailed if not all were found and some may be."""
        answers = await self._ask(*(shard.name_find(namespace, names) for shard in self._up()))
        found = {name: job_id for answer in answers for name, job_id in answer.items()}
        if len(found) < len(set(names)) and self.down():
            raise StorageFailed(f"Not all shards could be asked ({'; '.join(self.down())}). Retry in a moment.")
        return found

    async def job_select(self, selection: Selection) -> list[Place]:
        return await self.of_queue(selection.queue.key).job_select(selection)

    async def job_page(self, page: Page) -> list[Delivery]:
        return await self.of_queue(page.queue.key).job_page(page)

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        return await self.of_queue(queue.key).priority_counts(queue)

    async def result_get(self, job_id: int) -> bytes | None:
        shard = self.of_job(job_id)
        return None if shard is None else await shard.result_get(job_id)

    async def need_list(
        self, job_id: int, states: Sequence[Need] | None = None, limit: int = limits.list_jobs_max, offset: int = 0
    ) -> list[Dependency]:
        shard = self.of_job(job_id)
        return [] if shard is None else await shard.need_list(job_id, states, limit, offset)

    async def log_get(self, job_id: int) -> list[LogEntry]:
        shard = self.of_job(job_id)
        return [] if shard is None else await shard.log_get(job_id)

    # Crons and webhooks.

    async def cron_get(self, key: CronKey) -> Cron | None:
        """Read one cron. Raises StorageFailed if it may be on a shard that is down."""
        found = await self._ask(*(shard.cron_get(key) for shard in self._up()))
        cron = next((each for each in found if each is not None), None)
        if cron is None and self.down():
            raise self._not_all()
        return cron

    async def cron_list(self, namespace: str) -> list[Cron]:
        found = await self._ask(*(shard.cron_list(namespace) for shard in self._up()))
        return sorted((cron for crons in found for cron in crons), key=lambda cron: cron.key.name)

    def cron_count(self) -> int:
        return sum(shard.cron_count() for shard in self.shards)

    def webhook_list(self) -> list[Webhook]:
        """Return all webhooks. Each shard delivers its own events, so what they have delivered is added up."""
        by_id: dict[int, Webhook] = {}
        for shard in self.shards:
            for webhook in shard.webhook_list():
                known = by_id.get(webhook.id)
                by_id[webhook.id] = webhook if known is None else add_up(known, webhook)
        return sorted(by_id.values(), key=lambda each: each.id)

    def webhook_find(self, webhook_id: int) -> Webhook | None:
        return next((each for each in self.webhook_list() if each.id == webhook_id), None)

    # Parts.

    def _up(self) -> list[Store]:
        return [shard for shard in self.shards if shard.status().writable]

    def _not_all(self) -> StorageFailed:
        return StorageFailed(f"Not all shards could be asked ({'; '.join(self.down())}). Retry in a moment.")

    @staticmethod
    async def _ask(*questions: Awaitable[T]) -> list[T]:
        """Ask several shards at once. What one of them cannot answer is left out; if none can, the first reason is raised."""
        answers = await asyncio.gather(*questions, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, StorageFailed)]
        if len(failures) == len(answers) > 0:
            raise failures[0]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, StorageFailed):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def add_up(one: Webhook, other: Webhook) -> Webhook:
    """Return a webhook as it has done on two shards together."""
    return msgspec.structs.replace(
        one,
        enabled=one.enabled or other.enabled,
        successes=one.successes + other.successes,
        failures=one.failures + other.failures,
        last_triggered=max((each for each in (one.last_triggered, other.last_triggered) if each is not None), default=None),
    )
