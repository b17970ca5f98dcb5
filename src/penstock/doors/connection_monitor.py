"""Closes connections of the HTTP listeners that are of no use: silent ones, idle ones, and the surplus when there are too many.

All connections are looked at every ``limits.connection_scan_ms``. A connection is in use while a request of it is under way;
the rest is decided by the bytes that the operating system has counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.core import limits
from penstock.core.clock import pause
from penstock.doors.answers import UnreadAnswers
from penstock.doors.arriving import ArrivingMessages
from penstock.doors.connections import ConnectionTable
from penstock.doors.links import ends_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from granian.rsgi import Scope
    from prometheus_client import Metric

    from penstock.core.clock import Clock
    from penstock.doors.connections import Connection

log = structlog.get_logger("penstock.connections")


class Reason(StrEnum):
    """Why a connection was cut off, as metrics name it."""

    SILENT = "silent"  #: it did not begin a request in time
    IDLE = "idle"  #: no request was under way, and no byte was sent or received for long
    CROWDED = "crowded"  #: there were too many, and it had no request under way
    UNREAD = "unread"  #: the client did not take its answers
    MESSAGE_TOO_LARGE = "message_too_large"  #: a WebSocket message was too large before it was complete


def connections_max() -> int:
    """Return how many connections the HTTP listeners may have together, and raise the limit of descriptors if possible.

    Half of the descriptors that are not reserved: the others are for TCP, the Redis protocol and outgoing connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.descriptors_wanted if hard == resource.RLIM_INFINITY else min(hard, limits.descriptors_wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    descriptors = limits.descriptors_wanted if soft == resource.RLIM_INFINITY else soft
    reserved = min(limits.descriptors_reserved, descriptors // 4)
    return min(limits.http_connections_max, (descriptors - reserved) // 2)


class ConnectionMonitor:
    """Watches the connections of all HTTP listeners. ``most``: how many there may be; ``idle_ms``: how long one may be idle."""

    def __init__(self, clock: Clock, *, most: int, idle_ms: int) -> None:
        self._clock = clock
        self.most = most
        self._idle_ms = idle_ms
        self.table = ConnectionTable(clock)
        self.answers = UnreadAnswers(clock, self.table, self._cut_unread)
        self.arriving = ArrivingMessages(clock, self.table, self._count_too_large)
        self.cut: Counter[Reason] = Counter()
        self._under_way: list[AbstractSet[Scope]] = []
        self._task: asyncio.Task[None] | None = None

    def watch(self, port: int) -> None:
        """Watch the connections that come in through a port."""
        self.table.ports.add(port)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-connections")

    def add(self, under_way: AbstractSet[Scope]) -> None:
        """Take note of where an application keeps the requests that are under way."""
        self._under_way.append(under_way)

    def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()

    def describe(self) -> list[Metric]:
        """Tell the registry nothing in advance."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Produce the metrics of connections."""
        yield GaugeMetricFamily("penstock_http_connections", "Connections of all HTTP listeners.", len(self.table))
        yield GaugeMetricFamily("penstock_http_connections_max", "How many connections there may be.", self.most)
        cut = CounterMetricFamily("penstock_http_connections_cut_total", "Connections the server ended.", labels=["reason"])
        for reason in Reason:
            cut.add_metric([reason], self.cut[reason])
        yield cut
        yield GaugeMetricFamily(
            "penstock_http_unread_bytes", "Bytes of large answers that clients have not taken.", self.answers.unread
        )
        yield GaugeMetricFamily(
            "penstock_http_waiting_answers", "Large answers that wait until clients read others.", self.answers.waiting
        )

    async def _run(self) -> None:
        while True:
            try:
                await self.table.scan()
                await self._check()
            except Exception:
                log.exception("connections could not be checked and are checked again")
            await pause(self._clock, limits.connection_scan_ms)

    async def _check(self) -> None:
        """Close what breaks a rule."""
        used = {ends_of(scope) for each in self._under_way for scope in each}
        now = self._clock.steady_ms()
        unused = [each for each in self.table if each.ends not in used]
        for number, connection in enumerate(unused):
            reason = self._fault(connection, now)
            if reason is not None:
                self._end(connection, reason)
            if number % 500 == 499:
                await pause(self._clock, 0)
        if len(self.table) > self.most * 3 // 4:
            self._make_room(unused, len(self.table) - self.most // 2, now)

    def _fault(self, connection: Connection, now: int) -> Reason | None:
        if connection.received < limits.first_bytes and now - connection.since >= limits.first_bytes_ms_max:
            return Reason.SILENT
        return Reason.IDLE if now - connection.moved_at >= self._idle_ms else None

    def _make_room(self, unused: list[Connection], surplus: int, now: int) -> None:
        """End connections without a request: those of the address with the most of them first, the quietest first."""
        quiet = [each for each in unused if not each.closing and now - each.moved_at >= limits.crowded_quiet_ms]
        of_address = Counter(each.host for each in quiet)
        quiet.sort(key=lambda each: (-of_address[each.host], each.moved_at))
        for connection in quiet[:surplus]:
            self._end(connection, Reason.CROWDED)
        if quiet:
            log.warning("too many connections", connections=len(self.table), ended=min(surplus, len(quiet)), most=self.most)

    def _end(self, connection: Connection, reason: Reason) -> None:
        """Have the HTTP server close a connection; one that is still there at the next look is reset."""
        if connection.closing:
            connection.abort()
            return
        self.cut[reason] += 1
        connection.end_input()

    def _count_too_large(self) -> None:
        self.cut[Reason.MESSAGE_TOO_LARGE] += 1

    def _cut_unread(self, ends: str) -> None:
        connection = self.table.find(ends)
        if connection is not None and connection.abort():
            self.cut[Reason.UNREAD] += 1
