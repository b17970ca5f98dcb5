"""The feed tells what was committed, in order, to whoever listens, and costs nothing while nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.events import EventKind
from penstock.core.job import JobFlag
from penstock.engine.event_feed import UNNUMBERED, RemovedResults
from tests.support.engines import ack, claim_job, push

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
    from penstock.store.contract import JournalBlock

pytestmark = pytest.mark.anyio


async def test_a_listener_hears_what_the_journal_keeps(engine: Engine) -> None:
    heard: list[JournalBlock] = []
    end = engine.feed.listen(heard.append)
    job = await push(engine)
    await claim_job(engine)
    await ack(engine, job)
    end()
    await push(engine)
    kept = await engine.store.journal_read(0, 100)
    assert [(block.seq, block.at, [list(event) for event in block.events]) for block in heard] == [
        (block.seq, block.at, block.events) for block in kept[:3]
    ]
    assert [event[0] for block in heard for event in block.events] == [
        EventKind.QUEUE_CREATED, EventKind.JOB_PUSHED, EventKind.JOB_ACTIVE, EventKind.JOB_COMPLETED,
    ]  # fmt: skip
    assert set(heard[0].queues.values()) == {("default", "mail")}


async def test_what_is_not_kept_is_passed_on_without_a_number(engine: Engine) -> None:
    heard: list[JournalBlock] = []
    assert not engine.feed.has_listeners
    engine.feed.listen(heard.append)
    engine.feed.publish_transient(EventKind.WORKER_HEARTBEAT, {"workerId": "w"}, 5)
    assert [(block.seq, block.at, list(block.events)) for block in heard] == [
        (UNNUMBERED, 5, [(EventKind.WORKER_HEARTBEAT, 0, 0, None, {"workerId": "w"})])
    ]


async def test_a_listener_that_fails_keeps_nobody_else_from_hearing(engine: Engine) -> None:
    heard: list[JournalBlock] = []

    def fails(_block: JournalBlock) -> None:
        raise RuntimeError

    end = engine.feed.listen(fails)
    engine.feed.listen(heard.append)
    await push(engine)
    end()
    end()
    await push(engine)
    assert len(heard) == 2


async def test_results_of_removed_jobs_are_kept_only_while_somebody_listens(engine: Engine) -> None:
    unheard = await push(engine, flags=JobFlag.REMOVE_ON_COMPLETE)
    await claim_job(engine)
    await ack(engine, unheard, b"1")
    engine.feed.listen(lambda _: None)
    removed, kept = await push(engine, flags=JobFlag.REMOVE_ON_COMPLETE), await push(engine)
    for job, result in ((removed, b"2"), (kept, b"3")):
        await claim_job(engine)
        await ack(engine, job, result)
    assert [engine.feed.removed.get(job.id) for job in (unheard, removed, kept)] == [None, b"2", None]


def test_what_is_kept_of_removed_jobs_has_limits() -> None:
    removed = RemovedResults()
    removed.keep(1, b"x" * (limits.event_data_bytes_max + 1))
    assert removed.get(1) is None
    for number in range(2, limits.removed_results_max + 3):
        removed.keep(number, b"x")
    assert (removed.get(2), removed.get(3)) == (None, b"x")
    large = limits.event_data_bytes_max
    for number in range(20_000, 20_009):
        removed.keep(number, b"x" * large)
        removed.keep(number, b"x" * large)
    assert [removed.get(number) is None for number in (limits.removed_results_max, 20_000, 20_001)] == [True, True, False]
