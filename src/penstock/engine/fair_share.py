"""Shares the event loop among namespaces: decides when a request may begin.

The batcher shares transactions (``fair_queue.py``). This module shares what comes before and after them: parsing, rendering,
reads, events. Every listener calls it once for each request, before the body is read; event streams call it before they send.

While only one namespace sends requests, nothing waits and nothing is counted. When a second namespace is active, each one
may begin ``limits.share_turn_requests`` requests in one turn of the event loop, and may have ``limits.share_large_requests``
large ones in progress: listings, and bodies above ``limits.small_body_bytes``, which count when they have arrived. Further
requests wait in a line of their namespace. Large requests run in slices of ``limits.share_slice_ms``, and before each slice
they wait for the small requests of other namespaces in progress, for up to ``limits.share_wait_ms``. So a turn of the loop
is short. A request of a namespace with few requests begins in the turn in which it arrives, and is not stopped by a slice at
each of its steps. Small requests are not delayed while the loop has nothing else to do, because the next turn follows at
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core import limits, time_slices
from penstock.core.clock import call_after_work, work_s
from penstock.engine.background_turns import BackgroundTurns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.clock import Clock

    Place = asyncio.Future[None]
    Line = deque[tuple[Place, int]]  # a future, and the number of requests that wait for it


class FairShare:
    """One per server. ``clock`` decides how long a namespace counts as active after its last request."""

    def __init__(self, clock: Clock) -> None:
        self.shared = False  #: several namespaces are active
        self._clock = clock
        #: The active namespace, if there is only one: ``begin`` returns None for it. None: there was none yet, or several.
        self.only: str | None = None
        self._seen: set[str] = set()  #: namespaces with a request since the last check, while they share
        self._begun: dict[str, int] = {}  #: requests that began in this turn of the loop
        self._turn_is_due = False
        self._lines: dict[str, Line] = {}  #: requests that wait for a turn; no line is empty
        self._in_progress: dict[str, int] = {}  #: large requests
        self._holders: dict[asyncio.Task[Any] | None, str] = {}  #: the tasks of these, and their namespaces
        self._entered: dict[asyncio.Task[Any] | None, str] = {}  #: the tasks of small ones, and their namespaces
        #: The same by namespace, with the start: in both dicts, the newest is last. No inner dict is empty.
        self._small: dict[str, dict[asyncio.Task[Any] | None, float]] = {}
        self._give_way: list[Place] = []  #: large requests that wait for small ones
        self._large_lines: dict[str, Line] = {}  #: large requests that wait; no line is empty
        self._behind: set[str] = set()  #: namespaces whose requests wait until their events have been passed on
        self.background = BackgroundTurns(self)

    def begin(self, namespace: str, requests: int = 1) -> Place | None:
        """Return None if a request, or several that came together, may begin now, else a future to wait for.

        ``namespace``: empty for clients that have not authenticated. They wait in one line, and do not count as a namespace.
        """
        if namespace == self.only:
            return None
        if namespace:
            if not self.shared and not self._begin_sharing_with(namespace):
                return None
            self._note(namespace)
        if namespace in self._lines or namespace in self._behind:
            return _join(self._lines, namespace, requests)
        begun = self._begun
        if not begun:
            self._turn_soon()
        count = begun.get(namespace, 0)
        if count < _turn_requests(namespace):
            begun[namespace] = count + requests
            return None
        return _join(self._lines, namespace, requests)

    def enter(self, namespace: str) -> None:
        """Record that the current task has a small request in progress; ``leave`` follows. For use while ``shared``."""
        task = asyncio.current_task()
        self._entered[task] = namespace
        small = self._small.pop(namespace, None)
        if small is None:
            small = {}
        small[task] = work_s()
        self._small[namespace] = small

    def leave(self) -> None:
        """Record that the current task has no small request in progress."""
        task = asyncio.current_task()
        namespace = self._entered.pop(task, None)
        if namespace is None:
            return
        small = self._small[namespace]
        del small[task]
        if not small:
            del self._small[namespace]
        if self._give_way:
            waiting, self._give_way = self._give_way, []
            for place in waiting:
                _end(place)

    def fall_behind(self, namespace: str) -> None:
        """Begin no request of a namespace until ``catch_up``, because too many of its events wait for their readers."""
        if self.shared:
            self._behind.add(namespace)

    def catch_up(self, namespace: str) -> None:
        """Let the requests of a namespace begin again."""
        if namespace in self._behind:
            self._behind.discard(namespace)
            self._turn_soon()

    async def give_way(self, namespace: str | None = None) -> None:
        """Wait, in a large request, for small requests of other namespaces in progress: ``limits.share_wait_ms`` at most.

        ``namespace``: the namespace of the work, if it is not that of the request of this task.
        """
        if not self.shared:
            return
        if namespace is None:
            task = asyncio.current_task()
            namespace = self._holders.get(task) or self._entered.get(task)  # a request does not wait for itself
        if not self._is_waited_for(namespace):
            return
        until = work_s() + limits.share_wait_ms / 1_000
        while self._is_waited_for(namespace):
            place: Place = asyncio.get_running_loop().create_future()
            self._give_way.append(place)
            alarm = call_after_work(until - work_s(), partial(_end, place))
            try:
                await place
            finally:
                alarm.cancel()
            if work_s() >= until:
                return

    def _is_waited_for(self, namespace: str | None) -> bool:
        """Return whether another namespace has a small request in progress that began a moment ago."""
        since = work_s() - limits.share_small_ms / 1_000
        for other, small in islice(reversed(self._small.items()), limits.share_looks_max):
            if other != namespace and next(reversed(small.values())) >= since:
                return True
        return False

    @asynccontextmanager
    async def large(self, namespace: str) -> AsyncIterator[None]:
        """Run a large request; wait first while its namespace has the maximum number of them in progress.

        A task that has one in progress already, such as a large command that requests a listing, does not wait for itself.
        """
        if self.is_large:
            yield
            return
        await self.begin_large(namespace)
        try:
            yield
        finally:
            self.end_large(namespace)

    @property
    def is_large(self) -> bool:
        """Whether the current task has a large request in progress."""
        return asyncio.current_task() in self._holders

    async def begin_large(self, namespace: str) -> None:
        """Wait until a large request may continue.

        For code that cannot use ``large``: ``end_large`` follows in the same task.
        """
        if self.shared:
            self.leave()
        count = self._in_progress.get(namespace, 0)
        if self.shared and count >= limits.share_large_requests:
            place = _join(self._large_lines, namespace, 1)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():  # it got its turn, and does not need it any more
                    self.end_large(namespace)
                raise
        else:
            self._in_progress[namespace] = count + 1
        self._holders[asyncio.current_task()] = namespace

    def end_large(self, namespace: str) -> None:
        """Let the next large request of a namespace continue."""
        self._holders.pop(asyncio.current_task(), None)
        if not _release(self._large_lines, namespace, 1):
            count = self._in_progress[namespace] - 1
            if count:
                self._in_progress[namespace] = count
            else:
                del self._in_progress[namespace]

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return sum(len(line) for lines in (self._lines, self._large_lines) for line in lines.values())

    def _begin_sharing_with(self, namespace: str) -> bool:
        """Record a namespace that was not active; begin to share if it is not the only one."""
        if self.only is None:
            self.only = namespace
            return False
        self.shared = True
        self._seen = {self.only}
        self.only = None
        time_slices.share_loop(self.give_way)
        self._check_later()
        return True

    def _note(self, namespace: str) -> None:
        if len(self._seen) < limits.share_namespaces_max:
            self._seen.add(namespace)

    def _check_later(self) -> None:
        self._clock.call_at(self._clock.steady_ms() + limits.share_ms, self._check)

    def _check(self) -> None:
        """Stop sharing if at most one namespace was active since the last check."""
        if len(self._seen) > 1:
            self._seen = set()
            self._check_later()
            return
        self.shared = False
        time_slices.share_loop(None)
        self._entered.clear()
        self._small.clear()
        self._behind.clear()
        self.only = next(iter(self._seen), None)
        for namespace in list(self._lines):
            _release(self._lines, namespace, sum(requests for _, requests in self._lines[namespace]))
        for namespace in list(self._large_lines):
            count = _release(self._large_lines, namespace, len(self._large_lines[namespace]))
            self._in_progress[namespace] = self._in_progress.get(namespace, 0) + count

    def _turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Begin the next turn of the loop: each line gets its share of it."""
        self._turn_is_due = False
        self._begun = {
            namespace: count
            for namespace in list(self._lines)
            if namespace not in self._behind and (count := _release(self._lines, namespace, _turn_requests(namespace)))
        }
        if self._begun:
            self._turn_soon()


def _turn_requests(namespace: str) -> int:
    """Return how many requests of a namespace begin in one turn; empty: of all clients that have not authenticated."""
    return limits.share_turn_requests if namespace else limits.share_turn_strangers


def _end(place: Place) -> None:
    if not place.done():
        place.set_result(None)


def _join(lines: dict[str, Line], namespace: str, requests: int) -> Place:
    place: Place = asyncio.get_running_loop().create_future()
    line = lines.get(namespace)
    if line is None:
        line = lines[namespace] = deque()
    line.append((place, requests))
    return place


def _release(lines: dict[str, Line], namespace: str, most: int) -> int:
    """Let the first requests of a line continue; return how many. Requests that were cancelled meanwhile do not count."""
    line, count = lines.get(namespace, ()), 0
    while line and count < most:
        place, requests = line.popleft()
        if not place.done():
            place.set_result(None)
            count += requests
    if not line:
        lines.pop(namespace, None)
    return count
