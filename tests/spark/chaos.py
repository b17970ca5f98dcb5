"""A driver that is killed at chosen moments, again and again, and what must hold at the end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable

from penstock.lake.location import Lake
from penstock.lake.tables import EVENTS, JOBS, MINUTES
from penstock.lake.writer import mark_of, shard_mark
from penstock.spark import options
from penstock.spark.http_client import BulkClient
from tests.spark.driver import BATCH, LEASE
from tests.spark.tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.server import ServerProcess

#: For each query: requests to kill at (before they reach the server, or after they took effect), and files to kill after.
REQUESTS = {
    "queue": ["/claim", "/read", "/stages/", "/commits", "/ack"],
    "delta": ["/claim", "/read", "/ack"],
    "lake": ["/bulk/journal"],
}
FILES = {
    "queue": ["queue/offsets/{}", "queue/commits/{}"],
    "delta": ["delta/offsets/{}", "delta/commits/{}", "table/_delta_log/{:020}.json"],
    "lake": [f"lake/{table}/_delta_log/{{:020}}.json" for table in ("bronze/events", "silver/attempts", "gold/backlog")],
}
WAIT_S = 600


def until(condition: Callable[[], bool], pause_s: float = 0.05) -> None:
    """Wait for something that another process does."""
    waiting = threading.Event()
    for _ in range(int(WAIT_S / pause_s)):
        if condition():
            return
        waiting.wait(pause_s)
    raise AssertionError("it did not happen")


def counts(server: ServerProcess, queue: str) -> dict[str, int]:
    with server.client() as client:
        found: dict[str, int] = client.get(f"/queues/{queue}/counts").json()["counts"]
        return found


def fill(server: ServerProcess, queue: str, values: Iterable[str], name: str = "", **params: int) -> None:
    """Put jobs on a queue. ``name``: of this filling, if there are several. ``params``: of the jobs."""
    table = pa.table({"value": list(values)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    txn = f"{queue}.{name}"
    with server.client() as client:
        staged = client.post(f"/bulk/stages/{txn}", params={"queue": queue, **params}, content=sink.getvalue().to_pybytes())
        staged.raise_for_status()
        client.post("/bulk/commits", json={"key": txn, "txns": [txn], "wait_ms": 30_000}).raise_for_status()


def values_of(server: ServerProcess, queue: str, token: str | None = None) -> list[str]:
    """Return the payloads of a queue, in whatever state, sorted."""
    with BulkClient(options.for_batch({"url": server.url, "table": "jobs"})) as wire:
        if token is not None:
            wire.http.headers["authorization"] = f"Bearer {token}"
        taken = wire.post("/bulk/snapshots", {"table": "jobs", "queues": [queue]})
        parts = [f"/bulk/snapshots/{taken['id']}/parts/{each['part']}" for each in taken["parts"]]
        return sorted(
            value.decode() for part in parts for rows in wire.rows(part) for value in rows.column("value").to_pylist()
        )


class Driver:
    """A driver in a process of its own."""

    def __init__(self, log: Path, module: str, *args: str) -> None:
        self._log = log.open("ab")
        command = [sys.executable, "-m", module, *args]
        self._mark = f"PENSTOCK_CHAOS_DRIVER={uuid.uuid4()}"
        env = os.environ | dict([self._mark.split("=")])
        self._process = subprocess.Popen(command, start_new_session=True, stdout=self._log, stderr=self._log, env=env)

    def kill(self, *, everything: bool = False) -> None:
        """Kill it and its Java; and ``everything`` that it started, as if the machine had died."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        while everything and (doomed := self._started()):  # again, for what was started meanwhile
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _started(self) -> list[int]:
        """Return the processes that it started, those it has let go as well: all have what it has in its environment."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
        return found

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        try:
            return self._process.wait(WAIT_S)
        finally:
            self.kill()
            self._process.wait()
            self._log.close()


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


class Chaos:
    """Some queries in one driver, on one server, with jobs that keep coming."""

    lease = LEASE
    #: Of the jobs it makes.
    params: ClassVar[dict[str, int]] = {}

    def __init__(self, server: ServerProcess, place: Path, names: list[str], seed: str) -> None:
        self.server, self.place, self.names = server, place, names
        self.chance = random.Random(seed)
        self.made = 0
        self.killed: Counter[str] = Counter()
        self.log = place / "driver.log"
        self._most = 30  #: requests of a round that it may be killed at; fewer once a round was seen that had fewer
        requests = [(part, after) for name in names for part in REQUESTS[name] for after in (False, True)]
        files = [(file, None) for name in names for file in FILES[name]]
        #: Every kind of moment before any a second time; the empty one is any request at all.
        self.moments: list[tuple[str, bool | None]] = [*dict.fromkeys(requests), *files, ("", False), ("", True)]
        self.chance.shuffle(self.moments)

    @property
    def wanted(self) -> list[str]:
        """The payloads of all jobs, sorted."""
        return sorted(f"m{number}" for number in range(self.made))

    def more(self, batches: int) -> None:
        """Put jobs on the queues."""
        values = [f"m{number}" for number in range(self.made, self.made + batches * BATCH)]
        for name in self.names:
            fill(self.server, f"in-{name}", values, str(self.made), **self.params)
        self.made += len(values)

    def run(self, kills: int) -> None:
        """Kill the driver so many times, each at another moment, then let it finish."""
        with Tap(self.server.port) as tap:
            for number in range(kills):
                moment = self.moments[number % len(self.moments)]
                for _ in range(5):
                    self.more(3)
                    if self._round(tap, *moment):
                        break
                else:
                    raise AssertionError(f"it always finished before {moment}: {self.log.read_text()[-2000:]}")
            tap.clear()
            self.more(1)
            assert self._driver(tap).wait() == 0, self.log.read_text()[-4000:]

    def _driver(self, tap: Tap) -> Driver:
        return Driver(self.log, "tests.spark.driver", ",".join(self.names), tap.url, str(self.place), self.lease)

    def _round(self, tap: Tap, what: str, after: bool | None, *, everything: bool | None = None) -> bool:
        """Run the driver until a moment comes. Return whether it came."""
        tap.clear()
        if everything is None:
            everything = self.chance.random() < 0.5
        came = threading.Event()
        asked = len(tap.paths)
        driver = self._driver(tap)

        def kill() -> None:
            driver.kill(everything=everything)
            came.set()

        nth = self.chance.randint(1, 2)
        if after is None:
            there = sum(self._there(what, number) for number in range(10_000))
            until(lambda: self._there(what, there + nth - 1) or driver.ended(), 0.002)
            if not driver.ended():
                kill()
        else:
            nth = nth if what else self.chance.randint(1, self._most)
            # What dies with everything says nothing any more; its keeper would, on noticing that it is alone.
            tap.at(what, after=after, nth=nth, do=kill, last=everything)
        driver.wait()
        if not came.is_set() and not what:
            self._most = max(1, len(tap.paths) - asked)
        if came.is_set():
            self.killed[f"{what or 'any request'} {'file' if after is None else 'after' if after else 'before'}"] += 1
        return came.is_set()

    def _there(self, file: str, number: int) -> bool:
        return (self.place / file.format(number)).exists()

    def _check_queues(self) -> None:
        """Everything is acknowledged, and nothing is held."""
        for name in self.names:
            queue = f"in-{name}"
            if name == "lake":  # nobody takes these
                assert counts(self.server, queue)["waiting"] == self.made
                continue
            until(lambda queue=queue: counts(self.server, queue)["completed"] == self.made)  # type: ignore[misc]
            left = {state: number for state, number in counts(self.server, queue).items() if number}
            assert left == {"completed": self.made}, left
        with self.server.client() as client:
            groups: list[dict[str, Any]] = client.get("/bulk/groups").json()
        assert all(each["in_flight"] == 0 and each["epochs"] == [] for each in groups), groups

    def _check_lake(self) -> None:
        """The lake has every event of the journal once, up to where it says, and has counted each once."""
        lake = Lake(self.place / "lake")
        place = mark_of(lake.open(EVENTS), shard_mark("0"))
        assert place is not None
        kinds: Counter[str] = Counter()
        with BulkClient(options.for_batch({"url": self.server.url, "table": "journal", "namespace": "*"})) as wire:
            for rows in wire.rows("/bulk/journal", shard=0, **{"from": 1, "to": place}):
                kinds.update(rows.column("kind").to_pylist())
        events = lake.read(EVENTS, columns=["seq", "kind"])
        assert sorted(events["seq"].to_pylist()) == list(range(1, place))
        assert Counter(events["kind"].to_pylist()) == kinds
        minutes = lake.read(MINUTES)
        told = {name: sum(minutes[name].to_pylist()) for name in ("arrivals", "completions")}
        assert told == {"arrivals": kinds["job:pushed"], "completions": kinds["job:completed"]}
        assert kinds["job:pushed"] >= self.made * len(self.names)
        assert lake.read(JOBS).num_rows == kinds["job:pushed"]

    def check(self) -> None:
        """Every job exactly once where it was to go, nothing held, nothing to come."""
        wanted = self.wanted
        self._check_queues()
        if "queue" in self.names:
            until(lambda: counts(self.server, "out")["waiting"] >= self.made)
            assert values_of(self.server, "out") == wanted
        if "delta" in self.names:
            rows = DeltaTable(str(self.place / "table")).to_pyarrow_table(columns=["value", "job_id"])
            assert sorted(rows["value"].to_pylist()) == wanted
            assert len(set(rows["job_id"].to_pylist())) == self.made
        if "lake" in self.names:
            self._check_lake()
