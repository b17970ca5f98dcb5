"""A small process beside a stream that consumes queues: it renews leases, and acknowledges what Spark has logged as done.

Spark gives a source no word when a query ends; it kills the source's process. This one reads from it, notices its end, and then
looks into the checkpoint a last time. So the last batch is acknowledged even if nobody asks the source for another.
It stops with the query: leases nobody renews end, and others get the jobs. That is also so while the server does not answer: a
request that is tried again and again is given up when the query ends.

It reads lines of JSON: the options first, then what the source says: ``{"group": …}`` for the group it claims under, and
``{"planned": true}`` once Spark has written an epoch of it down.
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

#: How often the checkpoint is looked at, in seconds.
WATCH_S: Final = 0.25
#: Leases are renewed this many times before they would end.
BEATS_PER_LEASE: Final = 3


class QueryEnded(Exception):
    """The query ended while a request of its keeper waited for its next try."""


class LeaseKeeper:
    """Keeps the leases of one group."""

    def __init__(self, options: Options, wire: BulkClient, checkpoint: Checkpoint | None) -> None:
        self.group: str | None = None
        self._planned = False
        self._acked = 0
        self._options = options
        self._wire = wire
        self._checkpoint = checkpoint

    def hear(self, said: dict[str, Any]) -> None:
        """Take in what the source says."""
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
        """Acknowledge what Spark has logged as done."""
        if self.group is None or self._checkpoint is None:
            return
        done = self._checkpoint.done(self.group)
        if done is not None and done > self._acked:
            try:
                lost = acknowledge(self._wire, self._options, self.group, done)
            except Conflict as error:  # the query will be told the same, and stop
                log.warning("%s", error.message)
            else:
                if lost:
                    log.warning("%s jobs of %s that are done were not its own any more.", lost, self.group)
            self._acked = done

    def finish(self) -> None:
        """The query is gone: acknowledge what is done, and give back what it never got to know of."""
        self.watch()
        if self.group is None or self._planned:
            return
        if self._checkpoint is None or not self._checkpoint.planned(self.group):
            # Nothing of this group is in the checkpoint, so no restart will ask for it. Were it there after all, the jobs
            # would be claimed anew under the same epoch: not one was read yet.
            self._wire.post(path("/bulk/groups/{}/release", self.group), {}, wait_ms=LONG_MS)


def main(source: BinaryIO) -> None:
    """Keep the leases of the source that writes to this pipe, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the driver decides, and its end is the end here
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
                keeper.hear(each)
                if "group" in each:  # the query may have been away for nearly as long as its leases go
                    next_beat = steady()
            if steady() >= next_beat and not lines.ended:
                next_beat = steady() + beat_s
                _carefully(keeper.beat)
            if not lines.ended:
                _carefully(keeper.watch)
            said = lines.wait(pause_s)
        _carefully(keeper.finish)


def _carefully(do: Any) -> None:
    """Try it; what fails now may work next time, and nothing here is worth ending a query for."""
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
        self._read: list[dict[str, Any]] = []  # and not yet returned
        self.ended = False  #: the query is gone

    def wait(self, seconds: float | None) -> list[dict[str, Any]] | None:
        """Return what came within so many seconds (None: however long it takes), or None at the end of the pipe."""
        if not self._read and not self.ended:
            self._fill(seconds)
        found, self._read = self._read, []
        return None if self.ended and not found else found

    def pause(self, seconds: float) -> None:
        """Wait so many seconds. Raises QueryEnded if the pipe ends meanwhile; if it had ended before, this only waits."""
        if self.ended:
            block(seconds)
            return
        until = steady() + seconds
        while (left := until - steady()) > 0:
            self._fill(left)
            if self.ended:
                raise QueryEnded

    def _fill(self, seconds: float | None) -> None:
        """Read once, if something comes within so many seconds."""
        ready, _, _ = select.select([self._pipe], [], [], seconds)
        if not ready:
            return
        content = os.read(self._pipe, 1 << 16)
        self.ended = not content
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._read += [json.loads(line) for line in lines]


if __name__ == "__main__":
    main(sys.stdin.buffer)
