"""The engine: one store, one batcher, and those who wait. Doors talk to this and to nothing below it."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.core.durability import Durability
from penstock.core.errors import PenstockError
from penstock.core.ids import IdSource
from penstock.engine import verbs
from penstock.engine.batcher import Batcher
from penstock.engine.claim import WaitingRoom
from penstock.engine.completions import Completions
from penstock.engine.feed import Feed
from penstock.engine.keeper import Archivist, Healer, Keeper, Retention, Undertaker
from penstock.engine.produce import Push
from penstock.engine.stats import Stats
from penstock.engine.sweep import Timer
from penstock.engine.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import Clock
    from penstock.engine.command import AnyCommand, Command
    from penstock.engine.work import Work
    from penstock.store.contract import Store

T = TypeVar("T")


class Engine:
    """Create it inside the event loop, ``start`` it, and ``await engine.run(command)``.

    ``durability``: what an answer means, see Durability. ``sync_interval_ms``: with ``interval``, how much a power cut may
    take at most. ``retention``: what is kept of the past.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        durability: Durability = Durability.ALWAYS,
        sync_interval_ms: int = 100,
        retention: Retention | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.began_at = clock.steady_ms()  #: what fell due before this was nobody's to do
        self.ids = IdSource(floor=store.id_floor)
        self.stats = Stats()
        self.throttle = Throttle()
        self.room = WaitingRoom(self)
        self.completions = Completions(self)
        self.timer = Timer(self)
        self.feed = Feed()
        self.when_webhooks_change: list[Callable[[], None]] = []  #: called after the commit of a registration
        self.retention = retention or Retention()
        self._batcher = Batcher(
            store,
            clock,
            self.ids,
            partial(verbs.apply, self),
            self.stats,
            durability=durability,
            sync_interval_ms=sync_interval_ms,
        )
        self._batcher.after_commit += [self._count, self.feed.committed]
        self._batcher.when_answered.append(self.completions.answered)
        self._keepers: list[Keeper] = [Healer(self), Archivist(self), Undertaker(self)]

    def start(self) -> None:
        """Begin to watch the time and to keep house."""
        self.timer.start()
        for keeper in self._keepers:
            keeper.start()

    async def close(self) -> None:
        """Send home who waits, finish what was submitted, stop. The store stays open."""
        self.stop_waiting()
        await self.rest()
        await self._batcher.close()

    async def rest(self) -> None:
        """Stop watching the time and keeping house, until the next ``start``."""
        for keeper in self._keepers:
            await keeper.stop()
        self.timer.stop()

    def stop_waiting(self) -> None:
        """Answer everybody who waits for something, because the server is closing."""
        self.room.send_everybody_home()
        self.completions.send_everybody_home()

    def run(self, command: Command[T]) -> asyncio.Future[T]:
        """Run a command; awaiting it gives the answer, or raises why there is none."""
        return self._batcher.submit(command)

    def meter(self, admit: Callable[[Push], Awaitable[None] | None]) -> None:
        """Ask ``admit`` before every push from now on. It raises why not, now (None) or when it is awaited.

        Without this call nobody is asked, and a push costs nothing for it: that is why the method is replaced.
        """
        plain = self.run

        async def when_admitted(answer: Awaitable[None], push: Push) -> Any:
            await answer
            return await plain(push)

        def metered(command: Command[Any]) -> asyncio.Future[Any]:
            answer = admit(command) if type(command) is Push else None
            return plain(command) if answer is None else asyncio.ensure_future(when_admitted(answer, cast("Push", command)))

        self.run = metered  # type: ignore[method-assign]

    def run_unheard(self, command: AnyCommand) -> None:
        """Run a command whose outcome nobody waits for."""
        with contextlib.suppress(PenstockError):
            self._batcher.submit(command).add_done_callback(_ignore)

    def _count(self, work: Work) -> None:
        stats = self.stats
        stats.pushed += work.pushed
        stats.pulled += work.pulled
        stats.completed += work.completed
        stats.failed += work.failed
        for number in work.tx.freed:
            self.room.nudge_at(self.store.queue_by_number(number).key, work.steady_ms)
        self.timer.arm()


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
