"""The plug is pulled at thousands of moments of a real run of the real store: whatever was answered is there."""

from __future__ import annotations

import os
import random
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.core.durability import Durability
from penstock.core.errors import StoreIncompatible
from penstock.core.job import JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack
from penstock.engine.jobs.update import MoveJob
from penstock.store import sync_mark_file
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.store import FILE_NAME
from penstock.store.sqlite.sync_mark import MarkFile
from penstock.store.sync_mark_file import MARK_NAME
from tests.support.engines import QUEUE
from tests.support.powercut import Event, Recorder, RecordingVfs

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261115"))
CUTS_PER_MODE = 250


class Promise(NamedTuple):
    """What an answer promised: the job is in one of these states.

    The one that was answered, or one to which a command leads that was given next and is not answered yet.
    """

    job: int
    states: tuple[State, ...]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Records what happens to the mark as well, which SQLite does not write."""
    recorder = Recorder()
    real_sync = MarkFile._sync

    def write_at(fd: int, data: bytes, offset: int) -> None:
        recorder.events.append(Event("write", MARK_NAME, offset, bytes(data)))
        real_write(fd, data, offset)

    def sync(self: MarkFile) -> None:
        began = len(recorder.events)
        real_sync(self)
        recorder.synced(MARK_NAME, began)

    real_write = sync_mark_file.write_at
    monkeypatch.setattr(sync_mark_file, "write_at", write_at)
    monkeypatch.setattr(MarkFile, "_sync", sync)
    return recorder


async def record(directory: Path, clock: ManualClock, recorder: Recorder, *, durability: Durability) -> int:
    """Run a mixed workload and note every answer; return where in the recording it begins."""
    vfs = RecordingVfs(f"recording-{directory.name}", recorder)

    def fdatasync(fd: int) -> None:
        began = len(recorder.events)
        os.fdatasync(fd)
        recorder.synced(f"{FILE_NAME}-wal", began)

    store = await SqliteStore.open(directory, clock, vfs=vfs.name, fdatasync=fdatasync, ballast_bytes=0)
    store.checkpointer.every(60)
    engine = Engine(store, clock, durability=durability)
    start = len(recorder.events)
    rng = random.Random(SEED)
    for _ in range(120):
        new = [
            JobSpec(rng.randbytes(rng.randrange(10, 900)), max_attempts=rng.choice((1, 3)))
            for _ in range(rng.randrange(1, 12))
        ]
        for job in await engine.run(Push(QUEUE, new)):
            recorder.mark(Promise(job.id, (State.WAITING, State.ACTIVE)))
        for job, _ in await engine.run(Claim(QUEUE, rng.randrange(1, 8))):
            recorder.mark(Promise(job.id, (State.ACTIVE, State.COMPLETED, State.DELAYED, State.DEAD, State.NOWHERE)))
            action = rng.random()
            if action < 0.6:
                await engine.run(Ack("default", [LeaseRef(job.id)], [b"done"]))
                recorder.mark(Promise(job.id, (State.COMPLETED,)))
            elif action < 0.8:
                await engine.run(Nack("default", [LeaseRef(job.id)], "broken"))
                final = job.max_attempts == 1
                recorder.mark(Promise(job.id, (State.DEAD,) if final else (State.DELAYED,)))
            elif action < 0.9:
                await engine.run(MoveJob("default", job.id, Arrow.CANCEL))
                recorder.mark(Promise(job.id, (State.NOWHERE,)))
    await engine.close()
    await store.close()
    return start


class Outcome(NamedTuple):
    cuts: int
    promises: int
    broken: int
    unreadable: int
    refused: int  #: a start refused a store that had lost nothing


async def pull_the_plug(tmp_path: Path, clock: ManualClock, recorder: Recorder, start: int, mode: str) -> Outcome:
    """Cut the power at many moments and look at what a new start finds."""
    rng = random.Random(f"{SEED}-{mode}")
    promises = broken = unreadable = refused = 0
    for cut in range(CUTS_PER_MODE):
        until = rng.randrange(start, len(recorder.events))
        directory = tmp_path / f"{mode}-{cut}"
        directory.mkdir()
        for name, content in recorder.image(until, mode, rng).items():
            if not name.endswith("-shm"):
                (directory / name).write_bytes(content)
        latest = {promise.job: promise for promise in recorder.marks(until)}
        promises += len(latest)
        if cut % 2:  # the other half shows that SQLite alone finds everything
            try:
                await (await SqliteStore.open(directory, clock, ballast_bytes=0)).close()
            except StoreIncompatible as error:
                print(f"cut at {until}: {error}")
                refused += 1
        found = read_states(directory / FILE_NAME)
        if found is None:
            unreadable += 1
            broken += len(latest)
            continue
        for promise in latest.values():
            broken += found.get(promise.job, State.NOWHERE) not in promise.states
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
    return Outcome(CUTS_PER_MODE, promises, broken, unreadable, refused)


def read_states(path: Path) -> dict[int, State] | None:
    """Read with a library that is not ours what is in the file; None if it is damaged."""
    try:
        db = sqlite3.connect(path)
        try:
            if db.execute("pragma integrity_check").fetchone() != ("ok",):
                return None
            return {job: State(state) for job, state in db.execute("select id, state from jobs")}
        finally:
            db.close()
    except sqlite3.DatabaseError:
        return None


@pytest.mark.parametrize("mode", ["drop", "subset", "torn"])
async def test_with_always_a_power_cut_breaks_no_promise(
    tmp_path: Path, clock: ManualClock, recorder: Recorder, mode: str
) -> None:
    start = await record(tmp_path / f"always-{mode}", clock, recorder, durability=Durability.ALWAYS)
    outcome = await pull_the_plug(tmp_path, clock, recorder, start, mode)
    print(f"seed {SEED}, {mode}: {outcome}")
    assert outcome.promises > 20_000
    assert (outcome.broken, outcome.unreadable, outcome.refused) == (0, 0, 0)


async def test_without_the_sync_promises_are_broken_so_the_test_can_fail(
    tmp_path: Path, clock: ManualClock, recorder: Recorder
) -> None:
    start = await record(tmp_path / "never-drop", clock, recorder, durability=Durability.NEVER)
    outcome = await pull_the_plug(tmp_path, clock, recorder, start, "drop")
    print(f"seed {SEED}, control: {outcome}")
    assert outcome.broken > outcome.promises * 0.01
    assert (outcome.unreadable, outcome.refused) == (0, 0)


async def test_a_store_cut_off_at_its_very_creation_is_created_anew(
    tmp_path: Path, clock: ManualClock, recorder: Recorder
) -> None:
    directory = tmp_path / "creation"
    vfs = RecordingVfs("recording-creation", recorder)
    store = await SqliteStore.open(directory, clock, vfs=vfs.name, ballast_bytes=0)
    await store.close()
    rng = random.Random(SEED)
    events: list[Any] = recorder.events
    for cut in range(0, len(events), 3):
        image = tmp_path / f"creation-{cut}"
        image.mkdir()
        for name, content in recorder.image(cut, rng.choice(("drop", "subset", "torn")), rng).items():
            if not name.endswith("-shm"):
                (image / name).write_bytes(content)
        again = await SqliteStore.open(image, clock, ballast_bytes=0)
        await again.close()
