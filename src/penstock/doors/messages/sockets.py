"""WebSocket push: messages come as they are ready, up to a window of messages that nobody has said anything about.

A message that is out is the client's for the visibility timeout of its queue, as if it had been consumed. When that is over, it
is the queue's again and makes room in the window; when the connection ends, all that is out goes back to the front at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs

import msgspec
import structlog

from penstock.access.expiry import Expiry
from penstock.access.gate import shown_in
from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import (
    JobNotFound,
    PenstockError,
    RouteNotFound,
    StaleLease,
    Unauthorized,
    WrongState,
)
from penstock.core.lifecycle import Arrow
from penstock.doors.closing import Closing
from penstock.doors.http.errors import status_of
from penstock.doors.messages import wire
from penstock.doors.messages.taker import Taker
from penstock.doors.messages.view import view_of
from penstock.doors.websocket import Connections, WebSocket
from penstock.engine.settle import Ack, Fail, Hold, PutBack

if TYPE_CHECKING:
    from granian._granian import RSGIWebsocketProtocol
    from granian.rsgi import Scope

    from penstock.access.gate import Gate
    from penstock.access.identity import Identity
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.clock import Alarm
    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.doors.links import Links
    from penstock.doors.messages.places import Places
    from penstock.doors.messages.requests import RouteCount
    from penstock.doors.messages.tally import MessageTally
    from penstock.engine.fleet import AnyEngine
    from penstock.engine.settle import Settlement

log = structlog.get_logger("penstock.push")

_encode = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(wire.Word).decode
SWITCHING: Final = 101  #: the status of a handshake that went well
_MESSAGE: Final = b'{"type":"message",'


#: What a handshake asks for, as routes are written.
PATH: Final = "/namespaces/{ns}/queues/{queue}/ws"


class Consumers:
    """Answers ``PATH``.

    ``window`` limits how often a client may speak (None: not at all); ``allow_origin`` is the web page that may connect from a
    browser (``*``: every one). ``handshakes`` counts them, and how they were answered.
    """

    def __init__(
        self,
        engine: AnyEngine,
        places: Places,
        tally: MessageTally,
        gate: Gate,
        *,
        links: Links,
        window: SlidingWindow | None,
        allow_origin: str,
        handshakes: RouteCount,
    ) -> None:
        self.engine = engine
        self.places = places
        self.tally = tally
        self._handshakes = handshakes
        self.gate = gate
        self.links = links
        self.window = window
        self._connections: Connections[Consumer] = Connections(limits.push_sockets_max, allow_origin)

    def __len__(self) -> int:
        return len(self._connections)

    async def serve(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> None:
        """Serve one connection, which comes from an address, until it ends. Raises what its handshake is refused with."""
        since = self._handshakes.begin()
        try:
            consumer = await self._admit(scope, proto, client)
        except PenstockError as error:
            self._handshakes.count(status_of(error), since)
            raise
        self._handshakes.count(SWITCHING, since)
        await self._connections.serve(consumer)

    async def _admit(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> Consumer:
        """Return who consumes over a connection. Raises what its handshake is refused with."""
        self._connections.check_origin(scope)
        namespace, name = _path_of(scope)
        identity = await self.gate.identify(shown_in(scope.headers))
        for right in (Right.TAKE, Right.SETTLE):
            identity.check(namespace, right)
        key = self.places.key(namespace, name)
        await self.places.use(key)
        self._connections.check_room()
        wanted = parse_qs(scope.query_string).get("window", [""])[-1]
        window = wire.number_in(wanted, limits.push_window, 1, limits.push_window_max)
        return Consumer(self, scope, proto, key, identity, client=client, window=window)

    def hush(self) -> None:
        """Take no more messages, because the server stops."""
        self._connections.shut()
        for consumer in self._connections:
            consumer.hush()

    async def close(self) -> None:
        """End all connections, and give back what they hold."""
        self.hush()
        await self._connections.close()


def _path_of(scope: Scope) -> tuple[str, str]:
    """Return the namespace and the queue that a path names. Raises RouteNotFound."""
    match scope.path.split("/"):
        case ["", "namespaces", namespace, "queues", queue, "ws"]:
            return namespace, queue
    raise RouteNotFound


class Held(NamedTuple):
    """A message that is out."""

    hold: Hold
    until: int  #: steady ms; then it is the queue's again


class Consumer(WebSocket):
    """One connection."""

    def __init__(
        self,
        door: Consumers,
        scope: Scope,
        proto: RSGIWebsocketProtocol,
        queue: QueueKey,
        identity: Identity,
        *,
        client: str,
        window: int,
    ) -> None:
        super().__init__(door.engine.clock, door.links, scope, proto)
        self._door = door
        self._engine = door.engine
        self._queue = queue
        self._identity = identity
        self._client = client
        self._window = window
        self._taker = Taker(door.engine, queue)
        self._held: dict[str, Held] = {}  #: by receipt handle
        self._settling: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._lapse: Alarm | None = None  #: rings when the visibility timeout of something that is out is over
        self._lapses_at = 0  #: steady ms
        self._silent = False  #: it has let a message go without a word, and has said nothing since
        self._expiry: Expiry | None = None
        self._feeding: asyncio.Task[None] | None = None

    def hush(self) -> None:
        """Take no more messages."""
        self._taker.stop()
        self._freed.set()

    def begin(self) -> None:
        """Begin to hand out messages, for as long as the client's token is good."""
        self._expiry = Expiry(self._identity, self.clock, self._expire)
        self._feeding = asyncio.ensure_future(self._feed())

    async def finish(self) -> None:
        """Give back what is out, once it is known what was still said about it."""
        for alarm in (self._lapse, self._expiry):
            if alarm is not None:
                alarm.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        if self._settling:
            await asyncio.wait(self._settling)
        await self._give_back()

    async def _give_back(self) -> None:
        """Give back what is out, to the front and in its order. If that fails, its leases run out."""
        holds = [held.hold for held in self._held.values()]
        self._held.clear()
        if holds:
            try:
                await self._engine.run(PutBack(self._queue.namespace, holds, Arrow.RETURN))
            except PenstockError as error:
                log.warning("messages could not be given back; their leases will run out", error=str(error))

    def _expire(self) -> None:
        """End the connection with the token that was shown."""
        self._tell("The token has expired")
        self.end(Closing.NOT_ALLOWED)

    # Out.

    async def _feed(self) -> None:
        """Take messages as there is room for them in the window, and as the client takes them."""
        while not self._taker.stopped:
            try:
                await self._take_some()
            except PenstockError as error:
                log.warning("messages to push cannot be had now, trying again", error=str(error))
                await pause(self.clock, limits.push_rest_ms)
            except Exception:
                log.exception("pushing over a WebSocket failed and is tried again")
                await pause(self.clock, limits.push_rest_ms)

    async def _take_some(self) -> None:
        self._freed.clear()
        free = self._window - len(self._held) - len(self._settling)
        if free <= 0 or self._silent:
            await self._freed.wait()
            return
        await self.outbox.room()
        lease_ms = self._door.places.rules_of(self._queue).visibility_timeout_ms
        for each in await self._taker.take(min(free, limits.push_claim_messages), lease_ms):
            self._hand_out(each, lease_ms)

    def _hand_out(self, delivery: Delivery, lease_ms: int) -> None:
        view = view_of(self._queue, delivery)
        until = self.clock.steady_ms() + lease_ms
        self._hold(view.receipt_handle, Held(Hold(delivery.job.id, delivery.job.token), until))
        self._door.tally.of(self._queue).consumed += 1
        self.outbox.put((_MESSAGE + _encode(view)[1:]).decode(), must=True)

    def _hold(self, handle: str, held: Held) -> None:
        self._held[handle] = held
        if self._lapse is None or held.until < self._lapses_at:
            self._expect_lapse(held.until)

    def _expect_lapse(self, at: int) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
        self._lapses_at = at
        self._lapse = self.clock.call_at(at, self._let_go)

    def _let_go(self) -> None:
        """Forget what is the queue's again."""
        now, out = self.clock.steady_ms(), len(self._held)
        self._held = {handle: held for handle, held in self._held.items() if held.until > now}
        self._silent = self._silent or len(self._held) < out
        self._lapse = None
        if self._held:
            self._expect_lapse(min(held.until for held in self._held.values()))
        self._freed.set()

    def complain(self, error: str) -> None:
        """Tell the client what is wrong."""
        self._tell(error)

    def _tell(self, error: str, handle: str = "") -> None:
        self.outbox.put(_encode(wire.ErrorFrame(error, handle)).decode(), must=True)

    # In.

    async def hear(self, data: bytes | str) -> None:
        """Take a word about a message that is out."""
        self._silent = False
        self._freed.set()
        word = _word_in(data)
        try:
            if self._door.window is not None:
                self._door.window.check(self._client)
            self._door.gate.check(self._identity, self._queue.namespace, Right.SETTLE)
        except Unauthorized as error:
            self._tell(str(error))
            self.end(Closing.NOT_ALLOWED)
            return
        except PenstockError as error:
            self._tell(str(error), "" if isinstance(word, str) else word.receipt_handle[:64])
            return
        if isinstance(word, str):
            self._tell(word)
            return
        held = self._held.pop(word.receipt_handle, None)
        if held is None:
            self._tell(*_unknown(word.receipt_handle))
            return
        task = asyncio.get_running_loop().create_task(self._settle(word, held))
        self._settling.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._freed.set()

    async def _settle(self, word: wire.Word, held: Held) -> None:
        namespace, done = self._queue.namespace, word.type == "ack"
        settlement: Settlement = Ack(namespace, [held.hold], [None]) if done else Fail(namespace, [held.hold], None)
        try:
            (outcome,) = await self._engine.run(settlement)
            if outcome is not None:
                raise outcome
        except (JobNotFound, StaleLease, WrongState):
            self._tell(*_unknown(word.receipt_handle))
        except PenstockError as error:  # it is still out
            if held.until > self.clock.steady_ms():
                self._hold(word.receipt_handle, held)
            self._tell(str(error), word.receipt_handle)
        else:
            count = self._door.tally.of(self._queue)
            if done:
                count.acked += 1
            else:
                count.nacked += 1


def _word_in(data: bytes | str) -> wire.Word | str:
    """Return what a client says, or what is wrong with it."""
    try:
        word = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"invalid json: {error}"
    return word if word.type in ("ack", "nack") else f'unknown type "{word.type[:64]}": expected ack or nack'


def _unknown(handle: str) -> tuple[str, str]:
    """Say that a receipt handle is none of this connection's, in the words of the other routes."""
    return f'ack: unknown or expired receipt handle "{handle[:64]}"', handle[:64]
