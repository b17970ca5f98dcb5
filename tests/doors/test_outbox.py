"""What waits for a reader is bounded, and a reader that takes nothing is given up; a silent stream is kept alive."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.clock import settle
from penstock.doors.jobs.hub import Hub
from penstock.doors.jobs.outbox import Outbox
from penstock.doors.jobs.streams import EventStream, StreamHandlers

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def test_a_reader_that_takes_nothing_is_given_up(clock: ManualClock) -> None:
    broken: list[bool] = []

    async def send(_messages: list[str]) -> None:
        await asyncio.get_running_loop().create_future()

    outbox: Outbox[str] = Outbox(clock, send, lambda: broken.append(True))
    taken = 0
    while outbox.put("x" * 1_000):
        taken += 1
        await settle(2)
    assert taken == limits.reader_buffer_bytes_max // 1_000
    assert outbox.put("a reply", must=True)
    await clock.advance(limits.reader_stuck_ms_max)
    assert broken == [True]
    assert not outbox.put("x")


async def test_messages_are_sent_in_order_and_counted(clock: ManualClock) -> None:
    sent: list[str] = []

    async def send(messages: list[str]) -> None:
        await settle(1)
        sent.extend(messages)

    outbox: Outbox[str] = Outbox(clock, send, lambda: None)
    outbox.hold()
    for number in range(limits.reader_buffer_messages_max):
        assert outbox.put(str(number))
    assert not outbox.put("one too many")
    await settle()
    assert sent == []
    outbox.release()
    await outbox.flush_within(1_000)
    assert outbox.put("room again")
    await settle()
    assert sent == [*map(str, range(limits.reader_buffer_messages_max)), "room again"]


async def test_a_silent_stream_is_kept_alive(engine: Engine, clock: ManualClock) -> None:
    sent: list[bytes] = []
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send_bytes(data: bytes) -> None:
        sent.append(data)

    async def disconnected() -> None:
        await gone

    req: Any = SimpleNamespace(disconnected=disconnected, scope=SimpleNamespace(client="127.0.0.1:1"))
    stream = EventStream(StreamHandlers(engine, Hub(engine.feed, engine.clock)), req, "default", "", last=None, typed=False)
    transport: Any = SimpleNamespace(send_bytes=send_bytes)
    running = asyncio.ensure_future(stream.run(transport, "me"))
    await clock.advance(29_999)
    assert sent == [b'retry: 3000\ndata: {"connected":true,"clientId":"me"}\n\n']
    await clock.advance(30_001)
    assert sent[1:] == [b":heartbeat\n\n", b":heartbeat\n\n"]
    assert engine.feed.is_heard
    gone.set_result(None)
    await running
    await clock.advance(60_000)
    assert len(sent) == 3
