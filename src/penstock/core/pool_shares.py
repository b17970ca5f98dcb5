"""Shares of the pools of a server: they keep one namespace or address from using up a pool.

One rule applies to all pools: a holder may have at most ``percent`` of what it has and what is free together. With 50
percent that means "not more than are free": a single holder gets half of the pool, two get a third each, three a fourth
each. So a part of a pool is always free for a new holder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NamespaceLimit, TooMany

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.core.clock import Clock

#: Percent of a pool that a single holder gets.
HALF: Final = 50
ALL: Final = 100


def has_room(most: int, taken: int, held: int, percent: int = HALF) -> bool:
    """Return whether one more may be taken from a pool of ``most`` by a holder that has ``held`` of the ``taken``."""
    free = most - taken
    return free > 0 and held * (ALL - percent) < free * percent


class Shares:
    """The maximum share of one namespace in each pool.

    ``apply``: returns whether shares apply; if not, a namespace may have all of a pool. ``percent``: of a pool, for a single
    namespace (1 to 100; 100: no shares). ``queues_max``: queues of one namespace in one store.
    """

    def __init__(
        self, apply: Callable[[], bool] = lambda: False, *, percent: int = HALF, queues_max: int | None = None
    ) -> None:
        self._apply = apply
        self._percent = percent
        self._queues_max = queues_max

    @property
    def percent(self) -> int:
        """Return the percentage that applies now."""
        return self._percent if self._apply() else ALL

    def check(self, what: str, namespace: str, *, most: int, taken: int, held: int) -> None:
        """Raise NamespaceLimit if a namespace has its share of a pool. ``what``: the noun of the pool, in the plural.

        The caller checks that the pool as a whole has room, because it has the text of that error.
        """
        if taken < most and not has_room(most, taken, held, self.percent):
            raise share_used(what, namespace, most=most, held=held)

    def check_queues(self, namespace: str, held: int) -> None:
        """Raise NamespaceLimit if a namespace has its maximum number of queues."""
        if self._queues_max is not None and held >= self._queues_max and self._apply():
            raise NamespaceLimit(
                f"Namespace {namespace} has {held} queues, and may have {self._queues_max}. Obliterate some that are not used, "
                "or raise the setting namespace_queues_max."
            )


def share_used(what: str, namespace: str, *, most: int, held: int) -> NamespaceLimit:
    """Return the error text for a namespace that has its share of a pool."""
    return NamespaceLimit(
        f"Namespace {namespace} has {held} of the {most} {what} of this server, which is its share. Give up some that are not "
        "used, or raise the setting namespace_share."
    )


class Pool:
    """Counts the items that are open now: in total, and of each namespace. ``name``: the noun of the items, in the plural."""

    def __init__(self, name: str, most: int, shares: Shares | None = None) -> None:
        self.most = most
        self._name = name
        self._shares = Shares() if shares is None else shares
        self._held: dict[str, int] = {}
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    def check(self, namespace: str) -> None:
        """Raise TooMany if there is no room for one more, or NamespaceLimit if a namespace has its share."""
        if self._taken >= self.most:
            raise TooMany(f"Too many {self._name}")
        held = self._held.get(namespace, 0)
        self._shares.check(self._name, namespace, most=self.most, taken=self._taken, held=held)

    def enter(self, namespace: str) -> None:
        """Count one more. Raises as ``check`` does."""
        self.check(namespace)
        self._held[namespace] = self._held.get(namespace, 0) + 1
        self._taken += 1

    def leave(self, namespace: str) -> None:
        """Count one less, of a namespace for which one was counted."""
        held = self._held[namespace] - 1
        if held:
            self._held[namespace] = held
        else:
            del self._held[namespace]
        self._taken -= 1


class PoolPlace:
    """The place that one connection has in a pool, under one namespace at a time."""

    __slots__ = ("_namespace", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._namespace: str | None = None

    def take(self, namespace: str) -> None:
        """Count this connection for one namespace only. Raises TooMany; then nothing has changed."""
        if namespace == self._namespace:
            return
        before, self._namespace = self._namespace, None
        if before is not None:
            self._pool.leave(before)
        try:
            self._pool.enter(namespace)
        except TooMany:
            if before is not None:
                self._pool.enter(before)
                self._namespace = before
            raise
        self._namespace = namespace

    def give_up(self) -> None:
        """Stop counting this connection; allowed if it is not counted."""
        if self._namespace is not None:
            self._pool.leave(self._namespace)
            self._namespace = None


class Slots:
    """A limited number of slots, shared among holders by the rule above.

    Without a free slot a caller waits, in the line of its holder; the lines are served in rotation. ``alone``: returns the
    percentage for a holder while no other one has a slot or waits (100: it may have all slots); default: ``percent``, which
    is the maximum while another one does.
    """

    def __init__(self, most: int, percent: int = HALF, *, alone: Callable[[], int] | None = None) -> None:
        self._most = most
        self._percent = percent
        self._alone = alone
        self._taken = 0
        self._held: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  #: the next holder to get a slot comes first

    @property
    def waiting(self) -> int:
        """Return how many callers wait."""
        return sum(map(len, self._lines.values()))

    def waiting_of(self, holder: str) -> int:
        """Return how many callers of one holder wait."""
        return len(self._lines.get(holder, ()))

    async def acquire(self, holder: str, clock: Clock | None = None, wait_ms: int = 0) -> None:
        """Wait for a slot of a holder, and take it. The caller returns it with ``release``.

        With a ``clock`` the wait ends after ``wait_ms``: then TimeoutError is raised. Default: it has no end.
        """
        if holder not in self._lines and self._fits(holder):
            self._take(holder)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(holder, deque()).append(turn)
        alarm = None if clock is None else clock.call_at(clock.steady_ms() + wait_ms, partial(_give_up, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # it got the slot at the same time
                self.release(holder)
            else:
                self._step_out(holder, turn)
            raise
        except TimeoutError:
            self._step_out(holder, turn)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def release(self, holder: str) -> None:
        """Return a slot."""
        held = self._held[holder] - 1
        if held:
            self._held[holder] = held
        else:
            del self._held[holder]
        self._taken -= 1
        self._hand_out()

    @asynccontextmanager
    async def turn(self, holder: str, clock: Clock | None = None, wait_ms: int = 0) -> AsyncIterator[None]:
        """Wait for a slot as ``acquire`` does, and have it until the end of the block."""
        await self.acquire(holder, clock, wait_ms)
        try:
            yield
        finally:
            self.release(holder)

    def _fits(self, holder: str) -> bool:
        percent = self._percent if self._alone is None else self._alone()
        if self._has_others(holder):
            percent = min(percent, self._percent)
        return has_room(self._most, self._taken, self._held.get(holder, 0), percent)

    def _has_others(self, holder: str) -> bool:
        return len(self._held) > (holder in self._held) or len(self._lines) > (holder in self._lines)

    def _take(self, holder: str) -> None:
        self._held[holder] = self._held.get(holder, 0) + 1
        self._taken += 1

    def _step_out(self, holder: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(holder)
        if line is not None:
            with contextlib.suppress(ValueError):
                line.remove(turn)
            if not line:
                del self._lines[holder]
                self._hand_out()  # another holder may be alone now

    def _hand_out(self) -> None:
        """Give the free slots to waiting callers, one slot to each holder in turn."""
        given = True
        while given:
            given = False
            for holder in list(self._lines):
                if self._taken >= self._most:
                    return
                if self._fits(holder):
                    given = True
                    self._give_to_first(holder)

    def _give_to_first(self, holder: str) -> None:
        """Give a slot to the first caller in a line that still waits. The line is then behind the others."""
        line = self._lines.pop(holder)
        turn = line.popleft()
        while turn.done() and line:  # its caller was cancelled, and has not left the line yet
            turn = line.popleft()
        if not turn.done():
            self._take(holder)
            turn.set_result(None)
        if line:
            self._lines[holder] = line


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
