"""The enqueue buffer: pushes to queues in ``buffered`` mode are answered when they are in this server's log on disk.

A flusher stores them in the database, in order, as fast as the database accepts them. It has a circuit breaker: while the
database fails, the records wait in the log, up to its limit. In the transaction of each batch, the database records up to
which number the log is stored. So after any crash each record is stored once, and a job that was acknowledged meanwhile
stays completed.

A copy of the log is in Redis. If a server does not return, another server stores from the copy what the database lacks, up
to the first missing record; the rest waits until the server returns. Only plain jobs are buffered: a job that has a name, or
needs others, is stored directly, because its answer depends on what is stored.

A server without Redis that finds a log from an earlier run stores its records, and adds no new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.core import limits
from penstock.core.breaker import Breaker
from penstock.core.errors import FastPathFailed, ServerError, ShuttingDown, StorageFailed, StorageFull, TooMany
from penstock.core.job import JobFlag, JobSpec
from penstock.core.queue import QueueKey
from penstock.engine.buffer.backlogs import Backlogs, BufferedRecord
from penstock.engine.buffer.capacity import BufferCapacity
from penstock.engine.buffer.commands import BufferedPush, StoreOwnRecords, StoreRecords, decode, encode
from penstock.engine.jobs.build import build
from penstock.engine.jobs.push import Push, PushAcross, any_special
from penstock.engine.maintenance.service import PeriodicService
from penstock.store.enqueue_log import EnqueueLog, LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.core.queue import Queue
    from penstock.engine.command import Command, Submit
    from penstock.engine.context import EngineContext
    from penstock.store.redis.buffer_copies import BufferCopies

log = structlog.get_logger("penstock.buffer")

#: Failures in a row after which the flusher pauses, and length of the pause (ms).
FAILURES: Final = 3
REST_MS: Final = 1_000
#: If a server has not reached the database for this long (ms), it may have lost the number from which its ids are made.
OUT_OF_REACH_MS: Final = 40_000


class EnqueueBuffer:
    """The enqueue buffer of one engine.

    ``directory``: where its log is. ``identity``: that of the shard, when it is known. ``copies``: the copies in Redis;
    None: there is no Redis, so no new pushes are buffered and the log is only stored. ``accept_loss``: continue without
    records that were answered and are missing in the log.
    """

    def __init__(
        self,
        engine: EngineContext,
        directory: Path,
        identity: Callable[[], str],
        copies: BufferCopies | None,
        *,
        accept_loss: bool = False,
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._identity = identity
        self._accept_loss = accept_loss
        self.enqueue_log: EnqueueLog | None = None  #: the log, when it is open
        self.copies = copies
        self.route: Callable[[QueueKey], EngineContext] = lambda _queue: engine  #: returns the engine that has a queue now
        self._unstored: deque[tuple[LogRecord, BufferedRecord]] = deque()
        self._bytes = 0
        self._depths: dict[QueueKey, int] = {}
        self.jobs = 0  #: answered and not stored
        self._capacity = BufferCapacity(self, engine.store)
        self._backlogs = Backlogs(engine, self._capacity)
        self.breaker = Breaker(engine.clock, failures=FAILURES, rest_ms=REST_MS)
        self.flusher = Flusher(self, engine)
        self._flushing: asyncio.Task[None] | None = None
        self._uncopied: list[LogRecord] = []
        self._copying: asyncio.Task[None] | None = None
        self._stored_up_to = 0
        self._warned = False
        self._opened: tuple[EnqueueLog, list[LogRecord]] | None = None
        self._closed = False

    async def open(self) -> None:
        """Open the log, and begin to store the records of an earlier run.

        Raises StoreLocked, StoreIncompatible (the log is damaged, or lacks records that were answered).

        If the shard cannot report up to which number the log is stored, nothing happens, and the request is repeated later.
        """
        if self.enqueue_log is not None or not self._identity():
            return
        try:
            if self._opened is None:
                self._opened = await asyncio.to_thread(
                    EnqueueLog.open, self._directory, self._identity(), self._engine.clock
                )
            enqueue_log, left = self._opened
            await self._check_mark(enqueue_log)
            stored = await self._engine.run(StoreRecords(enqueue_log.number, []))
            if stored > enqueue_log.last:  # this is an old copy of the log: its next numbers were used already
                log.warning("the log of the enqueue buffer is older than its stored records: a new log is begun")
                await asyncio.to_thread(enqueue_log.begin_anew)
            else:
                await asyncio.to_thread(enqueue_log.begin)
        except (OSError, StorageFailed) as error:
            if not self._warned:
                self._warned = True
                log.warning("the enqueue buffer cannot be used now: pushes are stored directly", error=str(error))
            return
        for record in left:
            if record.number > stored:
                promises = decode(record.body)
                self._keep(record, [(QueueKey(each.namespace, each.queue), len(each.jobs)) for each in promises])
        self.enqueue_log = enqueue_log
        self.flush()

    async def _check_mark(self, enqueue_log: EnqueueLog) -> None:
        """Compare the log with its mark. Records that the log lacks are stored from the copy in Redis, if it has them."""
        number, synced = (0, 0) if enqueue_log.mark is None else (enqueue_log.mark.log, enqueue_log.mark.synced)
        stored = await self._engine.run(StoreRecords(number, []))
        if self.copies is not None and stored < synced and enqueue_log.missing(stored) is not None:
            with contextlib.suppress(ServerError):
                await self.adopt(number)
            stored = await self._engine.run(StoreRecords(number, []))
        if enqueue_log.check(stored, accept_loss=self._accept_loss) and self.copies is not None:
            with contextlib.suppress(FastPathFailed):
                await self.copies.forget(number, synced)  # their numbers are used again from now on

    @property
    def has_copies(self) -> bool:
        """Whether there is a Redis for copies of the log; without one, no new pushes are buffered."""
        return self.copies is not None

    @property
    def is_open(self) -> bool:
        """Whether the log is open."""
        return self.enqueue_log is not None

    @property
    def last_number(self) -> int:
        """Number of the newest record of the log; 0 if there is none."""
        return 0 if self.enqueue_log is None else self.enqueue_log.last

    def depth(self, queue: QueueKey) -> int:
        """Return the number of jobs of a queue that are answered and not stored."""
        return self._depths.get(queue, 0)

    # Pushes.

    def stage(self, following: Submit) -> Submit:
        """Return a function that answers pushes to buffered queues early, and passes all other commands to ``following``."""

        def buffered(command: Command[Any]) -> asyncio.Future[Any]:
            parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]]
            if type(command) is Push:
                if command.room is not None and self._may_hold(command.queue):
                    return asyncio.ensure_future(self._push_within_room(command, following))
                parts = ((command.queue, command.jobs),)
            elif type(command) is PushAcross:
                parts = command.parts
            else:
                return following(command)
            if not self.takes(parts):
                return following(command)
            return asyncio.ensure_future(self._push_in_turn(command, parts, following))

        return buffered

    async def _push_in_turn(
        self,
        command: Push | PushAcross,
        parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]],
        following: Submit,
    ) -> Any:
        if await self._turn(parts):
            return await self._promise_or_store(command, parts, following)
        return await following(command)

    async def _promise_or_store(
        self,
        command: Push | PushAcross,
        parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]],
        following: Submit,
    ) -> Any:
        """Answer a push from the log; store it directly if the disk of the log is full."""
        try:
            return await self._promise(parts, across=type(command) is PushAcross)
        except StorageFull:
            if self.takes(parts):  # the database is full, not the disk of the log
                raise
        return await following(command)

    def _may_hold(self, key: QueueKey) -> bool:
        """Return whether jobs of a queue may be buffered here."""
        queue = self._engine.store.queue_find(key)
        return key in self._depths or (queue is not None and queue.settings.buffered)

    async def _push_within_room(self, push: Push, following: Submit) -> Any:
        parts = ((push.queue, push.jobs),)
        if self.takes(parts) and await self._turn(parts) and self._capacity.has_room(push):
            return await self._promise_or_store(push, parts, following)  # this counts it before anything else happens
        return await self._capacity.ask_database(push, following)

    async def _turn(self, parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]]) -> bool:
        """Wait until a push may be written to the log; return whether it may be answered early then.

        Raises NamespaceLimit.
        """
        namespace, count = parts[0][0].namespace, sum(len(jobs) for _, jobs in parts)
        await self._backlogs.turn(namespace, count, taken=self.jobs, taken_bytes=self._bytes)
        return self.takes(parts)

    def takes(self, parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]]) -> bool:
        """Return whether pushes may be answered early: all of them are to buffered queues, and plain."""
        if self.copies is None or not parts:
            return False
        for key, jobs in parts:
            queue = self._engine.store.queue_find(key)
            if queue is None or not queue.settings.buffered or any_special(jobs) or not jobs:
                return False
            if any(new.flags & JobFlag.DURABLE for new in jobs):
                return False
        return self.enqueue_log is not None and self.enqueue_log.failure is None and not self._closed

    async def _promise(self, parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]], *, across: bool) -> Any:
        engine = self._engine
        count = sum(len(jobs) for _, jobs in parts)
        self._check_room(parts[0][0].namespace, count)
        queues = [self._queue(key) for key, _ in parts]  # first: after the append, the push cannot be refused
        now = engine.clock.now_ms()
        promises = [BufferedPush(*key, now, engine.ids.take(len(jobs), now), list(jobs)) for key, jobs in parts]
        body = encode(promises)
        if len(body) > limits.buffer_record_bytes_max:
            raise TooMany("The batch is too large for the enqueue buffer. Send it in smaller parts.")
        assert self.enqueue_log is not None  # see takes
        number, durable = self.enqueue_log.append(body)
        record = LogRecord(number, body)
        self._keep(record, [(key, len(jobs)) for key, jobs in parts])
        durable.add_done_callback(partial(self._logged, record))
        await asyncio.shield(durable)  # a client that disconnects now does not undo it
        answers = [build(queue, each.ids, each.jobs, each.at) for queue, each in zip(queues, promises, strict=True)]
        return answers if across else answers[0]

    def _keep(self, record: LogRecord, parts: Sequence[tuple[QueueKey, int]]) -> None:
        """Count a record that is to be stored. ``parts``: queues, and the number of its jobs for each."""
        counts: dict[QueueKey, int] = {}
        for key, jobs in parts:
            counts[key] = counts.get(key, 0) + jobs
        buffered = BufferedRecord(record.number, len(record.body), counts)
        for key, jobs in counts.items():
            self._depths[key] = self._depths.get(key, 0) + jobs
        self.jobs += buffered.jobs
        self._bytes += buffered.bytes
        self._backlogs.add(buffered)
        self._unstored.append((record, buffered))

    def _logged(self, record: LogRecord, durable: asyncio.Future[None]) -> None:
        if durable.exception() is not None:  # the next start finds out whether it is in the log
            for each in self._unstored:
                if each[0].number == record.number:
                    self._unstored.remove(each)
                    self._settle(each[1])
                    break
            self._capacity.failed(StorageFailed("The log of the enqueue buffer failed: nothing was stored."))
        else:
            self.flush()
            self._uncopied.append(record)
            if self._copying is None:
                self._copying = asyncio.get_running_loop().create_task(self._copy(), name="penstock-buffer-copy")

    def _check_room(self, namespace: str, count: int) -> None:
        if self.jobs + count > limits.buffer_jobs_max or self._bytes > limits.buffer_bytes_max:
            raise TooMany(
                f"The enqueue buffer is full ({self.jobs} jobs wait to be stored, {limits.buffer_jobs_max} may). Retry later."
            )
        self._backlogs.check_share(namespace, count, taken=self.jobs, taken_bytes=self._bytes)
        status, clock = self._engine.store.status(), self._engine.clock
        if status.full:
            self._engine.store.check_writable(grows=True)
        if status.since_ms is not None and clock.now_ms() - status.since_ms > OUT_OF_REACH_MS:
            raise StorageFailed(
                f"Storage has failed for too long ({status.error}): the log accepts no more pushes. Retry later."
            )

    def _queue(self, key: QueueKey) -> Queue:
        queue = self._engine.store.queue_find(key)
        if queue is None:
            raise StorageFailed("The queue was removed, or its shard is failing. Nothing was stored. Retry in a moment.")
        return queue

    # Storing.

    def flush(self) -> None:
        """Begin to store the records of the log."""
        if self._flushing is None and self._next() and self.breaker.allows():
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="penstock-flusher")

    async def _flush(self) -> None:
        try:
            while self.enqueue_log is not None and (some := self._next()) and self.breaker.allows():
                try:
                    records = [record for record, _ in some]
                    cost = sum(each.weight for _, each in some)
                    stored = await self._store(self.enqueue_log.number, records, cost=cost, is_all=True)
                    if stored < records[0].number:
                        raise StorageFailed("it was not stored")
                except ServerError as error:
                    self.breaker.failed()
                    self._capacity.failed(error)
                    log.warning("the enqueue buffer could not be stored; it is tried again", error=str(error))
                    continue
                self.breaker.worked()
                await self._stored(self.enqueue_log, stored)
        finally:
            self._flushing = None

    async def _store(self, log_number: int, records: Sequence[LogRecord], *, cost: int = 1, is_all: bool = False) -> int:
        """Store records, of the weight ``cost``. Those of queues that have moved are stored on their new shards.

        Return the number up to which all are.
        """
        layout = self._engine.store.layout
        if layout is None or not layout.has_moved:
            return await self._engine.run(StoreRecords(log_number, records, cost=cost, is_all=is_all))
        stored = 0
        for number, body in records:  # this is rare, so they are stored one by one
            elsewhere: dict[EngineContext, list[BufferedPush]] = {}
            for promise in decode(body):
                elsewhere.setdefault(self.route(QueueKey(promise.namespace, promise.queue)), []).append(promise)
            here = elsewhere.pop(self._engine, [])
            for engine, promises in elsewhere.items():
                await engine.run(StoreOwnRecords(log_number, number, promises))
            stored = await self._engine.run(StoreRecords(log_number, [LogRecord(number, encode(here))], is_all=is_all))
            if stored < number:
                break
        return stored

    def _next(self) -> list[tuple[LogRecord, BufferedRecord]]:
        """Return the records that are stored next: as much as one batch of commands may have, at least one record."""
        some: list[tuple[LogRecord, BufferedRecord]] = []
        weight = 0
        most = limits.batch_weight_shared_max if self._engine.fair_share.shared else limits.batch_weight_max
        for each in self._unstored:
            record = each[1]
            if self.enqueue_log is None or record.number > self.enqueue_log.durable:
                break
            if some and (weight + record.weight > most or len(some) >= limits.buffer_flush_records):
                break
            some.append(each)
            weight += record.weight
        return some

    async def _stored(self, enqueue_log: EnqueueLog, number: int) -> None:
        while self._unstored and self._unstored[0][0].number <= number:
            self._settle(self._unstored.popleft()[1])
        self._stored_up_to = number
        self._capacity.advanced(number)
        enqueue_log.forget(number)
        if self.copies is not None:
            with contextlib.suppress(FastPathFailed):
                await self.copies.forget(enqueue_log.number, number)

    def _settle(self, record: BufferedRecord) -> None:
        self._bytes -= record.bytes
        self.jobs -= record.jobs
        for key, count in record.counts.items():
            self._depths[key] -= count
            if not self._depths[key]:
                del self._depths[key]
        self._backlogs.remove(record)

    async def _copy(self) -> None:
        """Keep copies in Redis, in case this server does not return. If that fails, the log alone is sufficient."""
        try:
            while self._uncopied and self.enqueue_log is not None and self.copies is not None:
                some, self._uncopied = self._uncopied, []
                with contextlib.suppress(FastPathFailed):
                    await self.copies.keep(self.enqueue_log.number, some)
        finally:
            self._copying = None

    async def show_life(self) -> None:
        """Show the other servers that this server stores its log itself."""
        if self.enqueue_log is not None and self.copies is not None:
            await self.copies.keep(self.enqueue_log.number, [])
            # Removes copies that were written too late.
            await self.copies.forget(self.enqueue_log.number, self._stored_up_to)

    async def adopt(self, log_number: int) -> None:
        """Store the records of another server that does not run any more."""
        copies = self.copies
        if copies is None:
            return
        while records := await copies.read(log_number, limits.buffer_flush_records):
            stored = await self._store(log_number, records)
            await copies.forget(log_number, stored)
            if stored < records[-1].number:
                log.warning(
                    "a part of the log of another server is stored when that server returns", log=log_number, stored=stored
                )
                return
            log.info("stored the log of another server", log=log_number, up_to=stored)
        await copies.forget(log_number, 0)

    async def close(self) -> None:
        """Store the buffered records, if that is possible now. The rest stays in the log."""
        self._closed = True
        await self.flusher.stop()
        under_way = [task for task in (self._flushing, self._copying) if task is not None]
        await asyncio.gather(*under_way, return_exceptions=True)
        self._capacity.failed(ShuttingDown())
        if self._opened is not None:
            enqueue_log = self._opened[0]
            await enqueue_log.close(
                is_stored=self.enqueue_log is enqueue_log and not self._unstored and enqueue_log.failure is None
            )


class Flusher(PeriodicService):
    """Stores again what could not be stored, renews this server's entry, and stores the logs of servers that have ended."""

    every_ms = 1_000

    def __init__(self, buffer: EnqueueBuffer, engine: EngineContext) -> None:
        super().__init__(engine)
        self._buffer = buffer

    async def run_once(self) -> None:
        """Do one round."""
        buffer = self._buffer
        await buffer.open()
        if buffer.enqueue_log is None:
            return
        if buffer.enqueue_log.failure is not None:
            await asyncio.to_thread(buffer.enqueue_log.revive)
        await asyncio.to_thread(buffer.enqueue_log.sync_mark)
        buffer.flush()
        if buffer.copies is None:
            return
        try:
            await buffer.show_life()
            if self._engine.leads and self._engine.store.status().error is None:
                for log_number in await buffer.copies.orphans():
                    if log_number != buffer.enqueue_log.number:
                        await buffer.adopt(log_number)
        except FastPathFailed:
            pass  # without Redis, each server stores its own log
