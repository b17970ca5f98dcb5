"""Streams of subscribers that do not read, share a connection, or are reset: memory is bounded, and nothing is lost."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.clock import ManualClock, yield_to_loop
from penstock.doors.topics.backpressure import Flow, Flows
from tests.support.http2 import Http2Client

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.doors.api import Api
    from tests.support.server import ServerProcess

SIZE = 100_000
MESSAGES = 100


def publish(api: Api, count: int, size: int = SIZE) -> None:
    for number in range(count):
        message = b"%d " % number
        assert api.http.post(f"/publish/{api.queue}", content=message.ljust(size, b"x")).status_code == 201


def number_in(line: bytes) -> int:
    return int(base64.b64decode(json.loads(line)["msg"]).split()[0])


def test_who_does_not_read_is_sent_no_more_and_goes_on_when_it_reads(api: Api, server: ServerProcess) -> None:
    publish(api, MESSAGES)
    with Http2Client(server.port) as slow, Http2Client(server.port) as other:
        stuck = slow.post(f"/subscribe/{api.queue}")
        slow.send(stuck, b'"INIT"' + b'"ACK"' * MESSAGES)
        while api.counts()["waiting"] > MESSAGES - 10:
            time.sleep(0.01)
        stream = other.post(f"/subscribe/{api.queue}")
        other.send(stream, b'"INIT"' + b'"ACK"' * MESSAGES)
        bound = (limits.stream_look_bytes + limits.stream_unread_bytes_max) // SIZE + 3
        taken = {number_in(line) for line in other.lines(stream, MESSAGES - bound)}
        assert len(taken) == MESSAGES - bound
        other.reset(stream)
        publish(api, 1)
        slow.grant(stuck, 100_000_000)
        while api.counts()["active"] or api.counts()["waiting"]:  # the last one may be read before it is counted
            assert slow.read_what_is_there()
        assert b"error" not in slow.data[stuck]


def test_streams_share_a_connection_and_each_holds_its_own(api: Api, server: ServerProcess) -> None:
    publish(api, 36, size=10)
    with Http2Client(server.port) as client:
        streams = [client.post(f"/subscribe/{api.queue}") for _ in range(12)]
        for stream in streams:
            client.send(stream, b'"INIT"')
        first = {number_in(client.lines(stream, 1)[0]) for stream in streams}
        assert first == set(range(12))
        for stream in streams:
            client.send(stream, b'"ACK"\n')
        second = {number_in(client.lines(stream, 2)[1]) for stream in streams}
        assert second == set(range(12, 24))
        for stream in streams[:6]:
            client.reset(stream)
        while api.counts()["active"] != 6:
            time.sleep(0.01)
        assert api.counts()["waiting"] == 18


def test_an_error_that_ends_a_stream_ends_the_answer(api: Api, server: ServerProcess) -> None:
    with Http2Client(server.port) as client:
        stream = client.post(f"/subscribe/{api.queue}")
        client.send(stream, b'"NACK"')
        while stream not in client.ended:
            assert client.read()
        assert json.loads(client.data[stream]) == {"error": "error NACKing message"}


def test_empty_frames_are_no_end(api: Api, server: ServerProcess) -> None:
    publish(api, 1, size=10)
    with Http2Client(server.port) as client:
        stream = client.post(f"/subscribe/{api.queue}")
        for _ in range(5):
            client.send(stream, b"")
        client.send(stream, b'"INIT"')
        assert number_in(client.lines(stream, 1)[0]) == 0


def test_many_streams_of_one_connection_are_not_all_sent_their_messages(api: Api, server: ServerProcess) -> None:
    publish(api, 6, size=2 * limits.MEBIBYTE)
    with Http2Client(server.port) as client:
        streams = [client.post(f"/subscribe/{api.queue}") for _ in range(6)]
        for stream in streams:
            client.send(stream, b'"INIT"')
        # One that begins after another was sent its message does not even take one, so there are one to six.
        while not api.counts()["active"]:
            time.sleep(0.01)
        for stream in streams:  # it reads now, and all of them get theirs
            client.grant(stream, 10 * limits.MEBIBYTE)
        numbers = {number_in(client.lines(stream, 1)[0]) for stream in streams}
        assert numbers == set(range(6))


# The arithmetic.


class Link:
    """What the system says of a connection."""

    def __init__(self) -> None:
        self.bytes: int | None = 0

    async def taken(self, _client: str) -> int | None:
        return self.bytes


def flow_over(link: Link, clock: ManualClock) -> Flow:
    return Flows(clock, link).enter("client")  # type: ignore[arg-type]


async def waiting_for(answer: Awaitable[bool]) -> asyncio.Future[bool]:
    """Return an answer that does not come yet."""
    future = asyncio.ensure_future(answer)
    await yield_to_loop()
    assert not future.done()
    return future


@pytest.mark.anyio
async def test_little_is_sent_without_a_look() -> None:
    clock, link = ManualClock(), Link()
    flow = flow_over(link, clock)
    link.bytes = None  # nobody should ask
    assert await flow.reserve(limits.stream_look_bytes)
    assert [flow.is_due(), flow.is_due(1)] == [False, True]


@pytest.mark.anyio
async def test_bytes_of_other_answers_do_not_count_as_read() -> None:
    clock, link = ManualClock(), Link()
    flow = flow_over(link, clock)
    link.bytes = 50_000_000  # of what was fetched before
    assert await flow.reserve(2 * limits.MEBIBYTE)
    flow.count_other(70_000_000)
    link.bytes += 70_000_000
    waiting = await waiting_for(flow.reserve(10))
    await clock.advance(limits.reader_stuck_ms_max // 2)
    assert not waiting.done()
    link.bytes += 2 * limits.MEBIBYTE
    await clock.advance(limits.stream_look_ms)
    assert await waiting


@pytest.mark.anyio
async def test_streams_of_a_connection_are_served_one_after_the_other() -> None:
    clock, link = ManualClock(), Link()
    flow = flow_over(link, clock)
    both = [asyncio.ensure_future(flow.reserve(2 * limits.MEBIBYTE)) for _ in range(2)]
    await yield_to_loop()
    assert [each.done() for each in both] == [True, False]
    link.bytes = 2 * limits.MEBIBYTE
    await clock.advance(limits.stream_look_ms)
    assert await both[1]


@pytest.mark.anyio
async def test_who_reads_nothing_for_long_is_given_up() -> None:
    clock, link = ManualClock(), Link()
    flow = flow_over(link, clock)
    assert await flow.reserve(2 * limits.stream_unread_bytes_max)
    waiting = await waiting_for(flow.reserve(1))
    await clock.advance(limits.reader_stuck_ms_max // 2)
    link.bytes = 10
    await clock.advance(limits.reader_stuck_ms_max // 2 + 100)
    assert not waiting.done(), "it has read something"
    await clock.advance(limits.reader_stuck_ms_max)
    assert not await waiting


@pytest.mark.anyio
async def test_what_is_held_back_for_all_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "streams_unread_bytes_max", 10 * limits.MEBIBYTE)
    clock = ManualClock()
    links = [Link(), Link()]
    flows = Flows(clock, links[0])  # type: ignore[arg-type]
    slow, other = flows.enter("slow"), flows.enter("other")
    assert await slow.reserve(8 * limits.MEBIBYTE)
    held = await waiting_for(slow.reserve(8 * limits.MEBIBYTE))
    assert not await slow.reserve(8 * limits.MEBIBYTE), "too much waits already"
    assert await other.reserve(1 * limits.MEBIBYTE), "who has read everything is sent something"
    held.cancel()
    await yield_to_loop()
    assert flows.held == 0
    for flow in (slow, other):
        flows.leave(flow)
    assert flows.unread == 0
    assert flows.of == {}


@pytest.mark.anyio
async def test_a_system_that_does_not_tell_holds_up_nobody() -> None:
    link = Link()
    flow = flow_over(link, ManualClock())
    link.bytes = None
    for _ in range(3):
        assert await flow.reserve(10 * limits.stream_unread_bytes_max)
