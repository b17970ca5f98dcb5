"""Server-sent events: a stream of events, which a client can resume where it was interrupted."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.access.expiry import Expiry
from penstock.access.identity import ANYWHERE, Right
from penstock.core import limits
from penstock.core.clock import TimeSlice, pause
from penstock.core.errors import InvalidInput, ServerError
from penstock.core.ids import IdSource, to_uuid
from penstock.core.pool_shares import Pool
from penstock.doors.http import body
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.route import Plain, Route, Stream
from penstock.doors.jobs import event_rendering
from penstock.doors.jobs.base import JobsDoor
from penstock.doors.jobs.event_hub import EventHub, EventReader
from penstock.doors.jobs.reader_lag import CHECK_EVERY_MS, ReaderLag
from penstock.doors.jobs.wire.requests import EventsQuery
from penstock.doors.net.send_queue import SendQueue

if TYPE_CHECKING:
    from penstock.core.clock import Alarm
    from penstock.core.events import EventKind
    from penstock.doors.http.request import Request
    from penstock.doors.http.route import StreamTransport
    from penstock.doors.jobs.event_rendering import OutgoingEvent
    from penstock.engine.api import EngineApi, ShardApi
    from penstock.store.contract import JournalBlock, JournalPage, Store

EVENTS: Final = body.BodyReader(EventsQuery)
EVENT_STREAM: Final = "text/event-stream"
KEEP_ALIVE: Final = (("connection", "keep-alive"),)
RETRY_MS: Final = 3_000
HEARTBEAT_MS: Final = 30_000
_HEARTBEAT: Final = b":heartbeat\n\n"
#: After this many bytes it is checked whether the client has read them.
_CHECK_AFTER_BYTES: Final = limits.reader_buffer_bytes_max // 4


class StreamHandlers(JobsDoor):
    """``GET /events`` and ``GET /events/queues/{queue}``."""

    def __init__(self, engine: EngineApi, hub: EventHub) -> None:
        super().__init__(engine)
        self.hub = hub
        self.queues = ReaderLag(engine.clock)
        self._ids = IdSource()
        self._open: set[EventStream] = set()
        self._pool = Pool("event streams", limits.event_streams_max, engine.pool_shares)
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    async def everything(self, req: Request) -> Stream | Plain:
        return self._stream(req, "")

    async def of_queue(self, req: Request, queue: str) -> Stream | Plain:
        return self._stream(req, self.queue_key(req, queue).name)

    def _stream(self, req: Request, queue: str) -> Stream | Plain:
        namespace = self.namespace(req)
        if self._closed or len(self._open) >= limits.event_streams_max:
            return Plain(b"Too many SSE connections", status=503)
        self._pool.check(namespace)
        query = EVENTS.parse_query(req)
        journals = self.store.journals
        if query.last_event_id and _places(query.last_event_id, len(journals)) is None:
            raise InvalidInput("lastEventId must be the id of an event, such as 17, or 0 for all that are kept")
        last = req.header("last-event-id") or query.last_event_id
        marks = "-".join(each.history.mark for each in journals) if query.ids == "marked" else ""
        form = EventForm(typed=query.format == "typed", marks=marks)
        stream = EventStream(self, req, namespace, queue, last=_places(last, len(journals)), form=form)
        # The stream is counted from here on, so that the limit holds even if many clients connect at the same time.
        self._open.add(stream)
        self._pool.enter(namespace)
        client_id = to_uuid(self._ids.next(self.engine.clock.now_ms()))
        # HTTP/2 has no such header: its connections are kept open anyway.
        headers = KEEP_ALIVE if req.scope.http_version.startswith("1") else ()
        run = partial(stream.run, client_id=client_id)
        return Stream(EVENT_STREAM, run, lambda: self._leave(stream, namespace), headers)

    def _leave(self, stream: EventStream, namespace: str) -> None:
        if stream in self._open:
            self._open.discard(stream)
            self._pool.leave(namespace)

    async def close(self) -> None:
        """End all streams, after sending what is already queued for them."""
        self._closed = True
        streams = list(self._open)
        for stream in streams:
            stream.end()
        if streams:
            await asyncio.wait([stream.ended for stream in streams])

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract."""
        tag = "Real-time"
        stream: dict[str, Any] = {
            "query": EVENTS,
            "media": EVENT_STREAM,
            "resumable": True,
            "also": ((503, ErrorReply), (503, str)),
        }
        return self.namespaced(
            Route("GET", "/events", self.everything, "All events", tag, **stream),
            Route("GET", "/events/queues/{queue}", self.of_queue, "Events of a queue", tag, **stream),
        )


