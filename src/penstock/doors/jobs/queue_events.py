"""Events of one queue over TCP, between the replies: ``SubscribeEvents``, which bunqueue's QueueEvents and workers send.

Events that a client has not read wait in an outbox with a limit. A client that is too slow for it is disconnected. It
connects again, and so detects that it has missed events. No other client waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import msgspec
import structlog
from msgspec import Meta

from penstock.access.expiry import Expiry
from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, ServerError
from penstock.core.events import EventKind
from penstock.doors.http import body
from penstock.doors.jobs import event_rendering, tcp_frames
from penstock.doors.jobs.base import check_queue_name
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.event_hub import EventReader
from penstock.doors.jobs.wire import replies, requests
from penstock.doors.net.send_queue import SendQueue

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.event_hub import EventHub
    from penstock.doors.jobs.event_rendering import OutgoingEvent
    from penstock.doors.jobs.session import JobsSession
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore

log = structlog.get_logger("penstock.tcp")
_decode: Final = msgspec.json.Decoder().decode


class TrimFields(requests.RequestModel):
    """How many events to keep of a queue."""

    max_length: Annotated[int, Meta(ge=0, le=limits.offset_max)]


class TrimmedData(replies.Out):
    """How many events were removed."""

    removed: int = 0


class TrimmedReply(replies.Reply, kw_only=True):
    """The trimmed events, in the reply's envelope."""

    data: TrimmedData


TRIM: Final = body.BodyReader(TrimFields)


class EventConnection(Protocol):
    """The connection that events are sent on."""

    def refuse(self, error: ServerError) -> None:
        """Send the reason, and close."""

    async def write_event(self, frame: bytes) -> None:
        """Send a frame. Returns when the client is ready for more. Raises RuntimeError if it has disconnected."""


class UnfinishedFrame(bytes):
    """A frame to which the result or payload of its job is added when it is sent. It is not read before that."""

    outgoing: OutgoingEvent

    def finish(self, data: bytes | None) -> bytes:
        """Return the whole frame, with the given JSON, or without it for None."""
        return bytes(self) if data is None else _frame(self.outgoing, {"data": _decode(data)})


def _frame(outgoing: OutgoingEvent, more: dict[str, Any]) -> bytes:
    # Clients drop an event without a job id, and take one with an empty job id for an event of the queue.
    fields = {"jobId": ""} | event_rendering.legacy_fields(outgoing) | more
    if outgoing.kind is EventKind.JOB_REMOVED and outgoing.field("finished_at") is None:
        fields["prev"] = "waiting"
    return tcp_frames.encode({"type": "event", "event": fields})


def framed(outgoing: OutgoingEvent) -> bytes:
    """Render an event as a frame."""
    frame = _frame(outgoing, {})
    if outgoing.kind not in event_rendering.WITH_DATA:
        return frame
    unfinished = UnfinishedFrame(frame)
    unfinished.outgoing = outgoing
    return unfinished


class QueueEvents:
    """Sends events to one connection: of one queue at a time, as long as its client has the right to read them."""

    def __init__(
        self, hub: EventHub, store: Store | ShardedStore, clock: Clock, session: JobsSession, link: EventConnection
    ) -> None:
        self._hub = hub
        self._store = store
        self._clock = clock
        self._session = session
        self._link = link
        self._outbox: SendQueue[bytes] = SendQueue(
            clock, self._send, self._give_up, lambda: hub.turn(session.namespace), limits.tcp_events_turn
        )
        self._reader: EventReader | None = None
        self._expiry: Expiry | None = None

    def subscribe(self, queue: str) -> None:
        """Send the events of a queue from now on, instead of those of another one."""
        self.unsubscribe()
        self._reader = EventReader(framed, self._take, namespace=self._session.namespace, queue=queue, everywhere=False)
        self._hub.want(self._reader, event_rendering.LEGACY_KINDS)
        self._session.at_end["events"] = self.unsubscribe
        self._watch_token()

    def unsubscribe(self) -> None:
        """Stop sending events."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._reader is not None:
            self._hub.want(self._reader, frozenset())
            self._reader = None
            self._session.at_end.pop("events", None)

    def close(self) -> None:
        """Stop, because the connection ends: waiting events are not sent."""
        self.unsubscribe()
        self._outbox.close()

    def _watch_token(self) -> None:
        identity = self._session.identity
        if identity is not None:
            self._expiry = Expiry(identity, self._clock, self._expired)

    def _expired(self) -> None:
        """Continue if the client has shown another token meanwhile; otherwise stop, and close the connection."""
        self._expiry = None
        try:
            self._session.check(Right.LOOK)
        except ServerError as error:
            self.unsubscribe()
            self._link.refuse(error)
        else:
            self._watch_token()

    def _take(self, frame: bytes, _told: OutgoingEvent) -> bool:
        if self._outbox.put(frame):
            return True
        self._give_up()
        return False

    def _give_up(self) -> None:
        if self._reader is not None:
            log.warning("a client does not read its events; its connection is closed")
            self.close()
            self._link.refuse(InvalidInput("Too slow for the events of this queue. Subscribe again."))

    async def _send(self, batch: list[bytes]) -> None:
        for frame in batch:
            whole = frame
            if type(frame) is UnfinishedFrame:
                whole = frame.finish(await self._hub.data_of(self._store, frame.outgoing))
            await self._link.write_event(whole)
            self._outbox.moved()


def event_commands() -> dict[str, CommandEntry]:
    """Return the commands about events."""

    async def subscribe(call: CommandCall, queue: str) -> replies.Ok:
        check_queue_name(queue)
        _events_of(call).subscribe(queue)
        return replies.Ok()

    async def unsubscribe(call: CommandCall) -> replies.Ok:
        _events_of(call).unsubscribe()
        return replies.Ok()

    async def trim(call: CommandCall, queue: str) -> TrimmedReply:
        """Accept the command of bunqueue.

        The journal is shared by all queues and trimmed by age, so nothing is removed here.
        """
        check_queue_name(queue)
        TRIM.parse(await call.body())
        return TrimmedReply(data=TrimmedData())

    return {
        "SubscribeEvents": CommandEntry(subscribe, None, {"queue": "queue"}),
        "UnsubscribeEvents": CommandEntry(unsubscribe),
        "TrimEvents": CommandEntry(trim, TRIM, {"queue": "queue"}),
    }


def _events_of(call: CommandCall) -> QueueEvents:
    found = call.session.events
    if found is None:
        raise InvalidInput("SubscribeEvents is for TCP connections. Send Subscribe over a WebSocket.")
    return found
