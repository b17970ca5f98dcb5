"""Damaged rows: noticed whenever they are read, put aside, never delivered; everything else goes on."""

from __future__ import annotations

import random
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core import limits
from penstock.core.durability import Durability
from penstock.core.errors import JobQuarantined
from penstock.core.events import EventKind
from penstock.core.lifecycle import State
from penstock.core.queue import StateCounts
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.jobs.update import EditData
from penstock.engine.queues.admin import Configure
from penstock.store.contract import Page
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.store import FILE_NAME
from tests.support.engines import QUEUE, ack, claim_all, push, push_many

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import ManualClock

pytestmark = pytest.mark.anyio


async def open_engine(directory: Path, clock: ManualClock) -> Engine:
    store = await SqliteStore.open(directory, clock, ballast_bytes=0)
    return Engine(store, clock, durability=Durability.NEVER)


async def shut(engine: Engine) -> None:
    await engine.close()
    await engine.store.close()


def damage(directory: Path, statement: str, *parameters: Any) -> None:
    """Change a stored row behind Penstock's back, without its checksum."""
    with sqlite3.connect(directory / FILE_NAME) as db:
        assert db.execute(statement, parameters).rowcount == 1
    db.close()


DAMAGES = {
    "payload": "update payloads set data = x'00' where id = ?",
    "options": "update payloads set options = x'7b7d' where id = ?",
    "missing payload": "delete from payloads where id = ?",
    "priority": "update jobs set priority = priority + 64 where id = ?",
    "attempts": "update jobs set attempts = 1 where id = ?",
    "owner": "update jobs set max_attempts = 2 where id = ?",
    "group": "update jobs set unique_key = 'other' where id = ?",
    "type": "update jobs set run_at = 'text' where id = ?",
    "broken text": "update jobs set custom_id = cast(x'ff' as text) where id = ?",
    "time": "update jobs set created_at = 5 where id = ?",
}


