"""A subscription over HTTP: commands arrive in the body of the request, messages are sent in the body of the answer."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.access.expiry import Expiry
from penstock.core import limits
from penstock.core.errors import InvalidInput, ServerError
from penstock.doors.topics.decoder import CommandDecoder
from penstock.doors.topics.read_ahead import ReadAhead
from penstock.doors.topics.subscriber import MessageOutcome, NextFailed, NothingHeld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.core.clock import Clock
    from penstock.doors.http.request import Request
    from penstock.doors.http.route import StreamTransport
    from penstock.doors.topics.backpressure import Flow
    from penstock.doors.topics.subscriber import Subscriber, TopicMessage

_SECONDS: Final = re.compile(r"[+-]?[0-9]{1,18}\Z")
_WORDS: Final = {word.value: word for word in MessageOutcome}


class StreamLine(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A line of JSON for the subscriber. A message without content is ``{}``."""

    msg: bytes = b""  #: in base64
    dack_count: int = 0
    error: str = ""


_encode: Final = msgspec.json.Encoder().encode


class Unsettled(ServerError):
    """The held message could not be settled. The stream ends, and the message is released."""


class SubscriptionStream:
    """The stream of one subscriber. When it ends, the held message returns to the front of its topic.

    ``check_pace`` is called before every command, and raises RateLimited.
    """

    def __init__(
        self, req: Request, subscriber: Subscriber, flow: Flow, clock: Clock, check_pace: Callable[[], None] | None
    ) -> None:
        self._req = req
        self._subscriber = subscriber
        self._flow = flow
        self._clock = clock
        self._check_pace = check_pace
        self._decoder = CommandDecoder()
        self._transport: StreamTransport | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, transport: StreamTransport) -> None:
        """Execute commands until the client ends the stream, disconnects or sends an invalid one, or the server stops."""
        self._transport = transport
        gone = asyncio.ensure_future(self._req.disconnected())
        gone.add_done_callback(lambda _: self.end())
        expiry = Expiry(self._req.identity, self._clock, self.end)
        obeying = asyncio.ensure_future(self._obey_all())
        try:
            await asyncio.wait({obeying, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._transport = None  # the stream ends when there is no reference to it
            for each in (obeying, gone):
                each.cancel()
            expiry.cancel()
            (outcome,) = await asyncio.gather(obeying, return_exceptions=True)
            await self._subscriber.close()
        if isinstance(outcome, Exception) and not isinstance(outcome, RuntimeError):  # RuntimeError: the client is gone
            raise outcome

    def end(self) -> None:
        """End the stream soon. It is safe to call this twice."""
        self._subscriber.end()
        if not self._over.done():
            self._over.set_result(None)

    async def _obey_all(self) -> None:
        commands = self._decoder.commands
        async for chunk in self._chunks():
            self._decoder.feed(chunk)
            while commands:
                if not await self._obey(commands.popleft()):
                    return
            if self._decoder.broken:
                await self._send(StreamLine(error="error decoding command"))
                return

    async def _chunks(self) -> AsyncIterator[bytes]:
        """Read the commands of the client.

        Over HTTP/1.1 a disconnect is noticed only during a read, so there is always a read in progress.
        """
        if self._req.scope.http_version.startswith("1"):
            ahead = ReadAhead(self._req.chunks(), self.end)
            try:
                while (chunk := await ahead.next()) is not None:
                    yield chunk
            finally:
                ahead.close()
        else:
            async for chunk in self._req.chunks():
                yield chunk

    async def _obey(self, command: str) -> bool:
        """Execute one command. Return whether the stream continues."""
        try:
            if self._check_pace is not None:
                self._check_pace()
            if self._flow.is_due() and not await self._flow.room():
                return False
            message = await self._next_after(command)
        except Unsettled as error:
            await self._send(StreamLine(error=str(error)))
            return False
        except ServerError as error:
            await self._send(StreamLine(error=str(error)))
            return True
        if message is None:
            return False
        await self._send(StreamLine(*message))
        return True

    async def _next_after(self, command: str) -> TopicMessage | None:
        """Execute one command, and return the next message; None if there will be none."""
        name, *arguments = command.split(" ")
        word = _WORDS.get(name)
        if word is None:
            if name != "INIT":
                raise InvalidInput("unrecognised command received")
            return await self._subscriber.next()
        delay_ms = _delay_ms(arguments) if word is MessageOutcome.DACK else 0
        try:
            return await self._subscriber.settle_and_next(word, delay_ms)
        except (NextFailed, Unsettled):
            raise
        except NothingHeld:
            raise Unsettled(f"error {word.value}ing message") from None
        except ServerError as error:
            raise Unsettled(f"error {word.value}ing message: {error}") from None

    async def _send(self, line: StreamLine) -> None:
        data = _encode(line) + b"\n"
        if not await self._flow.reserve(len(data)):
            self.end()
        elif self._transport is not None:
            await self._transport.send_bytes(data)


def _delay_ms(arguments: list[str]) -> int:
    """Parse the delay in seconds. Negative values count as 0."""
    if not arguments:
        raise Unsettled("too few arguments provided to DACK")
    if _SECONDS.match(arguments[0]) is None or int(arguments[0]) * 1_000 > limits.delay_ms_max:
        raise Unsettled("invalid DACK duration argument at position [1]")
    return max(0, int(arguments[0]) * 1_000)
