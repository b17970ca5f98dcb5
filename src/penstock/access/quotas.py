"""Quotas: how many jobs may be pushed to each namespace in a minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from penstock.access.identity import ANYWHERE
from penstock.core import limits
from penstock.core.errors import InvalidInput, QuotaExceeded, ServerError, TooMany
from penstock.core.quota import Windows
from penstock.core.sharding import fnv1a32
from penstock.store.contract import QuotaCount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.store.contract import Store

log = structlog.get_logger("penstock.access")


class Counter:
    """Counts the pushed jobs of namespaces. Each namespace is counted in one store, the same at every server."""

    def __init__(self, stores: Sequence[Store], clock: Clock) -> None:
        self.clock = clock
        self._batchers = [QuotaBatcher(store, stores, clock) for store in stores]

    async def count(self, takes: Sequence[QuotaCount]) -> list[int]:
        """Count jobs immediately, for a caller in a transaction: 0 for each, or the ms until there is room.

        It does not wait if the store counts in memory.
        """
        waits = [0] * len(takes)
        for number, batcher in enumerate(self._batchers):
            places = [at for at, take in enumerate(takes) if fnv1a32(take.namespace) % len(self._batchers) == number]
            if places:
                for at, wait_ms in zip(places, await batcher.count([takes[at] for at in places]), strict=True):
                    waits[at] = wait_ms
        return waits

    def ask(self, take: QuotaCount) -> asyncio.Future[int]:
        """Count jobs. The future is 0, or the ms until there is room for them."""
        return self._batchers[fnv1a32(take.namespace) % len(self._batchers)].ask(take)


class QuotaBatcher:
    """Counts in one store. Requests that arrive during a count are combined into the next one.

    While the store is not available, this server counts alone and admits its share of the quota: the quota divided by the
    number of servers, but at least one job a minute. When the store is available again, the jobs admitted meanwhile are
    counted there.
    """

    def __init__(self, store: Store, stores: Sequence[Store], clock: Clock) -> None:
        self._store = store
        self._stores = stores
        self._clock = clock
        self._pending: list[tuple[QuotaCount, asyncio.Future[int]]] = []
        self._running: asyncio.Task[None] | None = None
        self._alone: Windows | None = None  #: jobs that were admitted while the store was not available

    def ask(self, take: QuotaCount) -> asyncio.Future[int]:
        """Add a count to the next request. Raises TooMany, but never for jobs that are given back."""
        if take.jobs > 0 and len(self._pending) >= limits.pending_commands_max:
            raise TooMany("Too many requests are waiting to be counted. Slow down and retry.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        self._pending.append((take, answer))
        if self._running is None:
            self._running = loop.create_task(self._run(), name="penstock-quotas")
        return answer

    async def _run(self) -> None:
        try:
            while self._pending:
                batch = self._pending[: limits.batch_commands_max]
                del self._pending[: limits.batch_commands_max]
                await self._answer(batch)
        finally:
            self._running = None

    async def _answer(self, batch: list[tuple[QuotaCount, asyncio.Future[int]]]) -> None:
        try:
            waits = await self.count([take for take, _ in batch])
        except Exception:
            log.exception("jobs could not be counted")
            for take, answer in batch:
                if not answer.done() and take.jobs > 0:  # else no caller waits
                    answer.set_exception(ServerError())
            return
        for (take, answer), wait_ms in zip(batch, waits, strict=True):
            if not answer.done():
                answer.set_result(wait_ms)
            elif take.jobs > 0 and not wait_ms:  # the caller is gone
                self.ask(refund(take.namespace, take.jobs))

    async def count(self, takes: list[QuotaCount]) -> list[int]:
        """Count immediately: see ``Counter.count``."""
        alone = {} if self._alone is None else self._alone.counts(self._clock.steady_ms())
        passed = [QuotaCount(namespace, count, None) for namespace, count in alone.items()]
        try:
            waits = await self._store.quota_take(passed + takes)
        except ServerError as error:
            return self._count_alone(takes, error)
        if self._alone is not None:
            self._alone = None
            log.info("quotas are counted over all servers again", shard=self._store.shard)
        return waits[len(passed) :]

    def _count_alone(self, takes: list[QuotaCount], error: ServerError) -> list[int]:
        servers = max(store.servers for store in self._stores)
        if self._alone is None:
            self._alone = Windows()
            log.warning(
                "quotas cannot be counted over all servers: this server admits its share",
                shard=self._store.shard, servers=servers, reason=str(error),
            )  # fmt: skip
        waits: list[int] = []
        for namespace, jobs, quota in takes:
            if jobs < 0:
                self._alone.refund(namespace, -jobs)
                waits.append(0)
            else:
                share = quota and max(1, quota // servers)
                waits.append(self._alone.take(namespace, jobs, share, self._clock.steady_ms()))
        return waits


def refund(namespace: str, count: int) -> QuotaCount:
    """Return the count that gives some jobs back to the quota."""
    return QuotaCount(namespace, -count, None)


class Quotas:
    """The quotas of namespaces. ``quotas``: jobs per minute by namespace; ``*``: for each namespace that is not listed."""

    def __init__(self, quotas: Mapping[str, int], counter: Counter) -> None:
        self._quotas = dict(quotas)
        self._default = self._quotas.pop(ANYWHERE, None)
        self._counter = counter
        self._next_ms: dict[str, int] = {}  #: steady clock: when a namespace without room may push its next job

    def of(self, namespace: str) -> int | None:
        """Return the quota of a namespace; None if it has none."""
        return self._quotas.get(namespace, self._default)

    async def admit(self, counts: Mapping[str, int]) -> None:
        """Count jobs for namespaces: all, or none if there is no room. Raises QuotaExceeded, or InvalidInput."""
        quotas = {namespace: quota for namespace in counts if (quota := self.of(namespace)) is not None}
        for namespace, quota in quotas.items():
            if counts[namespace] > quota > 0:
                raise InvalidInput(
                    f"namespace {namespace} has a quota of {quota} enqueues/minute; "
                    f"send fewer than {counts[namespace]} at once"
                )
        takes = [QuotaCount(namespace, counts[namespace], quota) for namespace, quota in quotas.items()]
        asked = [self._counter.ask(take) for take in takes]
        waits = await asyncio.gather(*asked)
        full = next((at for at, wait_ms in enumerate(waits) if wait_ms), None)
        if full is not None:
            self.refund({take.namespace: take.jobs for take, wait_ms in zip(takes, waits, strict=True) if not wait_ms})
            raise QuotaExceeded(
                f"namespace {takes[full].namespace} exceeded quota of {takes[full].quota} enqueues/minute. "
                f"Retry in {-(-waits[full] // limits.SECOND_MS)} s.",
                retry_after_ms=waits[full],
            )

    def refund(self, counts: Mapping[str, int]) -> None:
        """Give back jobs that were admitted a moment ago and not stored."""
        for namespace, count in counts.items():
            if self.of(namespace) is not None:
                self._counter.ask(refund(namespace, count))

    async def grant(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Count as many jobs for each namespace as there is room for. Return the numbers, of those with a quota."""
        takes = [
            QuotaCount(namespace, 1, quota)
            for namespace, count in counts.items()
            if (quota := self.of(namespace)) is not None
            for _ in range(count)
        ]
        granted = {take.namespace: 0 for take in takes}
        try:
            waits = await self._counter.count(takes) if takes else []
        except Exception:
            log.exception("jobs could not be counted")  # the caller's open transaction must not fail
            return granted
        for take, wait_ms in zip(takes, waits, strict=True):
            granted[take.namespace] += not wait_ms
        return granted

    async def charge(self, counts: Mapping[str, int]) -> dict[str, list[int]]:
        """Count jobs that must be pushed whether there is room or not.

        Return, by namespace, the delays in ms for the jobs without room: they come at the pace of the quota.
        """
        granted = await self.grant(counts)
        now_ms = self._counter.clock.steady_ms()
        late: dict[str, list[int]] = {}
        for namespace, count in granted.items():
            over = counts[namespace] - count
            if over:
                self._counter.ask(QuotaCount(namespace, over, None))
                pace_ms = limits.MINUTE_MS // max(1, self.of(namespace) or 0)
                begin_ms = max(now_ms, self._next_ms.pop(namespace, 0))
                late[namespace] = [begin_ms - now_ms + pace_ms * number for number in range(1, over + 1)]
                if len(self._next_ms) >= limits.quota_namespaces_max:
                    self._next_ms.clear()
                self._next_ms[namespace] = begin_ms + pace_ms * over
        return late
