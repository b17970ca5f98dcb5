"""A subscribed connection: it gets a message, settles it, and gets the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.access.expiry import Expiry
from penstock.access.identity import UNRESTRICTED
from penstock.core import limits
from penstock.core.errors import InvalidInput, ProtocolError, ServerError
from penstock.doors.resp import connection_commands, replies
from penstock.doors.resp.receive import NAMES, WORDS, delay_ms_of
from penstock.doors.resp.replies import OK, bulk, error
from penstock.doors.topics.subscriber import MessageOutcome, NextFailed

if TYPE_CHECKING:
    from penstock.core.queue import QueueKey
    from penstock.doors.resp.parser import Command
    from penstock.doors.resp.session import RespSession
    from penstock.doors.topics.subscriber import Subscriber, TopicMessage

#: Commands that do not settle a message, and are answered during a wait.
_ASIDE: Final = frozenset((b"PING", b"QUIT", b"RESET"))


class SubscriptionEnd(Exception):
    """The end of a subscription. The connection is closed with the reply ``last``, unless it ``goes_on``."""

    def __init__(self, last: bytes = b"", *, goes_on: bool = False) -> None:
        super().__init__()
        self.last = last
        self.goes_on = goes_on


class RespSubscription:
    """The subscription of a client. Call ``run``, which returns the end as ``SubscriptionEnd``."""

    def __init__(self, session: RespSession, key: QueueKey) -> None:
        self._session = session
        self._link = session.link
        self._key = key
        self._settled = False  #: the client's last settlement is done
        self._expired = False  #: the client's token has expired

    async def run(self) -> SubscriptionEnd:
        """Deliver messages until the subscription ends. The held message then returns to the front."""
        try:
            subscriber = self._session.subscribers.subscribe(self._key)
        except ServerError as problem:
            return SubscriptionEnd(error(f"failed to get next value: {problem}"))
        expiry = Expiry(self._session.identity or UNRESTRICTED, self._session.engine.clock, self._expire)
        try:
            message = await self._first(subscriber)
            while True:
                self._link.write(bulk(message.data))
                await self._link.writable()
                word, delay_ms = await self._said()
                message = await self._settle(subscriber, word, delay_ms)
        except SubscriptionEnd as over:
            return over
        except NextFailed as problem:
            return SubscriptionEnd(error(f"failed to get next value: {problem.reason}"))
        except ProtocolError as problem:
            return SubscriptionEnd(replies.broken(problem))
        finally:
            expiry.cancel()
            await subscriber.close()

    def _expire(self) -> None:
        self._expired = True
        self._link.wake()

    async def _first(self, subscriber: Subscriber) -> TopicMessage:
        self._settled = True
        answer = asyncio.ensure_future(subscriber.next())
        await self._wait(subscriber, answer)
        return self._given(answer.result())

    async def _settle(self, subscriber: Subscriber, word: MessageOutcome, delay_ms: int) -> TopicMessage:
        """Settle the held message, confirm it, and wait for the next one."""
        if subscriber.hold is None:  # the server stops and has released the message: the settlement must not be confirmed
            raise SubscriptionEnd
        self._settled = False
        answer = asyncio.ensure_future(subscriber.settle_and_next(word, delay_ms, self._confirm))
        await self._wait(subscriber, answer)
        try:
            return self._given(answer.result())
        except NextFailed:
            raise
        except ServerError as problem:
            raise SubscriptionEnd(error(f"failed to {NAMES[word]}: {problem}")) from None

    def _confirm(self) -> None:
        self._settled = True
        self._link.write(OK)
        self._link.wake()

    def _given(self, message: TopicMessage | None) -> TopicMessage:
        if message is None or self._link.gone:  # the server stops, or the client is disconnected: the message is released
            raise SubscriptionEnd
        return message

    async def _wait(self, subscriber: Subscriber, answer: asyncio.Future[TopicMessage | None]) -> None:
        """Wait for a message. Meanwhile only PING, QUIT and RESET are answered; all other commands wait, too."""
        answer.add_done_callback(lambda _: self._link.wake())
        try:
            while not answer.done():
                if self._settled:  # before that, the last settlement is in progress, whether the client waits for it or not
                    self._listen()
                await self._link.stir()
        except BaseException:
            await subscriber.close()
            answer.cancel()  # a message that is claimed all the same is released
            await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()  # retrieve the error; no caller needs it
            raise

    def _listen(self) -> None:
        """Read commands while waiting for a message. Commands that settle the message wait for it."""
        self._check_token()
        while (command := self._link.peek()) is not None:
            if command[0].upper() not in _ASIDE:
                _read(command)  # an invalid command ends the subscription immediately
                if self._link.ahead > limits.resp_ahead_bytes:
                    raise SubscriptionEnd(error("too much was sent ahead"))
                break
            self._link.drop()
            self._answer(command)
        if self._link.gone:
            raise SubscriptionEnd

    async def _said(self) -> tuple[MessageOutcome, int]:
        """Return how the client settles its message, and the delay in ms."""
        while True:
            self._check_token()
            command = self._link.peek()
            if command is None:
                if self._link.gone:
                    raise SubscriptionEnd
                await self._link.stir()
                continue
            self._link.drop()
            self._session.log_command(command)
            if command[0].upper() in _ASIDE:
                self._answer(command)
            elif self._in_time():
                return _read(command)

    def _check_token(self) -> None:
        if self._expired:
            raise SubscriptionEnd(error("NOAUTH The token has expired. Get a new one, and connect again."))

    def _answer(self, command: Command) -> None:
        """Answer a command that does not settle a message."""
        name = command[0].upper()
        if name == b"QUIT":
            raise SubscriptionEnd(OK)
        if name == b"RESET":
            raise SubscriptionEnd(goes_on=True)
        if self._in_time():
            self._link.write(connection_commands.ping(self._session, command))

    def _in_time(self) -> bool:
        """Count a command. If the rate limit is exceeded, send the error and ignore the command."""
        try:
            self._session.check_pace()
        except ServerError as problem:
            self._link.write(replies.refusal(problem))
            return False
        return True


def _read(command: Command) -> tuple[MessageOutcome, int]:
    """Parse a command that settles a message. Raises SubscriptionEnd."""
    word = WORDS.get(command[0].upper())
    if len(command) > (2 if word is MessageOutcome.DACK else 1):
        raise SubscriptionEnd(error("invalid command"))
    if word is None:
        raise SubscriptionEnd(error("invalid ack command"))
    try:
        return word, delay_ms_of(command) if word is MessageOutcome.DACK else 0
    except InvalidInput as problem:
        raise SubscriptionEnd(error(str(problem))) from None
