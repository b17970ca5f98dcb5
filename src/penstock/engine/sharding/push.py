"""A push on several shards: what it checks on other shards before its own shard can decide.

It checks whether its names are free in the whole namespace, and the state of jobs on other shards that it needs. A push
without names and dependencies needs no check, and does not use this module.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import ids, limits
from penstock.core.clock import pause
from penstock.core.errors import (
    InvalidInput,
    NameContested,
    OutcomeUnknown,
    PartlyPushed,
    QueueMoving,
    ServerError,
    StorageFailed,
    StorageFull,
)
from penstock.core.ids import shard_of
from penstock.core.job import JobFlag
from penstock.core.lifecycle import Arrow, State
from penstock.core.reservations import Permit
from penstock.core.sharding import home_of
from penstock.engine.jobs.push import Push, PushAcross, PushAgain
from penstock.engine.jobs.uniqueness import MISSPELT
from penstock.engine.queues.admin import MoveBatch
from penstock.engine.sharding.name_registry import NameRequest, Reserve, Withdraw
from penstock.engine.sharding.remote_dependencies import WatchJobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.dependencies import RemoteJob
    from penstock.core.job import JobRecord, JobSpec
    from penstock.core.queue import QueueKey
    from penstock.core.reservations import Reservation
    from penstock.engine.context import EngineContext, ShardedContext
    from penstock.engine.sharding.name_registry import NameOwner

_Name = tuple[str, str]


class Item(NamedTuple):
    """One job of a push."""

    place: int
    queue: QueueKey
    new: JobSpec
    shard: int  #: shard of the queue

    @property
    def name(self) -> _Name | None:
        """Namespace and custom id. An id in the format of Penstock's ids is no name: it can only name a job that exists."""
        own = self.new.job_id
        return None if own is None or ids.from_uuid(own) is not None else (self.queue.namespace, own)


def is_plain(jobs: Sequence[JobSpec]) -> bool:
    """Return whether jobs can be pushed without any check on other shards."""
    for new in jobs:  # noqa: SIM110 - any() with a generator takes three times as long
        if new.job_id is not None or new.needs:
            return False
    return True


def why(error: ServerError) -> str:
    """Return why a part of a push failed. A shard's own text ("nothing was stored") would be wrong for the whole push."""
    if isinstance(error, StorageFailed):
        return "a shard was lost meanwhile."
    return "a shard is full." if isinstance(error, StorageFull) else str(error)


def check_shard(engine: EngineContext, shard: int) -> None:
    """Raise StorageFailed or StorageFull if a shard is known to accept no new jobs."""
    try:
        engine.store.check_writable(grows=True)
    except StorageFailed as error:
        raise StorageFailed(f"Shard {shard} is down. {error}") from error