class EventForm(NamedTuple):
    """The form of the events. ``typed``: all, with their names. ``marks``: of the journals, as part of ids; may be empty."""

    typed: bool
    marks: str


class LastSeen(NamedTuple):
    """What a client has seen of each shard: the number of the last event, and the mark of its journal if it sent one."""

    last: list[int]
    marks: list[str]


class EventStream:
    """One client's stream. ``last`` is what it has seen before (None: begin with new events)."""

    def __init__(
        self, door: StreamHandlers, req: Request, namespace: str, queue: str, *, last: LastSeen | None, form: EventForm
    ) -> None:
        self._door = door
        self._clock = door.engine.clock
        self._req = req
        self._last = None if last is None else last.last  #: the number of the last event of each shard that the client has
        self._marks = [] if last is None else last.marks
        self._over = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kinds: frozenset[EventKind] = event_rendering.ALL_KINDS if form.typed else event_rendering.LEGACY_KINDS
        render = event_rendering.stream_form(typed=form.typed, marks=form.marks)
        everywhere = req.identity.may(ANYWHERE, Right.LOOK)
        self._reader = EventReader(render, self._take, namespace=namespace, queue=queue, everywhere=everywhere)
        self._transport: Any = None
        turn = partial(door.hub.turn, namespace)
        self._outbox: SendQueue[bytes] = SendQueue(self._clock, self._send, self.end, turn)
        self._held: list[tuple[bytes, OutgoingEvent]] | None = None  #: new events while the client is still catching up
        self._held_bytes = 0
        self._unseen_bytes = 0  #: bytes sent since the last time that the client had read everything
        self._heartbeat: Alarm | None = None

    def end(self) -> None:
        """End the stream soon. Calling it twice has no further effect."""
        if not self._over.done():
            self._over.set_result(None)

    async def run(self, transport: StreamTransport, client_id: str) -> None:
        """Send until the client disconnects, is too slow, or the server stops."""
        self._transport = transport
        # The client connects again with a new token, and misses nothing.
        expiry = Expiry(self._req.identity, self._clock, self.end)
        gone = asyncio.ensure_future(self._req.disconnected())
        gone.add_done_callback(lambda _: self.end())
        catching_up = asyncio.ensure_future(self._begin(client_id))
        try:
            await self._over
            catching_up.cancel()
            if not gone.done() and not self._reader.missed:
                await self._outbox.flush_within(limits.goodbye_ms_max)
        finally:
            self._door.hub.want(self._reader, frozenset())
            expiry.cancel()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            catching_up.cancel()
            self._outbox.close()
            gone.cancel()
            self._transport = None  # it ends when nothing refers to it, which should not wait for the garbage collector
            self.ended.set_result(None)

    async def _begin(self, client_id: str) -> None:
        try:
            hello = f'retry: {RETRY_MS}\ndata: {{"connected":true,"clientId":"{client_id}"}}\n\n'
            if self._last is None:
                self._door.hub.want(self._reader, self._kinds)
                self._outbox.put(hello.encode(), must=True)
            else:
                await self._send([hello.encode()])
                await self._catch_up()
            self._door.hub.greet(self._reader)
            self._beat()
        except (RuntimeError, ServerError):  # disconnected; or a shard is down: the client connects again, missing nothing
            self.end()

    async def _catch_up(self) -> None:
        """Send what the client has missed, then continue with new events, without a gap and without a repetition.

        Most of it is read before the subscription begins. Events committed before that moment are in the journal when it is
        read once more. Events committed later are held back until then, and those of them that were already read are left
        out.
        """
        assert self._last is not None
        for shard, journal in enumerate(self._door.store.journals):
            if await self._is_replaced(shard, journal):
                await self._send(self._gap(shard, await journal.journal_first() or 1, replaced=True))
        await self._replay()
        self._held = []
        self._door.hub.want(self._reader, self._kinds)
        await self._replay()
        held, self._held = self._held, None
        for message, outgoing in held:
            self._take(message, outgoing)

    async def _is_replaced(self, shard: int, journal: Store) -> bool:
        """Return whether the client's number is of another journal: of another store, or from before a restore."""
        assert self._last is not None
        mark = self._marks[shard] if shard < len(self._marks) else ""
        if mark and journal.history.mark and mark != journal.history.mark:
            return True
        last = self._last[shard]
        return last >= journal.journal_next and last >= await journal.journal_end()

    async def _replay(self) -> None:
        """Send all events after the last one, up to the end of each journal as it is when that is reached."""
        for shard, engine in enumerate(self._door.engine.engines):
            await self._replay_one(shard, engine)

    async def _replay_one(self, shard: int, engine: ShardApi) -> None:
        """Send page after page.

        A turn covers only reading: sending and waiting for the client happen without one, for other streams.
        """
        assert self._last is not None
        while True:
            async with engine.replays.turn(self._reader.namespace):
                following = self._last[shard] + 1
                page = await engine.store.journal_page(following, self._reader.namespace, limits.replay_bytes)
                found = self._gap(shard, page.first) if page.first > following else []
                await self._render(page, shard, found)
            if found:
                await self._send(found)
            if page.is_last:
                return

    async def _render(self, page: JournalPage, shard: int, found: list[bytes]) -> None:
        """Add the events of a page for this client, and record how far the page reaches."""
        assert self._last is not None
        piece = TimeSlice(self._clock)
        for read in page.blocks:
            for outgoing in event_rendering.outgoing_events(self._placed(read, shard), self._kinds, self._last[shard]):
                if self._reader.concerns(outgoing):
                    found.append(self._reader.render(outgoing))
                await piece.yield_if_over()
        self._last[shard] = max(self._last[shard], page.following - 1)

    def _placed(self, block: JournalBlock, shard: int) -> JournalBlock:
        """Add the positions of this reader on the other shards to a block."""
        assert self._last is not None
        if len(self._last) == 1:
            return block
        before, after = self._last[:shard], self._last[shard + 1 :]
        around = "".join(f"{each}-" for each in before), "".join(f"-{each}" for each in after)
        return msgspec.structs.replace(block, shard=shard, around=around)

    def _gap(self, shard: int, first: int, *, replaced: bool = False) -> list[bytes]:
        """Continue with an event that is not the next one.

        Return the gap message, or none if the oldest event was requested.
        """
        assert self._last is not None
        last, self._last[shard] = self._last[shard], first - 1
        numbered = shard if len(self._last) > 1 else None
        return [event_rendering.stream_gap(last, first, numbered, replaced=replaced)] if last else []

    def _take(self, message: bytes, outgoing: OutgoingEvent) -> bool:
        if outgoing.seq and self._last is not None and outgoing.seq <= self._last[outgoing.shard]:
            return True  # it was already read from the journal
        if self._held is not None:
            self._held_bytes += len(message)
            room = self._held_bytes <= limits.reader_buffer_bytes_max and len(self._held) < limits.reader_buffer_messages_max
            if room:
                self._held.append((message, outgoing))
                return True
        elif self._outbox.put(message):
            return True
        self.end()  # too slow: the client connects again with the last number it has seen, and misses nothing
        return False

    async def _send(self, messages: list[bytes]) -> None:
        data = b"".join(messages)
        await self._transport.send_bytes(data)
        self._unseen_bytes += len(data)
        if self._unseen_bytes >= _CHECK_AFTER_BYTES:
            until = self._clock.steady_ms() + limits.reader_stuck_ms_max
            while self._door.queues.waiting(self._req.scope.client):
                if self._clock.steady_ms() >= until:
                    raise RuntimeError("the client does not read")
                await pause(self._clock, CHECK_EVERY_MS)
            self._unseen_bytes = 0

    def _beat(self) -> None:
        """Send a comment at intervals, so that proxies do not close a silent connection."""
        if self._heartbeat is not None:
            self._outbox.put(_HEARTBEAT)
        self._heartbeat = self._clock.call_at(self._clock.steady_ms() + HEARTBEAT_MS, self._beat)


def _places(text: str, shards: int) -> LastSeen | None:
    """Read the position of a client on each shard; 0 is the beginning of all. Return None for an invalid position.

    Behind an ``@`` are the marks of the journals, if the client requested them.

    A position from fewer shards has seen nothing of those that were added since, so all their events are sent. A position
    from more shards has seen all events of those that were removed.
    """
    text, _, marks = text.partition("@")
    parts = text.split("-") if text != "0" else ["0"] * shards
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        return None
    known = [int(part) for part in parts[:shards]]
    return LastSeen(known + [0] * (shards - len(known)), marks.split("-"))
