"""WebSocket push: sends ready messages, up to a window of unsettled messages.

A delivered message is leased to the client for the visibility timeout of its queue, as if it had been consumed. When that
time is over, the message is ready in its queue again, and its place in the window is free. When the connection ends, all
unsettled messages go back to the front of the queue immediately. An ack frees a place whether it comes over this connection,
over HTTP, or at another server (``deliveries.py``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs

import msgspec
import structlog

from penstock.access.authenticator import shown_in
from penstock.access.expiry import Expiry
from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import InvalidInput, ReceiptUnknown, RouteNotFound, ServerError, Unauthorized
from penstock.core.lifecycle import Arrow
from penstock.core.pool_shares import Pool
from penstock.doors.http.errors import status_of
from penstock.doors.messages import wire
from penstock.doors.messages.consumer_claim import ConsumerClaim
from penstock.doors.messages.deliveries import Deliveries
from penstock.doors.messages.rendering import ReceiptHandle, view_of
from penstock.doors.messages.settling import DeliverySettler
from penstock.doors.websocket import Closing, OpenSockets, WebSocket
from penstock.engine.jobs.settle import LeaseRef, Requeue, slices_of

if TYPE_CHECKING:
    from granian._granian import RSGIWebsocketProtocol
    from granian.rsgi import Scope

    from penstock.access.authenticator import Authenticator
    from penstock.access.identity import Identity
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.clock import Alarm
    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.doors.messages.metrics import MessageCounters
    from penstock.doors.messages.queue_registry import QueueRegistry
    from penstock.doors.messages.request_metrics import RouteCount
    from penstock.doors.net.raw_sockets import RawSockets
    from penstock.engine.api import EngineApi

log = structlog.get_logger("penstock.push")

_encode = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(wire.SettleFrame).decode
SWITCHING: Final = 101  #: the status of a successful handshake
_MESSAGE: Final = b'{"type":"message",'


#: The path of a handshake, in the notation of routes.
PATH: Final = "/namespaces/{ns}/queues/{queue}/ws"


class Consumers:
    """Serves the connections to ``PATH``.

    ``rate_limit`` limits how many frames a client may send in a period (None: no limit). ``handshakes`` counts the handshakes
    and their answers.
    """

    def __init__(
        self,
        engine: EngineApi,
        registry: QueueRegistry,
        counters: MessageCounters,
        authenticator: Authenticator,
        *,
        raw_sockets: RawSockets,
        rate_limit: SlidingWindow | None,
        handshakes: RouteCount,
    ) -> None:
        self.engine = engine
        self.registry = registry
        self.counters = counters
        self.deliveries = Deliveries(engine)  #: of all connections
        self.settling = DeliverySettler(engine, counters, self.deliveries)  #: settles deliveries, for every transport
        self._handshakes = handshakes
        self._pool = Pool("WebSocket connections of consumers", limits.push_sockets_max, engine.pool_shares)
        self.authenticator = authenticator
        self.raw_sockets = raw_sockets
        self.rate_limit = rate_limit
        self._connections: OpenSockets[Consumer] = OpenSockets(limits.push_sockets_max)

    def __len__(self) -> int:
        return len(self._connections)

    async def serve(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> None:
        """Serve a connection until it ends. ``client`` is its address. Raises the error that refuses its handshake."""
        since = self._handshakes.begin()
        try:
            consumer = await self._admit(scope, proto, client)
        except ServerError as error:
            self._handshakes.count(status_of(error), since)
            raise
        self._handshakes.count(SWITCHING, since)
        try:
            await self._connections.serve(consumer)
        finally:
            self._pool.leave(consumer.namespace)

    async def _admit(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> Consumer:
        """Return the consumer of a new connection. Raises the error that refuses its handshake."""
        namespace, name = _path_of(scope)
        identity = await self.authenticator.identify(shown_in(scope.headers))
        for right in (Right.TAKE, Right.SETTLE):
            identity.check(namespace, right)
        key = self.registry.key(namespace, name)
        await self.registry.use(key)
        self._connections.check_room()
        window = _window(parse_qs(scope.query_string).get("window", [str(limits.push_window)])[-1])
        self._pool.enter(namespace)
        return Consumer(self, scope, proto, key, identity, client=client, window=window)

    def stop_claiming(self) -> None:
        """Claim no more messages, because the server stops."""
        self._connections.shut()
        for consumer in self._connections:
            consumer.stop_claiming()

    async def close(self) -> None:
        """Close all connections, and release their messages."""
        self.stop_claiming()
        await self._connections.close()


def _window(text: str) -> int:
    """Return the size of the window, at most the limit. Raises InvalidInput."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text)):
        raise InvalidInput("window must be a number of messages: 1 or more")
    return min(int(text), limits.push_window_max)


