"""What waits for a reader is bounded, and a reader that takes nothing is given up; a silent stream is kept alive."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.access.identity import UNRESTRICTED
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.events import EventKind
from penstock.doors.jobs.event_hub import EventHub, EventReader
from penstock.doors.jobs.sse import EventForm, EventStream, LastSeen, StreamHandlers
from penstock.doors.net.send_queue import SendQueue
from tests.support.engines import push

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.doors.jobs.event_rendering import OutgoingEvent
    from penstock.engine.engine import Engine
    from penstock.store.contract import JournalPage

pytestmark = pytest.mark.anyio


async def test_a_reader_that_takes_nothing_is_given_up(clock: ManualClock) -> None:
    broken: list[bool] = []

    async def send(_messages: list[str]) -> None:
        await asyncio.get_running_loop().create_future()

    outbox: SendQueue[str] = SendQueue(clock, send, lambda: broken.append(True))
    taken = 0
    while outbox.put("x" * 1_000):
        taken += 1
        await yield_to_loop(2)
    assert taken == limits.reader_buffer_bytes_max // 1_000
    assert outbox.put("a reply", must=True)
    await clock.advance(limits.reader_stuck_ms_max)
    assert broken == [True]
    assert not outbox.put("x")


async def test_who_comes_later_than_a_minute_is_not_told_of_the_start(engine: Engine, clock: ManualClock) -> None:
    hub, heard = EventHub(engine.feed, clock), []

    def reader() -> EventReader:
        def take(message: Any, _told: OutgoingEvent) -> bool:
            heard.append(message)
            return True

        return EventReader(lambda told: told.kind.wire_name, take)

    early, late, uninterested = reader(), reader(), reader()
    hub.want(early, frozenset({EventKind.SERVER_STARTED}))
    hub.greet(early)
    hub.start({"version": "1", "startedAt": clock.now_ms()})
    hub.greet(early)
    assert heard == ["server:started"], "once, although it came before"
    await clock.advance(limits.server_started_ms)
    hub.want(late, frozenset({EventKind.SERVER_STARTED}))
    hub.greet(late)
    hub.greet(uninterested)
    assert len(heard) == 1


async def test_messages_are_sent_in_order_and_counted(clock: ManualClock) -> None:
    sent: list[str] = []

    async def send(messages: list[str]) -> None:
        await yield_to_loop(1)
        sent.extend(messages)

    outbox: SendQueue[str] = SendQueue(clock, send, lambda: None)
    for number in range(limits.reader_buffer_messages_max):
        assert outbox.put(str(number))
    assert not outbox.put("one too many")
    await outbox.flush_within(1_000)
    assert outbox.put("room again")
    await yield_to_loop()
    assert sent == [*map(str, range(limits.reader_buffer_messages_max)), "room again"]


async def test_what_waits_for_a_turn_is_sent_at_once_if_it_must_be(clock: ManualClock) -> None:
    sent: list[list[str]] = []
    places: list[asyncio.Future[None]] = []

    async def send(messages: list[str]) -> None:
        sent.append(messages)

    def turn() -> asyncio.Future[None]:
        places.append(asyncio.get_running_loop().create_future())
        return places[-1]

    outbox: SendQueue[str] = SendQueue(clock, send, lambda: None, turn, most=2)
    for message in "abc":
        outbox.put(message)
    await yield_to_loop()
    assert not sent
    places[-1].set_result(None)
    await yield_to_loop()
    assert sent == [["a", "b"]]
    outbox.put("reply", must=True)
    await yield_to_loop()
    assert sent == [["a", "b"], ["c", "reply"]]
    outbox.put("d")
    await yield_to_loop()
    assert len(sent) == 2
    await outbox.flush_within(1_000)
    assert sent[2:] == [["d"]]
    outbox.put("e")
    await yield_to_loop()
    outbox.close()
    assert not outbox.broken_off, "nothing was being sent"


async def test_a_reader_that_takes_nothing_later_is_given_up(clock: ManualClock) -> None:
    """One alarm looks after all that is sent: each message has its whole time."""
    broken: list[bool] = []
    blocked: asyncio.Future[None] | None = None

    async def send(_messages: list[str]) -> None:
        if blocked is not None:
            await blocked

    outbox: SendQueue[str] = SendQueue(clock, send, lambda: broken.append(True))
    outbox.put("a")
    await clock.advance(limits.reader_stuck_ms_max - 1)
    blocked = asyncio.get_running_loop().create_future()
    outbox.put("b")
    await clock.advance(limits.reader_stuck_ms_max - 1)
    assert not broken
    await clock.advance(1)
    assert broken == [True]


class Streamed:
    """A stream to a client that takes everything, until it is gone."""

    def __init__(self, engine: Engine, last: int | None) -> None:
        self.sent: list[bytes] = []
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        scope = SimpleNamespace(client="127.0.0.1:1")
        req: Any = SimpleNamespace(disconnected=self._disconnected, scope=scope, identity=UNRESTRICTED)
        door = StreamHandlers(engine, EventHub(engine.feed, engine.clock))
        seen = None if last is None else LastSeen([last], [])
        stream = EventStream(door, req, "default", "", last=seen, form=EventForm(typed=False, marks=""))
        transport: Any = SimpleNamespace(send_bytes=self._send_bytes)
        self.running = asyncio.ensure_future(stream.run(transport, "me"))

    async def _send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    async def _disconnected(self) -> None:
        await self.gone


async def test_a_replay_comes_to_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has caught up hears what happens, and the journal is no longer read."""
    await push(engine)
    read, reads = engine.store.journal_page, 0

    async def journal_page(seq: int, namespace: str, bytes_max: int) -> JournalPage:
        nonlocal reads
        reads += 1
        assert reads < 10
        await yield_to_loop(1)
        return await read(seq, namespace, bytes_max)

    monkeypatch.setattr(engine.store, "journal_page", journal_page)
    streamed = Streamed(engine, last=0)
    await yield_to_loop(100)
    assert reads == 2
    assert len(streamed.sent) == 2
    await push(engine)
    await yield_to_loop(100)
    assert reads == 2
    assert len(streamed.sent) == 3
    streamed.gone.set_result(None)
    await streamed.running


async def test_a_silent_stream_is_kept_alive(engine: Engine, clock: ManualClock) -> None:
    streamed = Streamed(engine, last=None)
    sent, gone, running = streamed.sent, streamed.gone, streamed.running
    await clock.advance(29_999)
    assert sent == [b'retry: 3000\ndata: {"connected":true,"clientId":"me"}\n\n']
    await clock.advance(30_001)
    assert sent[1:] == [b":heartbeat\n\n", b":heartbeat\n\n"]
    assert engine.feed.has_listeners
    gone.set_result(None)
    await running
    await clock.advance(60_000)
    assert len(sent) == 3


async def test_what_happens_while_a_reader_catches_up_is_told_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step of catching up something is committed: before it is read, and after."""
    await push(engine)
    read = engine.store.journal_page

    async def journal_page(seq: int, namespace: str, bytes_max: int) -> JournalPage:
        await push(engine)
        page = await read(seq, namespace, bytes_max)
        await push(engine)
        return page

    monkeypatch.setattr(engine.store, "journal_page", journal_page)
    streamed = Streamed(engine, last=0)
    await yield_to_loop(200)
    await push(engine)
    await yield_to_loop(100)
    told = b"".join(streamed.sent).decode().splitlines()
    numbers = [int(line.removeprefix("id: ")) for line in told if line.startswith("id: ")]
    assert numbers == list(range(2, 8)), "six jobs, each once; the first event is that of the queue"
    streamed.gone.set_result(None)
    await streamed.running
