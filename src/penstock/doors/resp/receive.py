"""RECEIVE: one message of a topic, as a plain request with one reply, for libraries that use SUBSCRIBE for pub/sub.

The connection holds the message until ACK, NACK, BACK or DACK settles it. Each of these has one reply, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.access.expiry import Expiry
from penstock.access.identity import UNRESTRICTED
from penstock.core import limits
from penstock.core.errors import InvalidInput, ServerError
from penstock.doors.resp import arguments, replies
from penstock.doors.resp.replies import OK, bulk, error
from penstock.doors.topics.subscriber import MessageOutcome, NextFailed, Occupied

if TYPE_CHECKING:
    from penstock.access.identity import Identity
    from penstock.core.clock import Clock
    from penstock.core.queue import QueueKey
    from penstock.doors.resp.parser import Command
    from penstock.doors.topics.subscriber import Subscriber, Subscribers, TopicMessage

WORDS: Final = {word.value.encode(): word for word in MessageOutcome}
#: Names of the failed commands in errors: the original uses the same name for DACK and NACK.
NAMES: Final = {
    MessageOutcome.ACK: "ack",
    MessageOutcome.NACK: "nack",
    MessageOutcome.BACK: "back",
    MessageOutcome.DACK: "nack",
}
#: The default delay of DACK, in seconds. It is the fixed delay of the first version, which had no argument.
_DACK_S: Final = 1
_OPTIONS: Final = (b"WAIT",)
_FLAGS: Final = (b"ACK", b"WITHDACKS")


class Receive(NamedTuple):
    """The arguments of a RECEIVE."""

    wait_ms: int = 0
    acks: bool = False  #: acknowledge the held message first
    with_dacks: bool = False  #: the reply also has the number of DACKs of the message


def new_receive(command: Command) -> Receive:
    """Parse a RECEIVE. Raises InvalidInput."""
    given = arguments.options(command[2:], _OPTIONS, _FLAGS)
    wait_ms = arguments.whole(given.get(b"WAIT", b"0"), "WAIT", 0, limits.claim_wait_ms_max)
    return Receive(wait_ms, b"ACK" in given, b"WITHDACKS" in given)


def delay_ms_of(command: Command) -> int:
    """Return the delay of a DACK, in ms. Raises InvalidInput."""
    seconds = _DACK_S
    if len(command) > 1:
        try:
            seconds = arguments.whole(command[1], "DACK", -(10**15), limits.delay_ms_max // 1_000)
        except InvalidInput as problem:
            raise InvalidInput(f"invalid DACK duration argument at position [1]: {problem}") from None
    return max(0, seconds) * 1_000


class Received:
    """The message that a connection holds, if any. It returns to the front of its topic when the connection ends."""

    def __init__(self, subscribers: Subscribers, clock: Clock) -> None:
        self._subscribers = subscribers
        self._clock = clock
        self._subscriber: Subscriber | None = None  #: set while a message is held, or waited for
        self._expiry: Expiry | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return self._subscriber is not None and self._subscriber.hold is not None

    async def receive(self, asked: Receive, key: QueueKey, identity: Identity | None, protocol: int) -> bytes:
        """Return the reply to a RECEIVE: the next message of a topic, or nothing when the wait time is over."""
        try:
            message = await self._next(asked, key, identity)
        except NextFailed as problem:
            return error(f"failed to get next value: {problem.reason}")
        except ServerError as problem:
            return error(f"failed to ack: {problem}")
        if message is None:
            await self.release()
            return replies.value(None, protocol)
        spelled = bulk(message.data)
        return replies.array((spelled, b":%d\r\n" % message.dack_count)) if asked.with_dacks else spelled

    async def _next(self, asked: Receive, key: QueueKey, identity: Identity | None) -> TopicMessage | None:
        held = self._held()
        if held is not None and asked.acks and held.queue == key:
            return await held.settle_and_next(MessageOutcome.ACK, wait_ms=asked.wait_ms)
        if held is not None and asked.acks:
            await held.settle(MessageOutcome.ACK)
        elif held is not None:
            raise NextFailed(Occupied())
        await self.release()
        try:
            subscriber = self._subscriber = self._subscribers.subscribe(key)
        except ServerError as problem:
            raise NextFailed(problem) from None
        self._expiry = Expiry(identity or UNRESTRICTED, self._clock, self._expire)
        return await subscriber.next(asked.wait_ms)

    def _held(self) -> Subscriber | None:
        return self._subscriber if self else None

    async def settle(self, word: MessageOutcome, delay_ms: int) -> bytes:
        """Settle the held message, and return the reply. Raises InvalidInput if there is none."""
        held = self._held()
        if held is None:
            raise InvalidInput(
                f"{word.value} is about a message that is held, and none is: RECEIVE one first. "
                "Messages of an earlier connection were returned to their topic."
            )
        try:
            await held.settle(word, delay_ms)
        except ServerError as problem:
            return error(f"failed to {NAMES[word]}: {problem}")
        await self.release()
        return OK

    def mark_disconnected(self) -> None:
        """Stop waiting, because the client is disconnected."""
        if self._subscriber is not None and not self:
            self._subscriber.end()

    async def release(self) -> None:
        """Return the held message to the front of its topic, and stop waiting."""
        subscriber, self._subscriber = self._subscriber, None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if subscriber is not None:
            await subscriber.close()

    def _expire(self) -> None:
        """Release the held message, because the client's token has expired."""
        self._expiry = None
        leaving = asyncio.get_running_loop().create_task(self.release(), name="penstock-resp-expiry")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