def _path_of(scope: Scope) -> tuple[str, str]:
    """Return the namespace and the queue name of a path. Raises RouteNotFound."""
    match scope.path.split("/"):
        case ["", "namespaces", namespace, "queues", queue, "ws"]:
            return namespace, queue
    raise RouteNotFound


class UnsettledMessage(NamedTuple):
    """A delivered message that is not settled."""

    id: int
    token: int
    until: int  #: steady ms; the end of the lease

    @property
    def hold(self) -> LeaseRef:
        """The reference to the lease."""
        return LeaseRef(self.id, self.token)


class Consumer(WebSocket):
    """One connection of a consumer."""

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
        super().__init__(door.engine.clock, door.raw_sockets, scope, proto)
        self._door = door
        self._engine = door.engine
        self._queue = queue
        self._identity = identity
        self._client = client
        self._window = window
        self._taker = ConsumerClaim(door.engine, queue)
        self._held: dict[str, UnsettledMessage] = {}  #: by receipt handle
        self._settling: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._alarm: Alarm | None = None  #: set to the end of the next visibility timeout
        self._alarm_at = 0  #: steady ms
        self._silent = False  #: a lease expired without ack or nack, and the client has sent nothing since
        self._late: list[UnsettledMessage] = []  #: messages whose leases expired since the client's last ack or nack
        self._expiry: Expiry | None = None
        self._feeding: asyncio.Task[None] | None = None

    def stop_claiming(self) -> None:
        """Claim no more messages."""
        self._taker.stop()
        self._freed.set()

    def begin(self) -> None:
        """Start to deliver messages, until the client's token expires."""
        self._expiry = Expiry(self._identity, self.clock, self._expire)
        self._feeding = asyncio.ensure_future(self._feed())

    async def finish(self) -> None:
        """Release the unsettled messages, after the settlements in progress are finished."""
        for alarm in (self._alarm, self._expiry):
            if alarm is not None:
                alarm.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        if self._settling:
            await asyncio.wait(self._settling)
        await self._release_held()

    async def _release_held(self) -> None:
        """Return the unsettled messages to the front, in their order. If that fails, their leases expire."""
        holds = [held.hold for held in self._held.values()]
        for held in (*self._held.values(), *self._late):
            self._forget(held)
        self._held.clear()
        self._late.clear()
        for some in reversed(slices_of(holds)):  # the last ones first, because each slice goes to the front
            try:
                await self._engine.run(Requeue(self._queue.namespace, some, Arrow.RETURN))
            except ServerError as error:
                log.warning("messages could not be released; their leases will expire", error=str(error))

    def _expire(self) -> None:
        """Close the connection because its token has expired."""
        self._tell("The token has expired")
        self.end(Closing.NOT_ALLOWED)

    # Messages to the client.

    async def _feed(self) -> None:
        """Claim and send messages while the window and the send queue have room."""
        while not self._taker.stopped:
            try:
                await self._take_some()
            except ServerError as error:
                log.warning("messages to push cannot be claimed now, trying again", error=str(error))
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
        lease_ms = self._door.registry.message_rules(self._queue).visibility_timeout_ms
        for each in await self._taker.take(min(free, limits.push_claim_messages), lease_ms):
            self._hand_out(each, lease_ms)

    def _hand_out(self, delivery: Delivery, lease_ms: int) -> None:
        view = view_of(self._queue, delivery)
        until = self.clock.steady_ms() + lease_ms
        self._hold(view.receipt_handle, UnsettledMessage(delivery.job.id, delivery.job.token, until))
        self._door.counters.of(self._queue).consumed += 1
        self.outbox.put((_MESSAGE + _encode(view)[1:]).decode(), must=True)

    def _hold(self, handle: str, held: UnsettledMessage) -> None:
        self._held[handle] = held
        self._door.deliveries.add(held.id, held.token, self)
        if self._alarm is None or held.until < self._alarm_at:
            self._set_alarm(held.until)

    def _set_alarm(self, at: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.clock.call_at(at, self._let_go)

    def _let_go(self) -> None:
        """Record the messages whose visibility timeout is over."""
        now = self.clock.steady_ms()
        over = [handle for handle, held in self._held.items() if held.until <= now]
        for handle in over:
            held = self._held.pop(handle)
            self._silent = True
            self._late.append(held)
            self._door.deliveries.came_back(held.token)  # or it was settled, and the event has not arrived yet
        self._alarm = None
        if self._held:
            self._set_alarm(min(held.until for held in self._held.values()))
        self._freed.set()

    def _forget(self, held: UnsettledMessage) -> None:
        self._door.deliveries.remove(held.token)

    # What happens elsewhere, see Holder.

    @property
    def namespace(self) -> str:
        """The namespace of its queue."""
        return self._queue.namespace

    def delivery_over(self, job_id: int, token: int) -> None:
        """Free the place of a message that was settled elsewhere, or is ready in its queue again."""
        held = self._held.pop(str(ReceiptHandle(job_id, token)), None)
        if held is not None:  # else its lease expired, and a late ack still shows that the client is alive
            self._forget(held)
            self._freed.set()

    def spoke(self) -> None:
        """Record that the client is alive, whichever transport it used."""
        self._silent = False
        for held in self._late:
            self._forget(held)
        self._late.clear()
        self._freed.set()

    def complain(self, error: str) -> None:
        """Send an error to the client."""
        self._tell(error)

    def _tell(self, error: str, handle: str = "") -> None:
        self.outbox.put(_encode(wire.ErrorFrame(error, handle)).decode(), must=True)

    # Frames from the client.

    async def handle_frame(self, data: bytes | str) -> None:
        """Handle a frame of the client. An error is sent before the messages for which the frame makes room."""
        await self._take(_word_in(data))
        self.spoke()

    async def _take(self, word: wire.SettleFrame | str) -> None:
        try:
            if self._door.rate_limit is not None:
                self._door.rate_limit.check(self._client)
            self._door.authenticator.check(self._identity, self._queue.namespace, Right.SETTLE)
        except Unauthorized as error:
            self._tell(str(error))
            self.end(Closing.NOT_ALLOWED)
            return
        except ServerError as error:
            self._tell(str(error), "" if isinstance(word, str) else word.receipt_handle[:64])
            return
        if isinstance(word, str):
            self._tell(word)
            return
        held = self._held.pop(word.receipt_handle, None)
        if held is None:  # delivered elsewhere; no frame is read until it is settled, so these are few at a time
            await self._settle(word, None)
            return
        self._forget(held)
        task = asyncio.get_running_loop().create_task(self._settle(word, held))
        self._settling.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._freed.set()

    async def _settle(self, word: wire.SettleFrame, held: UnsettledMessage | None) -> None:
        """Settle a delivery. ``held``: the message, if it belongs to this connection."""
        try:
            await self._door.settling.settle(self._identity, word.receipt_handle, done=word.type == "ack")
        except ReceiptUnknown as error:
            self._tell(str(error), word.receipt_handle[:64])
        except ServerError as error:  # the message is still leased
            if held is not None and held.until > self.clock.steady_ms():
                self._hold(word.receipt_handle, held)
            self._tell(str(error), word.receipt_handle[:64])


def _word_in(data: bytes | str) -> wire.SettleFrame | str:
    """Return a frame of the client, or the text of its error."""
    try:
        word = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"invalid json: {error}"
    return word if word.type in ("ack", "nack") else f'unknown type "{word.type[:64]}": expected ack or nack'
