"""The feed tells what was committed, in order, to whoever listens, and costs nothing while nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.events import EventKind
from penstock.engine.feed import UNNUMBERED
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
    assert not engine.feed.is_heard
    engine.feed.listen(heard.append)
    engine.feed.pass_on(EventKind.WORKER_HEARTBEAT, {"workerId": "w"}, 5)
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
