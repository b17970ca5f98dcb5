"""Names that are unique in a namespace, over all shards: see ``core.reservations``.

A push with a name first reserves the name at the name's home, for the shard of its queue, in a transaction of its own. On
one shard names are unique anyway, so only the ticket of the reservation has to be valid: the push shows it, and is refused
if the ticket was withdrawn. If no job has the name (the job was removed, or a server died before it made the job), a push on
another shard may take the name: it withdraws the ticket on the shard that had it, and only then takes over the reservation.
This is safe without comparing clocks; time only decides how long to wait for a push that may be in progress.

Reservations and tickets of names without a job are removed from time to time, when no push can use them any more: a
push uses a reservation for at most a minute after it was given or renewed, and the removal waits for two minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import QueueMoving
from penstock.core.reservations import Reservation
from penstock.core.sharding import home_of
from penstock.engine.command import Command
from penstock.engine.maintenance.service import PeriodicService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class NameRequest(NamedTuple):
    """A name that a push uses on a shard."""

    namespace: str
    name: str
    shard: int
    instead: int = 0  #: ticket of the reservation to be taken over


class NameOwner(NamedTuple):
    """The reservation of a name, and its age in ms."""

    reservation: Reservation
    age_ms: int


class Reserve(Command[list[NameOwner]]):
    """Reserve those names at their home that are free. Answers the reservation of each name.

    ``durable``: a job that gets one of the names is ``durable``, so the reservation is as durable.
    """

    __slots__ = ("durable", "wishes")

    grows = True

    def __init__(self, wishes: Sequence[NameRequest], *, durable: bool = False) -> None:
        self.wishes = wishes
        self.durable = durable

    def tenant(self) -> str | None:
        """Return the namespace of its first name."""
        return self.wishes[0].namespace if self.wishes else None

    def weight(self) -> int:
        """Return the number of its names."""
        return len(self.wishes)


class Withdraw(Command[list[bool]]):
    """Withdraw the tickets of reservations on their shard. Answers which names have a job there after all.

    ``old``: they are older than any push that could still use them, so the withdrawal need not be stored.
    """

    __slots__ = ("old", "reservations")

    def __init__(self, reservations: Sequence[Reservation], *, old: bool = False) -> None:
        self.reservations = reservations
        self.old = old

    def tenant(self) -> str | None:
        """Return the namespace of its first name, if a push sends it."""
        return None if self.old or not self.reservations else self.reservations[0].namespace

    def weight(self) -> int:
        """Return the number of its names."""
        return len(self.reservations)


class ForgetNames(Command[None]):
    """Remove reservations, unless they were given again meanwhile, and the records of old withdrawn tickets."""

    __slots__ = ("reservations",)

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self.reservations = reservations

    def weight(self) -> int:
        """Return the number of its names, and one for the old tickets."""
        return 1 + len(self.reservations)


class ListNames(Command[list[Reservation]]):
    """Return a page of the reservations whose home is this shard, in the order of namespace and name.

    A rebalance does not move reservations: after it, names are looked up on all shards, and reservations that remain at an
    old home are removed like any reservation without a job.
    """

    __slots__ = ("after",)

    def __init__(self, after: tuple[str, str] = ("", "")) -> None:
        self.after = after


async def reserve(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Reserve]) -> None:
    """Apply a batch of reservations."""
    layout = work.tx.layout
    if layout is not None and layout.may_be_elsewhere:  # their home is another shard by now
        strange = [
            each for each in commands if any(home_of(*wish[:2], layout.shards) != layout.shard for wish in each.wishes)
        ]
        for command in strange:
            work.refuse(command, QueueMoving())
        commands = [each for each in commands if each not in strange]
    wanted = {(wish.namespace, wish.name): None for command in commands for wish in command.wishes}
    known = await work.tx.name_load(wanted)
    changed: dict[tuple[str, str], tuple[Reservation, int]] = {}
    for command in commands:
        held: list[NameOwner] = []
        for wish in command.wishes:
            key = wish.namespace, wish.name
            has = known.get(key)
            read_with = changed[key][1] if key in changed else 0 if has is None else has.ticket
            if has is None or has.ticket == wish.instead:
                has = known[key] = Reservation(*key, wish.shard, work.serial(), work.now_ms)
                changed[key] = has, read_with
            elif has.shard == wish.shard and work.now_ms - has.at > limits.ticket_renew_ms:
                has = known[key] = has._replace(at=work.now_ms)  # the same ticket, because other pushes may be using it
                changed[key] = has, read_with
            held.append(NameOwner(has, max(0, work.now_ms - has.at)))
        work.answer(command, held)
    if changed:
        await work.tx.name_save(list(changed.values()))


async def withdraw(engine: EngineContext, work: UnitOfWork, commands: Sequence[Withdraw]) -> None:
    """Apply a batch of withdrawals."""
    await work.tx.ticket_withdraw([each.ticket for command in commands if not command.old for each in command.reservations])
    for command in commands:
        taken: set[tuple[str, str]] = set()
        by_namespace: dict[str, list[str]] = {}
        for each in command.reservations:
            by_namespace.setdefault(each.namespace, []).append(each.name)
        for namespace, names in by_namespace.items():
            number = work.tx.namespace_number(namespace)
            if number is None:  # another server may have created it since this transaction began
                found = set(await engine.store.name_find(namespace, names))
            else:
                found = {name for _, name in await work.tx.job_find_custom([(number, name) for name in names])}
            taken.update((namespace, name) for name in found)
        work.answer(command, [each.key in taken for each in command.reservations])


async def forget_names(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ForgetNames]) -> None:
    """Apply a batch of removals."""
    for command in commands:
        if command.reservations:
            await work.tx.name_remove(command.reservations)
        work.answer(command, None)
    await work.tx.ticket_trim(work.now_ms - limits.tickets_kept_ms, limits.sweep_jobs_max)


async def list_names(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ListNames]) -> None:
    """Apply a batch of listings of reservations."""
    for command in commands:
        work.answer(command, await work.tx.name_page(command.after, limits.slice_jobs_max))


class NameRegistry(PeriodicService):
    """Removes reservations of names whose jobs do not exist any more, and withdrawn tickets that no push can send any more."""

    every_ms = 5 * limits.MINUTE_MS

    def __init__(self, engine: EngineContext, engines: Sequence[EngineContext]) -> None:
        super().__init__(engine)
        self._engines = engines

    async def run_once(self) -> None:
        """Check the names whose home is this shard, page by page."""
        home = self._engine
        if not home.leads:
            return
        after = ("", "")
        await home.run(ForgetNames([]))
        while self.goes_on():
            page = await home.run(ListNames(after))
            if not page:
                break
            after = page[-1].key
            before = home.clock.now_ms() - limits.ticket_ms
            by_shard: dict[int, list[Reservation]] = {}
            for each in page:
                if each.at < before and each.shard < len(self._engines):
                    by_shard.setdefault(each.shard, []).append(each)
            for shard, old in by_shard.items():
                await self._forget(self._engines[shard], old)

    async def _forget(self, engine: EngineContext, old: Sequence[Reservation]) -> None:
        """Remove those reservations whose name no job on their shard has."""
        if engine.store.status().error is not None:
            return
        taken: set[tuple[str, str]] = set()
        for namespace in {each.namespace for each in old}:
            names = [each.name for each in old if each.namespace == namespace]
            taken.update((namespace, name) for name in await engine.store.name_find(namespace, names))
        free = [each for each in old if each.key not in taken]
        if free:  # most names have a job, so only the others need the exclusive check
            after_all = await engine.run(Withdraw(free, old=True))
            orphans = [each for each, has_job in zip(free, after_all, strict=True) if not has_job]
            if orphans:
                await self._engine.run(ForgetNames(orphans))