class ShardedPush:
    """One push in progress. ``asked_ms``: for a push to several queues, see PushAcross.

    ``room``: for one queue, see Push.
    """

    def __init__(
        self,
        sharded: ShardedContext,
        parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]],
        asked_ms: int | None,
        room: int | None = None,
    ) -> None:
        self._sharded = sharded
        self._engines = sharded.engines
        self._asked_ms = asked_ms
        self._room = room
        self._shape = [len(jobs) for _, jobs in parts]
        pairs = [(queue, new) for queue, jobs in parts for new in jobs]
        self._items = [Item(place, queue, new, 0) for place, (queue, new) in enumerate(pairs)]
        self._durable = any(new.flags & JobFlag.DURABLE for _, new in pairs)
        self._answers: dict[
            int, JobRecord | None
        ] = {}  #: by place; None: it was pushed, and the caller does not need the job
        self._instead: dict[_Name, int] = {}  #: tickets that were withdrawn
        self._located: dict[int, int] = {}  #: shards of jobs whose ids do not have their present shard

    async def run(self) -> list[list[JobRecord]]:
        """Push everything; return the jobs of each part. Raises NameContested if other pushes keep taking the same names."""
        clock = self._sharded.clock
        tries, until = 0, clock.steady_ms() + limits.move_hold_ms
        while tries < limits.name_tries_max:
            try:
                await self._try()
            except NameContested:
                tries += 1
                await pause(clock, limits.name_look_ms)
                continue
            except QueueMoving as error:
                if clock.steady_ms() >= until:
                    raise await self._partly(error) from error
                await pause(clock, limits.move_look_ms)
                continue
            except ServerError as error:
                raise await self._partly(error) from error
            answers = iter([self._answers[item.place] for item in self._items])
            return [[job for job in islice(answers, size) if job is not None] for size in self._shape]
        raise await self._partly(NameContested())

    async def _partly(self, error: ServerError) -> ServerError:
        """After a failure, cancel what is stored on other shards, and return the error for the caller."""
        if self._asked_ms is not None and not isinstance(error, OutcomeUnknown):
            await self._take_back()
        if self._asked_ms is None or not self._answers:
            return error
        count, of = len(self._answers), len(self._items)
        if isinstance(error, OutcomeUnknown):
            text = (
                f"{count} of {of} jobs are stored, and of the others it is not known: a shard was lost while it stored them."
            )
        else:
            text = f"{count} of {of} jobs are stored, the others are not: {why(error)}"
        ids = (None if (job := self._answers.get(item.place)) is None else job.id for item in self._items)
        return PartlyPushed(
            f"{text} Send the others again: what has an idempotency key is not stored twice.",
            [list(islice(ids, size)) for size in self._shape],
        )

    async def _take_back(self) -> None:
        """Cancel what was stored, except jobs that a worker has by now, and jobs with a name, which may have existed before."""
        stored: dict[QueueKey, dict[int, int]] = {}
        for item in self._items:
            job = self._answers.get(item.place)
            if job is not None and item.new.job_id is None:
                stored.setdefault(item.queue, {})[job.id] = item.place
        for queue, places in stored.items():
            numbers = list(places)
            for start in range(0, len(numbers), limits.slice_jobs_max):
                some = numbers[start : start + limits.slice_jobs_max]
                with contextlib.suppress(ServerError):
                    for job in await self._sharded.run(MoveBatch(queue, Arrow.CANCEL, (State.WAITING, State.DELAYED), some)):
                        del self._answers[places[job.id]]

    async def _try(self) -> None:
        until_ms = self._sharded.clock.steady_ms() + limits.permit_ms
        store = self._sharded.store
        self._items = [item._replace(shard=store.place_of(item.queue)) for item in self._items]
        if store.has_moved:
            await self._answer_known()
        left = [item for item in self._items if item.place not in self._answers]
        places = await self._reserve(left)
        here: dict[int, list[Item]] = {}
        elsewhere: list[tuple[Item, int]] = []
        later: list[tuple[Item, int]] = []  # their names are given by this push, in another queue
        given: set[_Name] = set()
        for item in left:
            shard = self._place_of(item, places)
            if shard == item.shard:
                here.setdefault(shard, []).append(item)
                given |= {item.name} if item.name else set()
            else:
                (later if item.name in given else elsewhere).append((item, shard))
        self._check_shards(here, {shard for _, shard in (*elsewhere, *later)})
        await self._again(elsewhere)
        tickets = {shard: tuple(places[item.name].ticket for item in items if item.name) for shard, items in here.items()}
        remote = await self._ask(here, places)
        for shard, items in here.items():
            permit = Permit(self._sharded.clock, until_ms, tickets[shard], remote.get(shard, {}))
            try:
                await self._push(shard, items, permit)
            except NameContested as error:
                tickets_of = {item.name: places[item.name].ticket for item in items if item.name}
                self._instead.update((name, ticket) for name, ticket in tickets_of.items() if ticket in error.withdrawn)
                raise
        await self._again(later)

    def _check_shards(self, here: dict[int, list[Item]], others: set[int]) -> None:
        """Raise StorageFailed or StorageFull if one of several shards accepts no writes.

        Then nothing is stored on the others.
        """
        shards = others.union(here)
        if len(shards) < 2:
            return
        for shard in sorted(shards):
            engine = self._engines[shard]
            parts = [(item.queue, (item.new,)) for item in here.get(shard, ())]
            if engine.buffer is not None and shard not in others and engine.buffer.takes(parts):
                continue  # the buffer works without the database for a while
            check_shard(engine, shard)

    async def _answer_known(self) -> None:
        """Answer jobs whose names exist.

        After queues have moved, a reservation may name a shard that its job has left. So names are looked up on all shards.
        """
        names: dict[str, set[str]] = {}
        numbers: set[int] = set()
        for item in self._items:
            if item.place in self._answers or item.new.job_id is None:
                continue
            number = ids.from_uuid(item.new.job_id)
            if number is None:
                names.setdefault(item.queue.namespace, set()).add(item.new.job_id)
            else:
                numbers.add(number)
        if numbers:
            whose = {item.queue.namespace for item in self._items}
            self._located = await self._sharded.store.shards_of(sorted(numbers), lambda queue: queue.namespace in whose)
        else:
            self._located = {}
        taken: dict[_Name, int] = {}
        for namespace, wanted in names.items():
            found = await self._sharded.store.name_places(namespace, sorted(wanted))
            taken.update(((namespace, name), shard) for name, shard in found.items())
        items = [item for item in self._items if item.place not in self._answers]
        await self._again([(item, taken[item.name]) for item in items if item.name in taken])

    def _place_of(self, item: Item, places: dict[_Name, Reservation]) -> int:
        """Return the shard that has the name of a job, or that is to have it."""
        if item.name is not None:
            return places[item.name].shard
        number = None if item.new.job_id is None else ids.from_uuid(item.new.job_id)
        if number is None:
            return item.shard
        shard = self._located.get(number, shard_of(number))
        return shard if shard < len(self._engines) else item.shard

    # Names.

    async def _reserve(self, items: Sequence[Item]) -> dict[_Name, Reservation]:
        """Find the shard of each name: that of the first job with this name, or the one on which a job has it already.

        The requests to the homes are sent one after the other. A push that waits at one home has reserved
        nothing at a later home for which another push could wait.
        """
        homes: dict[int, dict[_Name, NameRequest]] = {}
        for item in items:
            if item.name is not None:
                home = homes.setdefault(home_of(*item.name, self._sharded.store.spread), {})
                home.setdefault(item.name, NameRequest(*item.name, item.shard, self._instead.get(item.name, 0)))
        places: dict[_Name, Reservation] = {}
        for number in sorted(homes):
            await self._reserve_at(number, homes[number], places)
        return places

    async def _reserve_at(self, home: int, wishes: dict[_Name, NameRequest], places: dict[_Name, Reservation]) -> None:
        clock = self._sharded.clock
        patient_until = clock.steady_ms() + limits.name_wait_ms
        while wishes:
            if clock.steady_ms() > patient_until + limits.name_wait_ms:  # the name changes its shard again and again
                raise NameContested
            strange: dict[int, list[NameOwner]] = {}
            for held in await self._ask_home(home, list(wishes.values())):
                if held.reservation.shard == wishes[held.reservation.key].shard:
                    places[held.reservation.key] = held.reservation
                    del wishes[held.reservation.key]
                else:
                    strange.setdefault(held.reservation.shard, []).append(held)
            young = False
            for shard, several in strange.items():
                idle = await self._without_job(shard, several)
                for held in several:
                    if held not in idle:
                        places[held.reservation.key] = held.reservation
                        del wishes[held.reservation.key]
                # A young reservation may be about to get a job.
                patient = clock.steady_ms() < patient_until
                free = [held.reservation for held in idle if not patient or held.age_ms >= limits.name_wait_ms]
                young = young or len(free) < len(idle)
                if free:
                    taken = await self._engines[shard].run(Withdraw(free))
                    await self._check_nowhere(free)
                    for reservation, has_job in zip(free, taken, strict=True):
                        if not has_job:
                            wishes[reservation.key] = wishes[reservation.key]._replace(instead=reservation.ticket)
            if young:
                await pause(clock, limits.name_look_ms)

    async def _check_nowhere(self, withdrawn: Sequence[Reservation]) -> None:
        """Check that no job has a withdrawn name.

        After queues have moved, a job may have been made under a ticket that is now withdrawn, and have moved since.
        """
        if self._sharded.store.has_moved:
            for namespace in {each.namespace for each in withdrawn}:
                names = [each.name for each in withdrawn if each.namespace == namespace]
                if await self._sharded.store.name_places(namespace, names):
                    raise NameContested

    async def _ask_home(self, home: int, wishes: Sequence[NameRequest]) -> list[NameOwner]:
        try:
            return await self._engines[home].run(Reserve(wishes, durable=self._durable))
        except StorageFailed as error:
            raise StorageFailed(f"Shard {home} has the reservation of this jobId and cannot be reached ({error})") from error

    async def _without_job(self, shard: int, several: Sequence[NameOwner]) -> list[NameOwner]:
        """Return the reservations whose names no job on their shard has."""
        store = self._engines[shard].store
        taken: set[_Name] = set()
        for namespace in {held.reservation.namespace for held in several}:
            names = [held.reservation.name for held in several if held.reservation.namespace == namespace]
            taken.update((namespace, name) for name in await store.name_find(namespace, names))
        return [held for held in several if held.reservation.key not in taken]

    # Dependencies.

    async def _ask(
        self, here: dict[int, list[Item]], places: dict[_Name, Reservation]
    ) -> dict[int, dict[int | str, RemoteJob]]:
        """Request the state of needed jobs from other shards, and reports of their ends."""
        found: dict[int, dict[int | str, RemoteJob]] = {}
        for shard, items in here.items():
            for namespace in {item.queue.namespace for item in items if item.new.needs}:
                refs = {ref for item in items if item.queue.namespace == namespace for ref in item.new.needs}
                found.setdefault(shard, {}).update(await self._ask_about(shard, namespace, refs, places))
        return found

    async def _ask_about(
        self, shard: int, namespace: str, refs: set[int | str], places: dict[_Name, Reservation]
    ) -> dict[int | str, RemoteJob]:
        numbers: dict[int | str, int] = {ref: ref for ref in refs if isinstance(ref, int)}
        names = [ref for ref in refs if isinstance(ref, str) and not self._is_on(shard, (namespace, ref), places)]
        if names:
            numbers.update(await self._sharded.store.name_find(namespace, names))
        remote: dict[int, list[int | str]] = {}
        shards = await self._sharded.store.shards_of(list(numbers.values()), lambda queue: queue.namespace == namespace)
        for ref, number in numbers.items():
            if shards[number] != shard and shards[number] < len(self._engines):
                remote.setdefault(shards[number], []).append(ref)
        answers = await asyncio.gather(
            *(
                self._await(other, WatchJobs(namespace, [numbers[ref] for ref in some], shard))
                for other, some in remote.items()
            )
        )
        return {
            ref: each
            for some, answer in zip(remote.values(), answers, strict=True)
            for ref, each in zip(some, answer, strict=True)
            if each is not None
        }

    async def _await(self, other: int, command: WatchJobs) -> list[RemoteJob | None]:
        try:
            return await self._engines[other].run(command)
        except StorageFailed as error:
            raise StorageFailed(f"Shard {other}, which has a needed job, cannot be reached ({error})") from error

    @staticmethod
    def _is_on(shard: int, name: _Name, places: dict[_Name, Reservation]) -> bool:
        """Return whether this push gives a name, on the shard itself."""
        return name in places and places[name].shard == shard

    # Pushing.

    async def _push(self, shard: int, items: Sequence[Item], permit: Permit) -> None:
        engine, allowed = self._engines[shard], permit if permit.tickets or permit.remote else None
        if self._asked_ms is None:
            jobs = await engine.run(Push(items[0].queue, [item.new for item in items], allowed, self._room))
            self._answers.update((item.place, job) for item, job in zip(items, jobs, strict=True))
            return
        parts: dict[QueueKey, list[Item]] = {}
        for item in items:
            parts.setdefault(item.queue, []).append(item)
        command = PushAcross([(key, [each.new for each in some]) for key, some in parts.items()], self._asked_ms, allowed)
        answers = await engine.run(command)
        for some, pushed in zip(parts.values(), answers, strict=True):
            self._answers.update((item.place, job) for item, job in zip(some, pushed, strict=True))

    async def _again(self, items: Sequence[tuple[Item, int]]) -> None:
        """Push jobs whose names jobs on other shards have: those jobs are the answers."""
        groups: dict[tuple[int, str], list[Item]] = {}
        for item, shard in items:
            groups.setdefault((shard, item.queue.namespace), []).append(item)
        made = {item.name: self._answers[item.place] for item in self._items if item.name and item.place in self._answers}
        for (shard, namespace), some in groups.items():
            jobs = await self._engines[shard].run(PushAgain(namespace, [item.new for item in some], self._asked_ms))
            for item, job in zip(some, jobs, strict=True):
                answer = made.get(item.name) if job is None and item.name else job
                if answer is not None:
                    self._answers[item.place] = answer
                elif item.name is None:
                    raise InvalidInput(MISSPELT)
                else:
                    raise NameContested  # it existed a moment ago
