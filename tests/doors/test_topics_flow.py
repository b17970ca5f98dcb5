"""Streams of subscribers that do not read, share a connection, or are reset: memory is bounded, and nothing is lost."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.clock import ManualClock, settle
from penstock.doors.topics.flow import Flows
from tests.support.http2 import Http2Client

if TYPE_CHECKING:
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
            pass
        stream = other.post(f"/subscribe/{api.queue}")
        other.send(stream, b'"INIT"' + b'"ACK"' * MESSAGES)
        bound = (limits.stream_look_bytes + limits.stream_unread_bytes_max) // SIZE + 3
        taken = {number_in(line) for line in other.lines(stream, MESSAGES - bound)}
        assert len(taken) == MESSAGES - bound
        other.reset(stream)
        publish(api, 1)
        slow.grant(stuck, 100_000_000)
        while api.counts()["active"] or api.counts()["waiting"]:
            assert slow.read()
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
            pass
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


# The arithmetic.


class Link:
    """What the system says of a connection."""

    def __init__(self) -> None:
        self.bytes: int | None = 0

    async def taken(self, _client: str) -> int | None:
        return self.bytes


@pytest.mark.anyio
async def test_bytes_of_others_on_the_connection_do_not_count_as_read() -> None:
    clock, link = ManualClock(), Link()
    flows = Flows(clock, link)  # type: ignore[arg-type]
    flow = flows.enter("client")
    assert flows.enter("client") is flow
    link.bytes = 50_000_000  # of what was fetched before
    flow.count(limits.stream_look_bytes)
    due = [flow.is_due]
    flow.count(1)
    due.append(flow.is_due)
    assert due == [False, True]
    assert await flow.room(), "it is not known yet what of this was read, so it counts as read"
    link.bytes += 70_000_000
    flow.count(limits.stream_look_bytes + 1)
    assert await flow.room()
    flow.count(limits.stream_unread_bytes_max + 1)
    waiting = asyncio.create_task(flow.room())
    await settle()
    await clock.advance(limits.reader_stuck_ms_max - 100)
    assert not waiting.done()
    link.bytes += 10
    await clock.advance(200)
    assert waiting.done()
    assert waiting.result()


@pytest.mark.anyio
async def test_who_reads_nothing_for_long_is_given_up() -> None:
    clock, link = ManualClock(), Link()
    flow = Flows(clock, link).enter("client")  # type: ignore[arg-type]
    assert await flow.room()
    flow.count(2 * limits.stream_unread_bytes_max)
    waiting = asyncio.create_task(flow.room())
    await settle()
    await clock.advance(limits.reader_stuck_ms_max // 2)
    link.bytes = 10
    await clock.advance(limits.reader_stuck_ms_max // 2 + 100)
    assert not waiting.done(), "it has read something"
    await clock.advance(limits.reader_stuck_ms_max)
    assert not waiting.result()


@pytest.mark.anyio
async def test_a_system_that_does_not_tell_holds_up_nobody() -> None:
    link = Link()
    flow = Flows(ManualClock(), link).enter("client")  # type: ignore[arg-type]
    flow.count(10 * limits.stream_unread_bytes_max)
    link.bytes = None
    assert await flow.room()
