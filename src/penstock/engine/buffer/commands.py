"""The records in the log of an enqueue buffer, and the commands that store them: each record once, on any server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.errors import QueueMoving
from penstock.core.job import JobSpec
from penstock.core.queue import QueueKey
from penstock.engine.command import Command
from penstock.engine.jobs.build import build, create_queue, start_individually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import BufferLogs
    from penstock.store.enqueue_log import LogRecord


class BufferedPush(msgspec.Struct, array_like=True, gc=False):
    """One record of the log: jobs for one queue, with the ids that were answered."""

    namespace: str
    queue: str
    at: int  #: wall clock, ms
    ids: list[int]
    jobs: list[JobSpec]


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(list[BufferedPush]).decode


class StoreRecords(Command[int]):
    """Store those records of a log that are not stored yet. Answers the number up to which the log is stored.

    ``cost``: the weight of the records. ``is_all``: everything before the first of these records was stored once, as the
    owner of the log has recorded. If the database has less, because it was restored from a backup, there is nothing to wait
    for.
    """

    __slots__ = ("cost", "is_all", "log_number", "records")

    grows = True

    def __init__(self, log_number: int, records: Sequence[LogRecord], *, cost: int = 1, is_all: bool = False) -> None:
        self.log_number = log_number
        self.records = records
        self.cost = cost
        self.is_all = is_all

    def weight(self) -> int:
        """Return the weight of the records."""
        return self.cost


class StoreOwnRecords(Command[None]):
    """Store the part of a record of another shard's log whose queues have moved here, unless it is stored already.

    A log is stored in order, so the number of the last record that concerned this shard is sufficient.
    """

    __slots__ = ("log_number", "number", "promises")

    grows = True

    def __init__(self, log_number: int, number: int, promises: Sequence[BufferedPush]) -> None:
        self.log_number = log_number
        self.number = number
        self.promises = promises

    def weight(self) -> int:
        """Return the number of its jobs."""
        return sum(len(promise.jobs) for promise in self.promises)


def _logs_of(work: UnitOfWork) -> BufferLogs:
    logs = work.tx.buffer_logs
    if logs is None:
        raise RuntimeError("This store does not note how far the logs of enqueue buffers are stored.")
    return logs


async def store_own_records(_engine: EngineContext, work: UnitOfWork, commands: Sequence[StoreOwnRecords]) -> None:
    """Apply a batch of records of other shards."""
    logs = _logs_of(work)
    for command in commands:
        if _any_away(work, command.promises):
            work.refuse(command, QueueMoving())
            continue
        before = await logs.log_stored(command.log_number)
        if command.number > before:
            for promise in command.promises:
                await _keep_promise(work, promise)
            await work.flush()
            await logs.log_advance(command.log_number, before, command.number)
        work.answer(command, None)


def _any_away(work: UnitOfWork, promises: Sequence[BufferedPush]) -> bool:
    """Return whether a record is about a queue that another shard has."""
    return any(work.is_elsewhere(key) for key in {QueueKey(promise.namespace, promise.queue) for promise in promises})


async def store_records(_engine: EngineContext, work: UnitOfWork, commands: Sequence[StoreRecords]) -> None:
    """Apply a batch of records."""
    logs = _logs_of(work)
    for command in commands:
        if work.tx.away and any(_any_away(work, decode(record.body)) for record in command.records):
            work.refuse(command, QueueMoving())
            continue
        stored = before = await logs.log_stored(command.log_number)
        if command.is_all and command.records:
            stored = max(stored, command.records[0].number - 1)
        for number, body in command.records:
            if number != stored + 1:
                if number <= stored:
                    continue
                break  # records in between are missing: the owner of the log has them
            for promise in decode(body):
                await _keep_promise(work, promise)
            stored = number
        if stored > before:
            await work.flush()
            await logs.log_advance(command.log_number, before, stored)
        work.answer(command, stored)


async def _keep_promise(work: UnitOfWork, promise: BufferedPush) -> None:
    key = QueueKey(promise.namespace, promise.queue)
    queue = work.tx.queue_find(key) or await work.tx.queue_open(key, must=True)
    if queue.created_at is None:
        await create_queue(work, queue)
    made = build(queue, promise.ids, promise.jobs, promise.at)
    start_individually(work, made, promise.jobs)
    work.pushed += len(made)
