"""When work for which no request waits, such as sending events, may be done while several namespaces share the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from penstock.core import limits
from penstock.core.clock import yield_to_loop

Place = asyncio.Future[None]


class SharedLoop(Protocol):
    """Decides whether several namespaces share the event loop: ``FairShare``."""

    @property
    def shared(self) -> bool:
        """Whether several namespaces are active."""

    async def give_way(self, namespace: str) -> None:
        """Wait for the small requests of other namespaces in progress."""


class BackgroundTurns:
    """The lines of such work, one for each namespace.

    They are served in rotation by a task that exists only while work waits. Before each turn the task waits for the small
    requests of other namespaces in progress (``FairShare.give_way``). In one turn, ``limits.share_background_places`` of a
    line continue.
    """

    def __init__(self, fair_share: SharedLoop) -> None:
        self._fair_share = fair_share
        self._lines: dict[str, deque[Place]] = {}  #: no line is empty
        self._task: asyncio.Task[None] | None = None

    def begin(self, namespace: str) -> Place | None:
        """Return None if work of a namespace may begin now, else a future to wait for."""
        if not self._fair_share.shared:
            return None
        place: Place = asyncio.get_running_loop().create_future()
        line = self._lines.get(namespace)
        if line is None:
            line = self._lines[namespace] = deque()
        line.append(place)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return place

    async def _run(self) -> None:
        try:
            while self._lines:
                for namespace in list(self._lines):
                    await self._fair_share.give_way(namespace)
                    self._begin_some(namespace)
                    await yield_to_loop(1)
        finally:
            self._task = None

    def _begin_some(self, namespace: str) -> None:
        line, count = self._lines[namespace], 0
        while line and count < limits.share_background_places:
            place = line.popleft()
            if not place.done():
                place.set_result(None)
                count += 1
        if not line:
            del self._lines[namespace]
