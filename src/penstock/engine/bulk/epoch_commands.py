"""Stores consumer groups and their epochs: slices of leases, and which slices are an epoch. See ``consumer_groups.py``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import bulk_records, limits
from penstock.core.bulk_records import BulkRecord, ConsumerGroup, EntryKind, Epoch, EpochSlice, SliceRef, slice_name
from penstock.core.errors import (
    EpochOver,
)
from penstock.core.job import JobFlag
from penstock.core.lifecycle import Arrow
from penstock.engine.command import Command, NamespaceCommand
from penstock.engine.jobs.repeat import repeat
from penstock.engine.jobs.settle import complete_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


#: Namespace, group, and the epoch's number.
EpochName = tuple[str, str, int]


class SliceOutcome(Enum):
    """How a slice is settled."""

    ACK = "ack"  #: its jobs are completed
    RELEASE = "release"  #: its jobs are ready again, at their old places
    RENEW = "renew"  #: its leases are renewed
    ADOPT = "adopt"  #: its leases are renewed, and jobs that the group does not hold any more are left out


class Settled(NamedTuple):
    """Outcome of settling a slice: how many jobs the group held, and the id and token of those that it did not hold."""

    held: int
    others: list[tuple[int, int]]


class SettleSlice(Command["Settled | None"]):
    """Settle the jobs of a slice. Answers None if the slice does not exist any more, because it was settled before.

    A slice that is acknowledged or released is deleted. If it has other jobs and ``keeps_others``, it is kept with these.
    """

    __slots__ = ("ending", "keeps_others", "lease_ms", "name", "number")

    urgent = True

    def __init__(
        self, name: EpochName, number: int, ending: SliceOutcome, lease_ms: int = 0, *, keeps_others: bool = False
    ) -> None:
        self.name = name
        self.number = number
        self.ending = ending
        self.lease_ms = lease_ms
        self.keeps_others = keeps_others

    def tenant(self) -> str | None:
        """Return the namespace of its group."""
        return self.name[0]

    def weight(self) -> int:
        """Return the number of jobs that a slice may have."""
        return limits.epoch_slice_jobs


class WaitForDisk(Command[None]):
    """Answered when everything before it is on disk, with any durability."""

    __slots__ = ()

    durable = True


class CheckPayloads(Command[None]):
    """Check jobs and their payloads: damaged ones are moved to quarantine. A claim for an epoch does not check payloads."""

    __slots__ = ("jobs",)

    def __init__(self, jobs: Sequence[int]) -> None:
        self.jobs = jobs

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.jobs)


class RecordEpoch(NamespaceCommand[Epoch]):
    """Record what was claimed as an epoch. Answers the recorded epoch, which may be that of another claim.

    Refused with EpochOver, or TooMany.
    """

    __slots__ = ("epoch", "group", "number", "queues")

    grows = True
    durable = True

    def __init__(self, namespace: str, group: str, number: int, queues: Sequence[str], epoch: Epoch) -> None:
        super().__init__(namespace)
        self.group = group
        self.number = number
        self.queues = queues
        self.epoch = epoch


class BeginSettling(NamespaceCommand[list[tuple[int, Epoch]]]):
    """Begin to settle the epochs of a group up to a number: they cannot be read any more.

    Answers the epochs as they were.
    """

    __slots__ = ("group", "up_to")

    def __init__(self, namespace: str, group: str, up_to: int) -> None:
        super().__init__(namespace)
        self.group = group
        self.up_to = up_to


class EndEpochs(NamespaceCommand[None]):
    """Delete epochs that are settled. ``acked``: all up to it were acknowledged; None: the group starts again."""

    __slots__ = ("acked", "group", "numbers")

    durable = True

    def __init__(self, namespace: str, group: str, numbers: Sequence[int], acked: int | None) -> None:
        super().__init__(namespace)
        self.group = group
        self.numbers = numbers
        self.acked = acked

    def weight(self) -> int:
        """Return the number of its epochs, and one for the group."""
        return 1 + len(self.numbers)


class RecordGroupUse(NamespaceCommand[None]):
    """Record that a group is in use. An unknown group is not created."""

    __slots__ = ("group", "queues")

    def __init__(self, namespace: str, group: str, queues: Sequence[str] | None = None) -> None:
        super().__init__(namespace)
        self.group = group
        self.queues = queues  #: queues from which it claims; these create the group


class ForgetGroups(Command[None]):
    """Remove groups that were not used for a long time."""

    __slots__ = ("before_ms", "groups")

    def __init__(self, groups: Sequence[tuple[str, str]], before_ms: int) -> None:
        self.groups = groups
        self.before_ms = before_ms

    def weight(self) -> int:
        """Return the number of its groups."""
        return len(self.groups)


class SliceNote:
    """Records what is claimed for an epoch, in the transaction of the claim."""

    def __init__(self, namespace: str, group: str, epoch: int) -> None:
        self._name = (namespace, group, epoch)
        self.ref: SliceRef | None = None  #: set when jobs were claimed

    async def write(self, shard: int, work: UnitOfWork, jobs: Sequence[JobRecord]) -> None:
        """Record jobs of a shard and their leases."""
        namespace, group, epoch = self._name
        number = work.serial()
        body = bulk_records.encode(EpochSlice.of([job.id for job in jobs], [job.token for job in jobs]))
        entry = BulkRecord(EntryKind.SLICE, namespace, slice_name(group, epoch), number, work.now_ms, body, len(jobs))
        await work.tx.entry_save([entry])
        self.ref = SliceRef(shard, number, len(jobs))

    def taken_back(self) -> SettleSlice:
        """Return the command that releases the jobs."""
        assert self.ref is not None
        return SettleSlice(self._name, self.ref.number, SliceOutcome.RELEASE)


async def settle_slices(engine: EngineContext, work: UnitOfWork, commands: Sequence[SettleSlice]) -> None:
    """Settle a batch of slices: the jobs and the record of each slice change in one transaction."""
    for command in commands:
        namespace, group, epoch = command.name
        entries = await work.tx.entry_load(EntryKind.SLICE, namespace, slice_name(group, epoch), command.number)
        if not entries:
            work.answer_early(command, None)
            continue
        jobs, tokens = bulk_records.decode_slice(entries[0].body).leases()
        await work.prefetch(jobs)
        held, others = work.held(jobs, tokens)
        if held:
            await _settle_held(engine, work, command, held)
        kept: list[tuple[int, int]] | None = []  #: None: it is not changed
        if command.ending is SliceOutcome.RENEW:
            kept = None
        elif command.ending is SliceOutcome.ADOPT:
            kept = [(job.id, job.token) for job in held]
        elif command.keeps_others:
            kept = others
        if kept:
            body = bulk_records.encode(EpochSlice.of(*zip(*kept, strict=True)))
            await work.tx.entry_save([entries[0]._replace(body=body, weight=len(kept))])
        elif kept is not None:
            await work.tx.entry_remove(entries)
        work.answer_early(command, Settled(len(held), others))


async def _settle_held(engine: EngineContext, work: UnitOfWork, command: SettleSlice, held: list[JobRecord]) -> None:
    if command.ending is SliceOutcome.RELEASE:
        work.move_all(held, Arrow.RELEASE)
    elif command.ending is not SliceOutcome.ACK:
        work.move_all(held, Arrow.RENEW, command.lease_ms)
    else:
        complete_all(work, held)
        repeating = [job for job in held if job.flags & JobFlag.REPEATS]
        if repeating:
            await repeat(engine, work, repeating)


async def wait_for_disk(_engine: EngineContext, work: UnitOfWork, commands: Sequence[WaitForDisk]) -> None:
    """Answer commands that wait until everything is on disk."""
    for command in commands:
        work.answer(command, None)


async def check_payloads(_engine: EngineContext, work: UnitOfWork, commands: Sequence[CheckPayloads]) -> None:
    """Apply a batch of checks."""
    for command in commands:
        await work.tx.payload_load(command.jobs)
        work.answer(command, None)


async def record_epoch(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecordEpoch]) -> None:
    """Apply a batch of claimed epochs."""
    for command in commands:
        name = (command.namespace, command.group)
        group = await _group(work, *name, command.queues)
        known = bulk_records.decode_group(group.body)
        epochs = await work.tx.entry_load(EntryKind.EPOCH, *name, command.number)
        if epochs:
            work.answer(command, bulk_records.decode_epoch(epochs[0].body))
            continue
        if command.number <= known.acked:
            work.refuse(command, over(command.number, known.acked))
            continue
        known.queues = list(command.queues)
        entry = BulkRecord(EntryKind.EPOCH, *name, command.number, work.now_ms, bulk_records.encode(command.epoch))
        await work.tx.entry_save(
            [group._replace(at=work.now_ms, body=bulk_records.encode(known)), entry._replace(weight=command.epoch.rows)]
        )
        work.answer(command, command.epoch)


async def begin_settling(_engine: EngineContext, work: UnitOfWork, commands: Sequence[BeginSettling]) -> None:
    """Apply a batch of settlements that begin."""
    for command in commands:
        found: list[tuple[int, Epoch]] = []
        changed: list[BulkRecord] = []
        for entry in await work.tx.entry_load(EntryKind.EPOCH, command.namespace, command.group):
            if entry.number <= command.up_to:
                epoch = bulk_records.decode_epoch(entry.body)
                found.append((entry.number, epoch))
                if not epoch.acking:
                    marked = Epoch(epoch.slices, acking=True)
                    changed.append(entry._replace(body=bulk_records.encode(marked)))
        if changed:
            await work.tx.entry_save(changed)
        work.answer(command, found)


async def end_epochs(_engine: EngineContext, work: UnitOfWork, commands: Sequence[EndEpochs]) -> None:
    """Apply a batch of settled epochs."""
    for command in commands:
        name = (command.namespace, command.group)
        for number in command.numbers:
            await work.tx.entry_remove(await work.tx.entry_load(EntryKind.EPOCH, *name, number))
        for group in await work.tx.entry_load(EntryKind.GROUP, *name, 0):
            known = bulk_records.decode_group(group.body)
            known.acked = 0 if command.acked is None else max(known.acked, command.acked)
            await work.tx.entry_save([group._replace(at=work.now_ms, body=bulk_records.encode(known))])
        work.answer(command, None)


async def record_group_use(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecordGroupUse]) -> None:
    """Apply a batch of records that groups are in use."""
    for command in commands:
        name = (command.namespace, command.group)
        if command.queues is None:
            groups = await work.tx.entry_load(EntryKind.GROUP, *name, 0)
        else:
            group = await _group(work, *name, command.queues)
            known = bulk_records.decode_group(group.body)
            known.queues = list(command.queues)
            groups = [group._replace(body=bulk_records.encode(known))]
        await work.tx.entry_save([group._replace(at=work.now_ms) for group in groups])
        work.answer(command, None)


async def forget_groups(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ForgetGroups]) -> None:
    """Apply a batch of groups to be removed, and delete their epochs whose leases expired long ago."""
    for command in commands:
        for name in command.groups:
            groups = await work.tx.entry_load(EntryKind.GROUP, *name, 0)
            if groups and groups[0].at < command.before_ms:
                await work.tx.entry_remove([*groups, *await work.tx.entry_load(EntryKind.EPOCH, *name)])
        work.answer(command, None)


async def _group(work: UnitOfWork, namespace: str, group: str, queues: Sequence[str]) -> BulkRecord:
    for found in await work.tx.entry_load(EntryKind.GROUP, namespace, group, 0):
        return found
    return BulkRecord(EntryKind.GROUP, namespace, group, 0, work.now_ms, bulk_records.encode(ConsumerGroup(list(queues))))


def over(number: int, acked: int) -> EpochOver:
    """Return the error for an epoch that cannot be claimed any more: all epochs up to ``acked`` are acknowledged."""
    return EpochOver(
        f"The group has acknowledged everything up to epoch {acked}, so epoch {number} cannot be claimed any more. Continue "
        f"with epoch {acked + 1}, or release the group to start again."
    )
