"""The messages that wait to be sent to one reader: bounded, sent in order by a task that exists only while there are any."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.core import limits
from penstock.core.clock import pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import Alarm, Clock

M = TypeVar("M", str, bytes)


class SendQueue(Generic[M]):
    """``send`` sends messages, oldest first. ``broken`` is called once when the reader has disconnected or no longer reads.

    A ``send`` that sends messages one by one reports progress with ``moved``, and may take them from their list. ``turn``
    returns what each ``send`` must wait for (None: nothing), see ``BackgroundTurns``. A ``send`` that waited gets ``most``
    messages. A message that must be sent does not wait for a turn, and nor do the messages before it.
    """

    def __init__(
        self,
        clock: Clock,
        send: Callable[[list[M]], Awaitable[None]],
        broken: Callable[[], None],
        turn: Callable[[], asyncio.Future[None] | None] = lambda: None,
        most: int = limits.reader_buffer_messages_max,
    ) -> None:
        self._clock = clock
        self._turn = turn
        self._most = most
        self._place: asyncio.Future[None] | None = None  #: the turn that is waited for
        self._hurries = False  #: waiting messages must be sent without a turn
        self._send: Callable[[list[M]], Awaitable[None]] = send
        self._broken = broken
        self._waiting: deque[M] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.broken_off = False  #: whether it was closed in the middle of sending a message
        self._moves = False  #: whether the reader took something since the last check
        self._since_ms: int | None = None  #: while sending: when it began, or when the reader last took something
        self._stuck: Alarm | None = None  #: checks whether the reader takes something; it is not cancelled for each ``send``
        self._sent = asyncio.Event()  #: set whenever something was sent

    def put(self, message: M, *, must: bool = False) -> bool:
        """Queue a message. Return False if there is no room for it. The caller bounds the messages that ``must`` be sent."""
        if self._closed:
            return False
        full = self._bytes + len(message) > limits.reader_buffer_bytes_max
        if not must and (full or len(self._waiting) >= limits.reader_buffer_messages_max):
            return False
        self._waiting.append(message)
        self._bytes += len(message)
        if must:
            self._hurry()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
        return True

    def _hurry(self) -> None:
        """Send the waiting messages without a turn."""
        self._hurries = True
        if self._place is not None and not self._place.done():
            self._place.set_result(None)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is being sent."""
        return self._task is None

    def moved(self) -> None:
        """Record that the reader has taken something: it is slow, but not stuck."""
        self._moves = True

    async def room(self) -> None:
        """Return when there is room: for callers that answer only clients that read their answers."""
        while self._bytes > limits.reader_buffer_bytes_max and not self._closed:
            self._sent.clear()
            await self._sent.wait()

    async def flush_within(self, ms: int) -> None:
        """Return when everything is sent, or the reader has disconnected, or that time has passed."""
        if self._task is not None:
            self._hurry()
            late = asyncio.ensure_future(pause(self._clock, ms))
            await asyncio.wait({self._task, late}, return_when=asyncio.FIRST_COMPLETED)
            late.cancel()

    def close(self) -> None:
        """Stop sending."""
        self._closed = True
        self._waiting.clear()
        self._sent.set()
        if self._stuck is not None:
            self._stuck.cancel()
        if self._task is not None:
            self.broken_off = self._since_ms is not None
            self._task.cancel()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch = await self._next()
                size = sum(map(len, batch))
                self._watch()
                await self._send(batch)
                self._since_ms = None
                self._bytes -= size
                self._sent.set()
        except RuntimeError:  # the HTTP server raises this when the connection is lost
            self._give_up()
        finally:
            self._task = None

    async def _next(self) -> list[M]:
        """Wait for a turn, and return the messages to send in it."""
        waiting = self._waiting
        if self._takes_turns() and (place := self._turn()) is not None:
            self._place = place
            await place
            self._place = None
            if self._takes_turns() and len(waiting) > self._most:
                return [waiting.popleft() for _ in range(self._most)]
        self._hurries = False
        batch = list(waiting)
        waiting.clear()
        return batch

    def _takes_turns(self) -> bool:
        return not self._hurries

    def _watch(self) -> None:
        self._moves = False
        self._since_ms = self._clock.steady_ms()
        if self._stuck is None:
            self._stuck = self._clock.call_at(self._since_ms + limits.reader_stuck_ms_max, self._check_stuck)

    def _check_stuck(self) -> None:
        self._stuck = None
        if self._since_ms is None:
            return
        if self._moves:
            self._watch()
        elif self._clock.steady_ms() - self._since_ms >= limits.reader_stuck_ms_max:
            self._give_up()
        else:
            self._stuck = self._clock.call_at(self._since_ms + limits.reader_stuck_ms_max, self._check_stuck)

    def _give_up(self) -> None:
        if not self._closed:
            self.close()
            self._broken()
