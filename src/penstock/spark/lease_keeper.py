"""A child process of a stream that consumes queues. It renews leases, and acknowledges the batches that Spark has completed.

Spark does not notify a source when a query ends; it kills the source's process. This process reads from a pipe of the
source, notices its end, and then reads the checkpoint a last time. So the last batch is acknowledged even if no further
batch is requested. It stops with the query: leases that are not renewed expire, and other consumers get the jobs. This also
applies while the server does not answer: the retries of a request stop when the query ends.

It reads lines of JSON: first the options, then the messages of the source: ``{"group": …}`` with the group for its claims,
and ``{"planned": true}`` once Spark has logged an epoch of the group.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from penstock.client._clock import block, steady
from penstock.client._request import path
from penstock.client.errors import Conflict, PenstockError
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.http_client import LONG_MS, BulkClient, acknowledge
from penstock.spark.options import Options

if TYPE_CHECKING:
    from typing import BinaryIO

log = logging.getLogger("penstock.spark")

#: How often the checkpoint is read, in seconds.
WATCH_S: Final = 0.25
#: How often leases are renewed within their length.
BEATS_PER_LEASE: Final = 3


class QueryEnded(Exception):
    """The query ended while a request waited for its retry."""


class LeaseKeeper:
    """Keeps the leases of one group valid."""

    def __init__(self, options: Options, wire: BulkClient, checkpoint: Checkpoint | None) -> None:
        self.group: str | None = None
        self._planned = False
        self._acked = 0
        self._options = options
        self._wire = wire
        self._checkpoint = checkpoint

    def handle_message(self, said: dict[str, Any]) -> None:
        """Process a message of the source."""
        self.group = said.get("group", self.group)
        self._planned = self._planned or bool(said.get("planned"))

    def beat(self) -> None:
        """Renew all leases of the group."""
        if self.group is not None:
            lost = self._wire.post(
                path("/bulk/groups/{}/heartbeat", self.group), {"lease_ms": self._options.lease_timeout}
            ).get("lost")
            if lost:
                log.warning("Leases of %s jobs of %s have ended.", lost, self.group)

    def watch(self) -> None:
        """Acknowledge the batches that Spark has logged as completed."""
        if self.group is None or self._checkpoint is None:
            return
        done = self._checkpoint.done(self.group)
        if done is not None and done > self._acked:
            try:
                lost = acknowledge(self._wire, self._options, self.group, done)
            except Conflict as error:  # the query gets the same error, and stops
                log.warning("%s", error.message)
            else:
                if lost:
                    log.warning("%s processed jobs of %s were no longer leased to it.", lost, self.group)
            self._acked = done

    def finish(self) -> None:
        """Clean up after the query: acknowledge completed batches, and release jobs that the query has never received."""
        self.watch()
        if self.group is None or self._planned:
            return
        if self._checkpoint is None or not self._checkpoint.planned(self.group):
            # No epoch of this group is in the checkpoint, so no restart will request it. Even if it were there, the jobs
            # would be claimed again under the same epoch: none was read yet.
            self._wire.post(path("/bulk/groups/{}/release", self.group), {}, wait_ms=LONG_MS)


def main(source: BinaryIO) -> None:
    """Keep the leases of the source that writes to this pipe, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; this process ends when the driver ends
    lines = _Lines(source.fileno())
    first = lines.wait(None)
    if not first:
        return
    options = Options(**_tuples(first[0]))
    place = options.checkpoint_location
    checkpoint = None if place is None else Checkpoint(place)
    beat_s = options.lease_timeout / 1000 / BEATS_PER_LEASE
    pause_s = min(beat_s, WATCH_S) if checkpoint is not None else beat_s
    with BulkClient(options, lines.pause) as wire:
        keeper = LeaseKeeper(options, wire, checkpoint)
        said: list[dict[str, Any]] | None = first[1:]
        next_beat = steady() + beat_s
        while said is not None:
            for each in said:
                keeper.handle_message(each)
                if "group" in each:  # the query may have been away for almost the length of its leases
                    next_beat = steady()
            if steady() >= next_beat and not lines.ended:
                next_beat = steady() + beat_s
                _carefully(keeper.beat)
            if not lines.ended:
                _carefully(keeper.watch)
            said = lines.wait(pause_s)
        _carefully(keeper.finish)


def _carefully(do: Any) -> None:
    """Call a function and log its error: a later try may succeed, and an error here must not end the query."""
    try:
        do()
    except QueryEnded:
        log.info("The query ended while its server did not answer.")
    except (PenstockError, OSError, ValueError) as error:
        log.warning("%s", error)


def _tuples(said: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}


class _Lines:
    """Lines of JSON from a pipe, with a time limit."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._rest = b""
        self._read: list[dict[str, Any]] = []  # and not returned yet
        self.ended = False  #: the query has ended

    def wait(self, seconds: float | None) -> list[dict[str, Any]] | None:
        """Return the messages that arrive within so many seconds (None: without a limit); None at the end of the pipe."""
        if not self._read and not self.ended:
            self._fill(seconds)
        found, self._read = self._read, []
        return None if self.ended and not found else found

    def pause(self, seconds: float) -> None:
        """Wait so many seconds. Raises QueryEnded if the pipe ends in that time; if it had ended before, this only waits."""
        if self.ended:
            block(seconds)
            return
        until = steady() + seconds
        while (left := until - steady()) > 0:
            self._fill(left)
            if self.ended:
                raise QueryEnded

    def _fill(self, seconds: float | None) -> None:
        """Read once, if data arrives within so many seconds."""
        ready, _, _ = select.select([self._pipe], [], [], seconds)
        if not ready:
            return
        content = os.read(self._pipe, 1 << 16)
        self.ended = not content
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._read += [json.loads(line) for line in lines]


if __name__ == "__main__":
    main(sys.stdin.buffer)
