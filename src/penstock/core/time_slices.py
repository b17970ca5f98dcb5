"""Long work on the event loop, done in slices: other requests are served between them.

Such work is a generator that yields wherever it may be interrupted, and returns its result. Threads would not help, because
the code that decodes and checks large requests holds the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from penstock.core import limits
from penstock.core.clock import work_s, yield_to_loop

T = TypeVar("T")
Steps = Generator[None, None, T]

#: After this time other requests are served, in seconds. One step may take longer, so this is well below
#: ``limits.loop_hold_ms``.
SLICE_S: Final = 0.008
#: Work that took less than this does not end its turn of the event loop, in seconds.
_SHORT_S: Final = 0.001


class _Turns:
    """State that the slices of one event loop share."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  #: one slice is done in each turn of a loop, for any number of large requests
        self.give_way: Callable[[], Awaitable[None]] | None = None  #: see ``share_loop``


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


class Pauses:
    """Pauses in long work that is no generator, such as a transaction: await ``pause`` between its steps."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = work_s() + SLICE_S

    @property
    def is_due(self) -> bool:
        """Whether the work has taken ``SLICE_S`` since the last pause."""
        return work_s() >= self._until

    async def pause(self) -> None:
        """Serve other requests, if a pause is due."""
        if self.is_due:
            await yield_to_loop(1)
            self._until = work_s() + SLICE_S


def _turns_of(loop: asyncio.AbstractEventLoop) -> _Turns:
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = _Turns()
    return turns


def share_loop(give_way: Callable[[], Awaitable[None]] | None) -> None:
    """Make slices last ``limits.share_slice_ms``, and await ``give_way`` between two of them. None: stop this."""
    _turns_of(asyncio.get_running_loop()).give_way = give_way


def at_once(steps: Steps[T]) -> T:
    """Do all of the work now, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_slices(steps: Steps[T]) -> T:
    """Do the work in slices of ``SLICE_S``, and return its result. Errors of the work are raised here.

    While namespaces share the loop, slices are shorter, and small requests of other namespaces come first: see
    ``share_loop``.
    """
    turns = _turns_of(asyncio.get_running_loop())
    try:
        while True:
            if turns.give_way is not None:
                await turns.give_way()
            async with turns.lock:
                began = work_s()
                until = began + (SLICE_S if turns.give_way is None else limits.share_slice_ms / 1_000)
                try:
                    while work_s() < until:
                        next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    if work_s() - began > _SHORT_S:
                        await yield_to_loop(1)  # ``lock`` is held: the next slice is done in the next turn of the loop
    finally:
        steps.close()
