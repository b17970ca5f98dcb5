"""What the conformance tests do with a store, in short words."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.core import lifecycle
from penstock.core.ids import IdSource
from penstock.core.job import JobRecord, Payload
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import Queue, QueueKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.core.clock import ManualClock
    from penstock.store.contract import Store, Transaction

MAIL = QueueKey("default", "mail")


class Workbench:
    """A store under test, with jobs made by hand."""

    def __init__(self, store: Store, clock: ManualClock, reopen: Callable[[], Awaitable[Store]]) -> None:
        self.store = store
        self.clock = clock
        self.ids = IdSource(floor=store.id_floor)
        self._reopen = reopen

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self.store.transaction(self.ids.mark) as tx:
            yield tx

    async def restart(self) -> None:
        """Close the store and open it again."""
        await self.store.close()
        self.store = await self._reopen()

    # What a lifecycle move needs.

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def steady_ms(self) -> int:
        return self.clock.steady_ms()

    def serial(self) -> int:
        return self.ids.next(self.clock.now_ms())

    def make(self, queue: Queue, state: State = State.WAITING, **changes: Any) -> JobRecord:
        """Make a job in a state, as if it had lived through what led there."""
        serial = self.serial()
        job = JobRecord(
            id=serial, namespace=queue.namespace_number, queue=queue.number, created_at=self.now_ms, max_attempts=3,
            backoff=1_000, timeout=None, expires_at=None, flags=0, group_id=None, unique_key=None, custom_id=None,
            state=state.value, priority=0, position=serial, run_at=self.now_ms, size=2,
        )  # fmt: skip
        if state is State.ACTIVE:
            job.token, job.lease_ms, job.lease_until, job.started_at = serial, 30_000, self.steady_ms + 30_000, self.now_ms
        if state in (State.COMPLETED, State.DEAD):
            job.finished_at = self.now_ms
        for name, value in changes.items():
            setattr(job, name, value)
        return job

    async def put(
        self, *, queue: QueueKey = MAIL, state: State = State.WAITING, count: int = 1, data: bytes = b"{}", **changes: Any
    ) -> list[JobRecord]:
        """Store jobs made by hand."""
        async with self.transaction() as tx:
            opened = await tx.queue_open(queue)
            jobs = [self.make(opened, state, **changes) for _ in range(count)]
            await tx.job_insert([(job, Payload(data)) for job in jobs])
        return jobs

    async def ready(self, limit: int = 100, queue: QueueKey = MAIL) -> list[int]:
        """Return the ids that a claim would get."""
        async with self.transaction() as tx:
            return [job.id for job, _ in await tx.job_ready(await tx.queue_open(queue), limit)]

    async def step(self, job: JobRecord, arrow: Arrow, value: int = 0) -> None:
        """Take a stored job along an arrow."""
        async with self.transaction() as tx:
            before = job.state, job.token
            lifecycle.move(job, arrow, self, value)
            if job.state == State.NOWHERE:
                await tx.job_remove([(job, *before)])
            else:
                await tx.job_save([(job, *before)])

    async def load(self, job_id: int) -> JobRecord | None:
        async with self.transaction() as tx:
            return next(iter(await tx.job_load([job_id])), None)

    def queue(self, key: QueueKey = MAIL) -> Queue:
        queue = self.store.queue_find(key)
        assert queue is not None
        return queue
