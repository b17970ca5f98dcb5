"""Consumer groups: jobs that are claimed in bulk, under numbers that the consumer chooses, so that a repeated claim is safe.

A group holds an ordinary lease of each job. Jobs are claimed in slices. The transaction that claims a slice also records its
jobs and their lease tokens, on their shard. When there are enough jobs, one write on the first shard records the slices as
the epoch. A repeated claim of the same epoch gets the recorded slices. If the server died in between, the next claim of the
epoch takes over the slices that exist.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from penstock.core import bulk_records, limits
from penstock.core.bulk_records import BulkRecord, ConsumerGroup, EntryKind, Epoch, SliceRef, slice_name
from penstock.core.errors import (
    EpochLeasesLost,
    EpochUnknown,
    ServerError,
    TooMany,
)
from penstock.core.lifecycle import State
from penstock.core.pool_shares import has_room, share_used
from penstock.core.queue import QueueKey
from penstock.engine.bulk.epoch_commands import (
    BeginSettling,
    CheckPayloads,
    EndEpochs,
    ForgetGroups,
    RecordEpoch,
    RecordGroupUse,
    SettleSlice,
    SliceNote,
    SliceOutcome,
    WaitForDisk,
    over,
)
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import abandon
from penstock.engine.jobs.settle import LEASE_GONE, Ack, LeaseRef, Release, Renew
from penstock.engine.maintenance.service import PeriodicService
from penstock.store.contract import Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.bulk.epoch_commands import EpochName
    from penstock.engine.context import ServerContext
    from penstock.engine.jobs.settle import LeaseCommand


log = structlog.get_logger("penstock.groups")


class GroupClaim(NamedTuple):
    """What a group claims: up to ``most`` jobs of some queues, waiting up to ``wait_ms`` for the first."""

    queues: Sequence[str]
    most: int
    lease_ms: int
    wait_ms: int = 0


class GroupStatus(NamedTuple):
    """The state of a group."""

    namespace: str
    group: str
    queues: list[str]
    epochs: list[int]
    in_flight: int
    lag: int
    last_seen: int  #: wall clock, ms


class Wanted(NamedTuple):
    """The rows of a slice that a caller reads."""

    ref: SliceRef
    offset: int  #: offset of the slice's first row in its epoch
    first: int
    end: int


_TurnKey = tuple[str, str, str]


class _Claimed:
    """Slices of an epoch that are not recorded as one yet."""

    def __init__(self, namespace: str, group: str, number: int) -> None:
        self.namespace = namespace
        self.group = group
        self.number = number
        self.slices: list[SliceRef] = []

    @property
    def name(self) -> EpochName:
        """Namespace, group and number of the epoch."""
        return self.namespace, self.group, self.number

    @property
    def rows(self) -> int:
        """Number of jobs."""
        return sum(each.rows for each in self.slices)


class ConsumerGroups(PeriodicService):
    """The consumer groups of a whole server: a service of the first shard, which removes unused groups.

    The claims of a group run one after the other, and so do its acknowledgements, so nothing is done twice at the same time.
    Claims and acknowledgements do not wait for each other, because a claim may wait for jobs.
    """

    every_ms = 10 * limits.MINUTE_MS

    def __init__(self, engine: ServerContext) -> None:
        super().__init__(engine.engines[0])
        self._all = engine
        self._home = engine.engines[0]
        self._turns: dict[_TurnKey, tuple[asyncio.Lock, int]] = {}
        self._seen: dict[tuple[str, str], int] = {}  #: steady ms when the use of a group was last stored
        self._renewed: dict[EpochName, int] = {}  #: steady ms before which the leases of an epoch do not expire

    # Requests.

    async def claim(self, namespace: str, group: str, number: int, wish: GroupClaim) -> Epoch:
        """Claim jobs as an epoch. The same epoch again gives the same jobs; an empty epoch is not recorded.

        Raises EpochOver, TooMany.
        """
        async with self._turn(namespace, group, "claim"):
            known = await self._epochs(namespace, group, bodies=False)
            if number in known:
                return await self._epoch(namespace, group, number)
            state = await self._group(namespace, group)
            if state is not None and number <= state.acked:
                raise over(number, state.acked)
            if len(known) >= limits.epochs_max:
                raise TooMany(f"The group has {len(known)} epochs that it did not acknowledge. Acknowledge or release some.")
            if state is None:
                await self._make_room(namespace)
            got = _Claimed(namespace, group, number)
            try:
                await self._claim(got, wish)
                if not got.slices:
                    await self._note(namespace, group, wish.queues)
                    return Epoch([])
                await self._rest(got.slices)
                noted = await self._home.run(RecordEpoch(namespace, group, number, wish.queues, Epoch(got.slices)))
            except ServerError:
                await self._release_slices(got, got.slices)
                raise
            except BaseException:
                # The caller has left. If there are several servers, another one may have taken the epoch over; else it is
                # released.
                if got.slices and not self._home.store.capabilities.is_shared:
                    await asyncio.shield(self._release_slices(got, got.slices))
                raise
            self._renewed[namespace, group, number] = self._home.clock.steady_ms() + wish.lease_ms
            # If another server was first, its record may have some of these slices, without jobs that were lost by then.
            kept = {each[:2] for each in noted.slices}
            await self._release_slices(got, [each for each in got.slices if each[:2] not in kept])
            return noted

    async def read(self, namespace: str, group: str, number: int, split: int, splits: int) -> list[Wanted]:
        """Return the rows of an epoch that belong to a split. Raises EpochUnknown."""
        epoch = await self._epoch(namespace, group, number)
        rows = epoch.rows
        first, end = rows * split // splits, rows * (split + 1) // splits
        found: list[Wanted] = []
        offset = 0
        for each in epoch.slices:
            low, high = max(first, offset), min(end, offset + each.rows)
            if low < high:
                found.append(Wanted(each, offset, low - offset, high - offset))
            offset += each.rows
        return found

    async def lost(self, namespace: str, group: str, number: int) -> EpochLeasesLost:
        """Count the jobs of an epoch that the group does not hold any more, and return that as an error."""
        lost = gone = 0
        for each in (await self._epoch(namespace, group, number)).slices:
            jobs, tokens = await self._leases(namespace, group, number, each)
            found = await self._fetch(jobs)
            lost += (
                each.rows
                - len(jobs)
                + sum(not _is_held(found.get(job_id), token) for job_id, token in zip(jobs, tokens, strict=True))
            )
            gone += len(jobs) - len(found)
        return EpochLeasesLost(number, lost, gone)

    async def examine(self, jobs: Sequence[int]) -> None:
        """Move damaged jobs, among jobs that could not be read, to quarantine."""
        for at in range(0, len(jobs), limits.epoch_slice_jobs):
            some = jobs[at : at + limits.epoch_slice_jobs]
            await asyncio.gather(*(engine.run(CheckPayloads(some)) for engine in self._all.engines))

    async def ack(self, namespace: str, group: str, up_to: int, *, only_whole: bool = False) -> tuple[int, int]:
        """Acknowledge all epochs up to a number.

        Return how many jobs were acknowledged, and how many the group did not hold. ``only_whole``: raises EpochLeasesLost,
        and changes nothing, if leases of these epochs have expired.
        """
        acked = lost = 0
        async with self._turn(namespace, group, "settle"):
            if only_whole:
                await self._check_whole(namespace, group, up_to)
            begun = await self._home.run(BeginSettling(namespace, group, up_to))
            for number, epoch in begun:
                for each in epoch.slices:
                    gone = await self._settle((namespace, group, number), each, SliceOutcome.ACK)
                    acked += each.rows - gone
                    lost += gone
            await self._end(namespace, group, begun, up_to)
        return acked, lost

    async def _check_whole(self, namespace: str, group: str, up_to: int) -> None:
        """Check that a group still holds all jobs of its epochs.

        Epochs whose leases are valid in this server's memory are left out.
        """
        for number in sorted(await self._open_epochs(namespace, group)):
            if number <= up_to and self._renewed.get((namespace, group, number), 0) <= self._home.clock.steady_ms():
                error = await self.lost(namespace, group, number)
                if error.lost:
                    raise error

    async def release(self, namespace: str, group: str) -> int:
        """Release all jobs that a group holds; return the number of jobs. Its epochs may start again."""
        released = 0
        async with self._turn(namespace, group, "settle"):
            begun = await self._home.run(BeginSettling(namespace, group, limits.epoch_max))
            for number, epoch in begun:
                released += await self._release_slices(_Claimed(namespace, group, number), epoch.slices)
            if not self._is_claiming(namespace, group):
                # Another server may be claiming for this group now.
                shared = self._home.store.capabilities.is_shared
                before_ms = self._home.clock.now_ms() - limits.slice_stray_ms if shared else None
                for stray in await self._strays(namespace, group, before_ms):
                    if stray.number not in dict(begun):
                        released += await self._release_slices(stray, stray.slices)
            await self._end(namespace, group, begun, None)
        return released

    async def heartbeat(self, namespace: str, group: str, lease_ms: int) -> tuple[list[int], int]:
        """Renew all leases of a group. Return its epochs, and how many of their jobs the group does not hold any more.

        Leases with more than half of ``lease_ms`` left, by this server's memory, are not written.
        """
        lost: dict[int, int] = {}
        for number, epoch in (await self._open_epochs(namespace, group)).items():
            lost[number] = 0
            steady_ms, name = self._home.clock.steady_ms(), (namespace, group, number)
            if self._renewed.get(name, 0) - steady_ms > lease_ms // 2:
                continue
            for each in epoch.slices:
                lost[number] += await self._settle(name, each, SliceOutcome.RENEW, lease_ms)
            if not lost[number]:
                self._remember(name, steady_ms + lease_ms)
        await self._home.run(RecordGroupUse(namespace, group))
        if any(lost.values()):  # jobs of epochs that were acknowledged or released meanwhile are not lost
            left = await self._open_epochs(namespace, group)
            lost = {number: count for number, count in lost.items() if number in left}
        return sorted(lost), sum(lost.values())

    async def statuses(self, namespace: str | None) -> list[GroupStatus]:
        """Return the state of all groups of a namespace (None: of all): what they hold, and how many jobs wait for them."""
        store = self._home.store
        epochs: dict[tuple[str, str], list[BulkRecord]] = {}
        for entry in await store.entry_list(Search(EntryKind.EPOCH, namespace, bodies=False)):
            epochs.setdefault((entry.namespace, entry.name), []).append(entry)
        found = []
        for entry in await store.entry_list(Search(EntryKind.GROUP, namespace)):
            queues = bulk_records.decode_group(entry.body).queues
            mine = epochs.get((entry.namespace, entry.name), [])
            keys = [QueueKey(entry.namespace, queue) for queue in queues]
            known = [queue for key in keys if (queue := self._all.store.queue_find(key)) is not None]
            lag = sum(self._all.store.counts(queue).waiting for queue in known)
            numbers = sorted(each.number for each in mine)
            in_flight = sum(each.weight for each in mine)
            found.append(GroupStatus(entry.namespace, entry.name, queues, numbers, in_flight, lag, entry.at))
        return sorted(found)

    # Implementation.

    def _turn(self, namespace: str, group: str, what: str) -> _Turn:
        return _Turn(self._turns, (namespace, group, what))

    async def _group(self, namespace: str, group: str) -> ConsumerGroup | None:
        found = await self._home.store.entry_list(Search(EntryKind.GROUP, namespace, group, limit=1))
        return bulk_records.decode_group(found[0].body) if found else None

    async def _make_room(self, namespace: str) -> None:
        """If the maximum number of groups exists, remove groups that hold nothing and were not used for a while.

        If the share of a namespace is used up, only groups of that namespace are removed. Each stream of Spark with a new
        checkpoint is a new group. Raises TooMany, or NamespaceLimit.
        """
        store, most = self._home.store, limits.groups_max
        taken = (await store.entry_totals(EntryKind.GROUP))[0]
        of_namespace = Search(EntryKind.GROUP, namespace, limit=most, bodies=False)
        held = len(await store.entry_list(of_namespace))
        if has_room(most, taken, held, self._home.pool_shares.percent):
            return
        before = self._home.clock.now_ms() - limits.group_idle_ms
        holding = {(each.namespace, each.name) for each in await store.entry_list(Search(EntryKind.EPOCH, bodies=False))}
        everywhere = Search(EntryKind.GROUP, before_ms=before, limit=most, bodies=False)
        found = await store.entry_list(everywhere if taken >= most else of_namespace._replace(before_ms=before))
        idle = [name for each in found if (name := (each.namespace, each.name)) not in holding]
        if not idle and taken < most:
            raise share_used("consumer groups", namespace, most=most, held=held)
        if not idle:
            raise TooMany(
                f"There are {limits.groups_max} consumer groups in use. Groups without claimed jobs are removed after an hour."
            )
        await self._home.run(ForgetGroups(idle, before))

    async def _epochs(self, namespace: str, group: str, *, bodies: bool) -> dict[int, BulkRecord]:
        found = await self._home.store.entry_list(Search(EntryKind.EPOCH, namespace, group, bodies=bodies))
        return {entry.number: entry for entry in found}

    async def _epoch(self, namespace: str, group: str, number: int) -> Epoch:
        found = (await self._epochs(namespace, group, bodies=True)).get(number)
        epoch = None if found is None else bulk_records.decode_epoch(found.body)
        if epoch is None or epoch.acking:
            raise EpochUnknown(f"The group has not claimed epoch {number}, or has acknowledged or released it.")
        return epoch

    async def _note(self, namespace: str, group: str, queues: Sequence[str]) -> None:
        """Record that a group is in use though there is no job for it, no more often than a client could notice."""
        steady_ms = self._home.clock.steady_ms()
        if steady_ms - self._seen.get((namespace, group), -limits.MINUTE_MS) >= 10 * limits.SECOND_MS:
            if len(self._seen) >= limits.groups_max:
                self._seen.clear()
            self._seen[namespace, group] = steady_ms
            await self._home.run(RecordGroupUse(namespace, group, queues))

    def _remember(self, name: EpochName, until_ms: int) -> None:
        if len(self._renewed) >= limits.groups_max * limits.epochs_max:
            self._renewed.clear()
        self._renewed[name] = until_ms

    async def _open_epochs(self, namespace: str, group: str) -> dict[int, Epoch]:
        entries = await self._home.store.entry_list(Search(EntryKind.EPOCH, namespace, group))
        epochs = {entry.number: bulk_records.decode_epoch(entry.body) for entry in entries}
        return {number: epoch for number, epoch in epochs.items() if not epoch.acking}

    async def _rest(self, slices: Sequence[SliceRef]) -> None:
        """Wait until everything written on other shards is on disk.

        The next write on the first shard waits for its own fsync.
        """
        shards = {each.shard for each in slices}
        engines = [engine for engine in self._all.engines if engine is not self._home and engine.store.shard in shards]
        await asyncio.gather(*(engine.run(WaitForDisk()) for engine in engines))

    async def _end(self, namespace: str, group: str, begun: Sequence[tuple[int, Epoch]], acked: int | None) -> None:
        await self._rest([each for _, epoch in begun for each in epoch.slices])
        numbers = [number for number, _ in begun]
        await self._home.run(EndEpochs(namespace, group, numbers, acked))
        for number in numbers:
            self._renewed.pop((namespace, group, number), None)

    async def _claim(self, got: _Claimed, wish: GroupClaim) -> None:
        """Claim jobs in slices, from all queues in turn. Slices of a server that ended unexpectedly come first."""
        keys = [QueueKey(got.namespace, queue) for queue in wish.queues]
        await self._adopt(got, wish)
        await self._claim_ready(got, keys, wish)
        if not got.slices and wish.wait_ms > 0:
            await self._claim_waiting(got, keys, wish)
            if got.slices:
                await self._claim_ready(got, keys, wish)

    async def _adopt(self, got: _Claimed, wish: GroupClaim) -> None:
        """Take over slices that were claimed for the epoch and were not recorded as one."""
        for engine in self._all.engines:
            search = Search(EntryKind.SLICE, got.namespace, slice_name(got.group, got.number), bodies=False)
            for entry in sorted(await engine.store.entry_list(search), key=lambda each: each.number):
                settled = await engine.run(SettleSlice(got.name, entry.number, SliceOutcome.ADOPT, wish.lease_ms))
                if settled is not None and settled.held:
                    got.slices.append(SliceRef(engine.store.shard, entry.number, settled.held))

    async def _claim_ready(self, got: _Claimed, keys: Sequence[QueueKey], wish: GroupClaim) -> None:
        keys = list(keys)
        while keys and got.rows < wish.most:
            for key in list(keys):
                want = min(limits.epoch_slice_jobs, wish.most - got.rows)
                if want <= 0:
                    return
                claim, note = _claim_of(got, key, want, wish.lease_ms)
                future = self._all.run(claim)
                try:
                    claimed = await asyncio.shield(future)
                except asyncio.CancelledError:
                    abandon(self._all.of(key), claim)
                    raise
                if claimed and note.ref is not None:
                    got.slices.append(note.ref)
                if not claimed or note.ref is None or note.ref.rows < want:  # no job is left
                    keys.remove(key)

    async def _claim_waiting(self, got: _Claimed, keys: Sequence[QueueKey], wish: GroupClaim) -> None:
        """Wait at all queues for the first job."""
        share = max(1, min(limits.epoch_slice_jobs, wish.most) // len(keys))
        claims = [_claim_of(got, key, share, wish.lease_ms, wish.wait_ms) for key in keys[: wish.most]]
        notes = {asyncio.ensure_future(self._all.run(claim)): note for claim, note in claims}
        try:
            waiting = set(notes)
            while waiting and not got.slices:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    ref = notes[future].ref
                    if future.result() and ref is not None:
                        got.slices.append(ref)
        finally:
            for (claim, _), future in zip(claims, notes, strict=True):
                if not future.done():
                    abandon(self._all.of(claim.queue), claim)

    async def _settle(self, name: EpochName, ref: SliceRef, ending: SliceOutcome, lease_ms: int = 0) -> int:
        """Settle a slice; return how many of its jobs the group did not hold any more.

        A slice that was settled before does not count again, because it is deleted.
        """
        several = len(self._all.engines) > 1
        if ref.shard >= len(self._all.engines):  # there are fewer shards now, and the record was removed with its shard
            return ref.rows
        engine = self._all.engines[ref.shard]
        settled = await engine.run(SettleSlice(name, ref.number, ending, lease_ms, keeps_others=several))
        if settled is None:
            return ref.rows if ending is SliceOutcome.RENEW else 0
        if not several or not settled.others:
            return len(settled.others)
        # Some jobs may have moved to another shard with their queue.
        gone = await self._settle_elsewhere(name[0], settled.others, ending, lease_ms)
        if ending is not SliceOutcome.RENEW:
            await engine.run(SettleSlice(name, ref.number, ending, lease_ms))
        return gone

    async def _settle_elsewhere(
        self, namespace: str, others: Sequence[tuple[int, int]], ending: SliceOutcome, lease_ms: int
    ) -> int:
        holds = [LeaseRef(job_id, token) for job_id, token in others]
        command: LeaseCommand
        if ending is SliceOutcome.ACK:
            command = Ack(namespace, holds, [None] * len(holds))
        elif ending is SliceOutcome.RELEASE:
            command = Release(namespace, holds)
        else:
            command = Renew(namespace, holds, [lease_ms] * len(holds))
        outcomes = await self._all.run(command)
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, LEASE_GONE):
                raise outcome
        return len(outcomes) - outcomes.count(None)

    async def _release_slices(self, got: _Claimed, slices: Sequence[SliceRef]) -> int:
        """Release slices; return how many jobs are ready again."""
        released = 0
        for each in slices:
            released += each.rows - await self._settle(got.name, each, SliceOutcome.RELEASE)
        return released

    async def _strays(self, namespace: str | None, group: str | None = None, before_ms: int | None = None) -> list[_Claimed]:
        """Return slices, by epoch, whether they are recorded as an epoch or not."""
        found: dict[EpochName, _Claimed] = {}
        for engine in self._all.engines:
            for entry in await engine.store.entry_list(
                Search(EntryKind.SLICE, namespace, before_ms=before_ms, limit=limits.slices_max, bodies=False)
            ):
                name, _, number = entry.name.rpartition(" ")
                if group is None or name == group:
                    key = (entry.namespace, name, int(number))
                    ref = SliceRef(engine.store.shard, entry.number, entry.weight)
                    found.setdefault(key, _Claimed(*key)).slices.append(ref)
        return list(found.values())

    async def _leases(
        self, namespace: str, group: str, number: int, ref: SliceRef
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        search = Search(EntryKind.SLICE, namespace, slice_name(group, number))
        for engine in self._all.engines[ref.shard : ref.shard + 1]:
            for entry in await engine.store.entry_list(search):
                if entry.number == ref.number:
                    return bulk_records.decode_slice(entry.body).leases()
        return (), ()

    async def _fetch(self, jobs: Sequence[int]) -> dict[int, JobRecord]:
        """Read jobs by id, on any shard."""
        found: dict[int, JobRecord] = {}
        for engine in self._all.engines:
            left = [job_id for job_id in jobs if job_id not in found]
            while left:
                some = await engine.store.job_fetch(left)
                found.update((each.job.id, each.job) for each in some)
                if sum(delivery.job.size for delivery in some) < limits.claim_batch_bytes_max:
                    break
                left = [job_id for job_id in left if job_id not in found]
        return found

    async def run_once(self) -> None:
        """Remove groups that were not used for a long time."""
        if not self._home.leads:
            return
        before = self._home.clock.now_ms() - limits.group_kept_ms
        old = await self._home.store.entry_list(Search(EntryKind.GROUP, before_ms=before, limit=limits.groups_max))
        if old:
            await self._home.run(ForgetGroups([(entry.namespace, entry.name) for entry in old], before))
        await self._release_strays()

    async def _release_strays(self) -> None:
        """Release what was claimed for epochs that no client requests any more."""
        strays = await self._strays(None, before_ms=self._home.clock.now_ms() - limits.slice_stray_ms)
        for stray in strays:
            if self._is_claiming(stray.namespace, stray.group):
                continue
            if stray.number not in await self._epochs(stray.namespace, stray.group, bodies=False):
                log.warning("jobs of an epoch that was not finished are given back", group=stray.group, epoch=stray.number)
                await self._release_slices(stray, stray.slices)

    def _is_claiming(self, namespace: str, group: str) -> bool:
        return (namespace, group, "claim") in self._turns


class _Turn:
    """A turn of a group: its claims run one after the other, and so do its settlements. Idle groups cost no memory."""

    def __init__(self, turns: dict[_TurnKey, tuple[asyncio.Lock, int]], key: _TurnKey) -> None:
        self._turns = turns
        self._key = key

    async def __aenter__(self) -> None:
        lock, users = self._turns.get(self._key) or (asyncio.Lock(), 0)
        self._turns[self._key] = lock, users + 1
        try:
            await lock.acquire()
        except BaseException:
            self._leave(lock)
            raise

    async def __aexit__(self, *_: object) -> None:
        lock, _users = self._turns[self._key]
        lock.release()
        self._leave(lock)

    def _leave(self, lock: asyncio.Lock) -> None:
        users = self._turns[self._key][1] - 1
        if users:
            self._turns[self._key] = lock, users
        else:
            del self._turns[self._key]


def _is_held(job: JobRecord | None, token: int) -> bool:
    """Return whether a job has the lease that the group got."""
    return job is not None and job.token == token and job.state == State.ACTIVE.value


def _claim_of(got: _Claimed, queue: QueueKey, count: int, lease_ms: int, wait_ms: int = 0) -> tuple[Claim, SliceNote]:
    note = SliceNote(*got.name)
    # The store learns later which jobs a ready list has handed out.
    claim = Claim(queue, count, wait_ms=wait_ms, lease_ms=lease_ms, note=note, skips_ready_list=True)
    return claim, note
