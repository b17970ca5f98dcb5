"""Closes useless connections of the HTTP listeners: silent ones, idle ones, and surplus ones when there are too many.

All connections are checked every ``limits.connection_scan_ms``. A connection is in use while a request of it is in progress;
the other decisions use the byte counters of the operating system. Connections in use are closed only if the body of a
request does not arrive, or if one holder has so many that other clients could not connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import resource
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.core import limits
from penstock.core.clock import pause
from penstock.doors.net.connections import ConnectionTable
from penstock.doors.net.incoming_messages import ArrivingMessages
from penstock.doors.net.unread_answers import UnreadAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from penstock.core.clock import Clock
    from penstock.doors.net.connections import Connection

log = structlog.get_logger("penstock.connections")


class Reason(StrEnum):
    """Why a connection was closed, as metrics name it."""

    SILENT = "silent"  #: it did not begin a request in time
    IDLE = "idle"  #: no request was in progress, and no byte was sent or received for a long time
    BODY = "body"  #: the body of a request did not arrive
    CROWDED = "crowded"  #: there were too many, and it had no request in progress
    SHARE = "share"  #: there were too many, and its holder had the most requests in progress
    UNREAD = "unread"  #: the client did not read its answers
    MESSAGE_TOO_LARGE = "message_too_large"  #: a WebSocket message was too large before it was complete


class Application(Protocol):
    """An application that answers requests."""

    def in_use(self) -> dict[str, str]:
        """Return the connections with a request in progress, by their ends, each with its holder."""

    def receiving(self) -> set[str]:
        """Return the ends of connections over which the body of a request is expected."""


def connections_max() -> int:
    """Return how many connections the HTTP listeners may have together, and raise the limit of descriptors if possible.

    It is half of the descriptors that are not reserved. The others are for TCP, the Redis protocol and outgoing connections.
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
        self._applications: list[Application] = []
        self._task: asyncio.Task[None] | None = None

    def watch(self, port: int) -> None:
        """Watch the connections that are accepted on a port."""
        self.table.ports.add(port)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-connections")

    def add(self, application: Application) -> None:
        """Add an application that reports which connections are in use."""
        self._applications.append(application)

    def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()

    def describe(self) -> list[Metric]:
        """Return no descriptions: the registry gets the metrics from ``collect`` only."""
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
        """Close the connections that break a rule."""
        used: dict[str, str] = {}
        receiving: set[str] = set()
        for each in self._applications:
            used |= each.in_use()
            receiving |= each.receiving()
        now = self._clock.steady_ms()
        unused = [each for each in self.table if each.key not in used]
        await self._end_faulty(unused, self._fault, now)
        await self._end_faulty([each for each in self.table if each.key in receiving], self._body_fault, now)
        if len(self.table) > self.most * 3 // 4:
            ended = self._make_room(unused, len(self.table) - self.most // 2, now)
            if len(self.table) - ended > self.most * 7 // 8:
                self._take_back(used, len(self.table) - ended - self.most * 3 // 4)

    async def _end_faulty(
        self, connections: list[Connection], fault: Callable[[Connection, int], Reason | None], now: int
    ) -> None:
        for number, connection in enumerate(connections):
            reason = fault(connection, now)
            if reason is not None:
                self._end(connection, reason)
            if number % 500 == 499:
                await pause(self._clock, 0)

    def _fault(self, connection: Connection, now: int) -> Reason | None:
        if connection.received < limits.first_bytes and now - connection.since >= limits.first_bytes_ms_max:
            return Reason.SILENT
        return Reason.IDLE if now - connection.moved_at >= self._idle_ms else None

    @staticmethod
    def _body_fault(connection: Connection, now: int) -> Reason | None:
        """Find bodies that do not arrive. Large bodies have their own deadline, which is earlier and sends an answer."""
        late = now - connection.moved_at >= limits.body_idle_ms_max + 2 * limits.connection_scan_ms
        return Reason.BODY if late else None

    def _make_room(self, unused: list[Connection], surplus: int, now: int) -> int:
        """Close connections without a request: first those of the address that has the most of them, the quietest first.

        Return how many were closed.
        """
        quiet = [each for each in unused if not each.closing and now - each.moved_at >= limits.crowded_quiet_ms]
        of_address = Counter(each.host for each in quiet)
        quiet.sort(key=lambda each: (-of_address[each.host], each.moved_at))
        for connection in quiet[:surplus]:
            self._end(connection, Reason.CROWDED)
        if quiet:
            log.warning("too many connections", connections=len(self.table), ended=min(surplus, len(quiet)), most=self.most)
        return min(surplus, len(quiet))

    def _take_back(self, used: dict[str, str], surplus: int) -> None:
        """Close connections with a request in progress: of the holder with the most of them, the quietest first.

        Otherwise one holder could block all others with requests that wait. A holder that has few loses none.
        """
        of_holder: dict[str, list[Connection]] = {}
        for connection in self.table:
            if not connection.closing and (holder := used.get(connection.key)) is not None:
                of_holder.setdefault(holder, []).append(connection)
        for held in of_holder.values():
            held.sort(key=lambda each: -each.moved_at)
        heap = [(-len(held), holder) for holder, held in of_holder.items()]
        heapq.heapify(heap)
        ended = 0
        while heap and ended < surplus and -heap[0][0] > self.most // limits.connection_holders:
            _, holder = heap[0]
            self._end(of_holder[holder].pop(), Reason.SHARE)
            heapq.heapreplace(heap, (-len(of_holder[holder]), holder))
            ended += 1
        if ended:
            log.warning("too many connections in use", connections=len(self.table), ended=ended, most=self.most)

    def _end(self, connection: Connection, reason: Reason) -> None:
        """Have the HTTP server close a connection. A connection that still exists at the next check is reset."""
        if connection.closing:
            connection.abort()
            return
        self.cut[reason] += 1
        connection.end_input()

    def _count_too_large(self) -> None:
        self.cut[Reason.MESSAGE_TOO_LARGE] += 1

    def _cut_unread(self, key: str) -> None:
        connection = self.table.find(key)
        if connection is not None and connection.abort():
            self.cut[Reason.UNREAD] += 1