@pytest.mark.parametrize("statement", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_job_is_put_aside_and_the_others_are_delivered(
    tmp_path: Path, clock: ManualClock, statement: str
) -> None:
    engine = await open_engine(tmp_path, clock)
    jobs = await push_many(engine, 5)
    await shut(engine)
    damage(tmp_path, statement, jobs[2].id)
    engine = await open_engine(tmp_path, clock)
    with pytest.raises(JobQuarantined):
        await engine.store.job_get("default", jobs[2].id)
    assert [job.id for job in await claim_all(engine)] == [jobs[n].id for n in (0, 1, 3, 4)]
    assert engine.store.totals() == StateCounts(active=4)
    assert engine.store.status().quarantined == 1
    assert await engine.store.job_get("default", jobs[2].id) is None
    await shut(engine)
    engine = await open_engine(tmp_path, clock)
    assert engine.store.status().quarantined == 1
    await shut(engine)


async def test_damaged_jobs_among_many_that_are_settled_are_put_aside(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    jobs = await push_many(engine, 12)
    held = await claim_all(engine)
    await shut(engine)
    damage(tmp_path, DAMAGES["time"], jobs[2].id)
    damage(tmp_path, DAMAGES["broken text"], jobs[5].id)
    engine = await open_engine(tmp_path, clock)
    outcomes = await engine.run(Ack("default", [LeaseRef(job.id, job.token) for job in held], [None] * 12))
    assert [place for place, outcome in enumerate(outcomes) if outcome is not None] == [2, 5]
    assert engine.store.totals() == StateCounts(completed=10)
    assert engine.store.status().quarantined == 2
    await shut(engine)


def flip_state(directory: Path, job_id: int) -> None:
    """Flip one bit in the table's own page, so that a waiting job's row says "delayed" while the indexes say otherwise."""
    path = directory / FILE_NAME
    content = bytearray(path.read_bytes())
    key = bytearray(job_id.to_bytes(8, "big")[-1:])  # a row id is a big-endian number of base 128, the last byte whole
    rest = job_id >> 8
    while rest:
        key.insert(0, rest & 0x7F | 0x80)
        rest >>= 7
    start = -1
    while (start := content.find(key, start + 1)) >= 0:
        types = content[start + len(key) + 1 :][:13]  # behind the length of the header: the type of each column
        if types[0] == 0 and types[12] == 8:  # the id is the row id itself; the state is the constant 0
            content[start + len(key) + 1 + 12] ^= 1
            path.write_bytes(content)
            return
    raise AssertionError("the row was not found")


async def test_a_damaged_state_is_noticed_although_the_indexes_disagree(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    jobs = await push_many(engine, 3)
    await shut(engine)
    flip_state(tmp_path, jobs[1].id)
    engine = await open_engine(tmp_path, clock)
    assert [job.id for job in await claim_all(engine)] == [jobs[0].id, jobs[2].id]
    assert engine.store.totals() == StateCounts(active=2)
    assert engine.store.status().quarantined == 1
    await push(engine)
    await shut(engine)
    engine = await open_engine(tmp_path, clock)
    assert engine.store.totals() == StateCounts(waiting=1, active=2)
    await shut(engine)


async def test_a_damaged_job_is_left_out_of_listings(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    jobs = await push_many(engine, 3)
    await shut(engine)
    damage(tmp_path, DAMAGES["payload"], jobs[1].id)
    engine = await open_engine(tmp_path, clock)
    queue = engine.store.queue_find(QUEUE)
    assert queue is not None
    listed = await engine.store.job_page(Page(queue, (State.WAITING,), 10))
    assert [job.id for job, _ in listed] == [jobs[0].id, jobs[2].id]
    await shut(engine)


async def test_a_quarantined_job_is_told_and_kept_for_inspection(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    job = await push(engine, data=b"precious")
    await shut(engine)
    damage(tmp_path, DAMAGES["attempts"], job.id)
    engine = await open_engine(tmp_path, clock)
    assert await ack(engine, job) is not None
    blocks = await engine.store.journal_read(1, 100)
    assert blocks[-1].events[-1][0] == 18
    await shut(engine)
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        rows = db.execute("select id, reason, data from quarantine").fetchall()
    db.close()
    assert rows == [(job.id, "the job's row does not match its checksum", b"precious")]


@pytest.mark.slow
async def test_flipped_bits_anywhere_in_the_file_never_deliver_a_wrong_payload(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path / "good", clock)
    payloads = {}
    for number in range(400):
        data = f'{{"number":{number},"text":"{"x" * 150}"}}'.encode()
        payloads[(await push(engine, data=data)).id] = data
    await shut(engine)
    good = (tmp_path / "good" / FILE_NAME).read_bytes()
    rng = random.Random(20261115)
    noticed = 0
    for trial in range(150):
        directory = tmp_path / f"trial{trial}"
        directory.mkdir()
        bad = bytearray(good)
        bad[rng.randrange(100, len(bad))] ^= 1 << rng.randrange(8)
        (directory / FILE_NAME).write_bytes(bad)
        try:
            engine = await open_engine(directory, clock)
        except Exception:
            noticed += 1
            continue
        try:
            for job, payload in await engine.run(Claim(QUEUE, 1_000)):
                assert payload.data == payloads[job.id], f"trial {trial} delivered a damaged payload"
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
            noticed += 1
        noticed += engine.store.status().quarantined > 0
        await shut(engine)
    assert noticed > 30  # the others hit free space


async def test_a_damaged_active_job_gives_its_place_and_its_group_to_the_next(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    await engine.run(
        Configure(QUEUE, EventKind.CONCURRENCY_SET, lambda old: msgspec.structs.replace(old, concurrency=1), None)
    )
    first, second = await push_many(engine, 2, group_id="g")
    await claim_all(engine)
    await engine.close()
    await engine.store.close()
    damage(tmp_path, DAMAGES["attempts"], first.id)
    engine = await open_engine(tmp_path, clock)
    engine.start()
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await clock.advance(31_000)  # the lease ends, and the damage is seen
    await clock.advance(3_000)
    assert [delivery.job.id for delivery in await waiting] == [second.id]
    await shut(engine)


async def test_due_jobs_behind_a_damaged_one_are_not_stranded(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    jobs = await push_many(engine, limits.sweep_jobs_max + 500, delay=1_000)
    await shut(engine)
    damage(tmp_path, DAMAGES["attempts"], jobs[3].id)
    engine = await open_engine(tmp_path, clock)
    engine.start()
    await clock.advance(1_000)
    await clock.advance(1)
    assert engine.store.totals() == StateCounts(waiting=len(jobs) - 1)
    await shut(engine)


async def test_editing_a_damaged_payload_is_refused_and_the_job_put_aside(tmp_path: Path, clock: ManualClock) -> None:
    engine = await open_engine(tmp_path, clock)
    job = await push(engine)
    await shut(engine)
    damage(tmp_path, DAMAGES["payload"], job.id)
    engine = await open_engine(tmp_path, clock)
    with pytest.raises(JobQuarantined):
        await engine.run(EditData("default", job.id, b"2"))
    assert engine.store.status().quarantined == 1
    await shut(engine)
