"""Flows: a job waits for those it needs, and goes on, or not, in the transaction in which the last of them ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import InvalidInput, JobNotFound
from penstock.core.events import EventKind
from penstock.core.flow import Need
from penstock.core.ids import to_uuid
from penstock.core.job import DeathReason, JobFlag, NewJob, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import Counts, QueueKey
from penstock.engine import admin, sweep
from penstock.engine.flows import Adopt, CancelChildren, Unneed
from penstock.engine.produce import Push
from tests.support.engines import QUEUE, ack, claim, claim_job, fail, move, push, state, stored

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import Job
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

CHILDREN = QueueKey("default", "children")


async def child(engine: Engine, **options: Any) -> Job:
    return await push(engine, queue=CHILDREN, **options)


async def complete(engine: Engine, job: Job, result: bytes | None = b"1") -> None:
    claimed = await claim_job(engine, queue=CHILDREN)
    assert claimed.id == job.id
    assert await ack(engine, job, result) is None


async def kill(engine: Engine, job: Job, error: str = "broken") -> None:
    await claim_job(engine, queue=CHILDREN)
    assert await fail(engine, job, error) is None


async def told(engine: Engine, *kinds: EventKind) -> list[Any]:
    blocks = await engine.store.journal_read(0, 1_000)
    return [event[4] for block in blocks for event in block.events if event[0] in kinds]


async def test_a_job_waits_until_all_it_needs_have_completed(engine: Engine) -> None:
    first, second = await child(engine), await child(engine)
    parent = await push(engine, needs=(first.id, second.id))
    assert await state(engine, parent) is State.WAITING_CHILDREN
    assert engine.store.totals() == Counts(waiting=2, waiting_children=1)
    await complete(engine, first, b'"one"')
    assert await claim(engine) is None
    waiting = asyncio.ensure_future(claim_job(engine, wait_ms=60_000))
    await complete(engine, second, b'"two"')
    assert (await waiting).id == parent.id  # whoever waits gets it in the very transaction of the last ack
    assert [(need.needs, need.state, need.result) for need in await engine.store.need_list(parent.id)] == [
        (first.id, Need.DONE, b'"one"'),
        (second.id, Need.DONE, b'"two"'),
    ]
    payload = {"parentJobId": to_uuid(parent.id), "queue": "mail", "childrenCount": 2}
    assert await told(engine, EventKind.FLOW_COMPLETED) == [payload]


async def test_what_has_completed_already_counts(engine: Engine) -> None:
    done = await child(engine)
    await complete(engine, done, b"5")
    parent = await push(engine, needs=(done.id,))
    assert (await claim_job(engine)).id == parent.id
    (need,) = await engine.store.need_list(parent.id)
    assert (need.state, need.result) == (Need.DONE, b"5")


async def test_results_outlive_children_that_are_removed_when_complete(engine: Engine) -> None:
    gone = await child(engine, flags=JobFlag.REMOVE_ON_COMPLETE)
    parent = await push(engine, needs=(gone.id,))
    await complete(engine, gone, b"7")
    assert await state(engine, gone) is State.NOWHERE
    (need,) = await engine.store.need_list(parent.id)
    assert (need.state, need.result) == (Need.DONE, b"7")


async def test_a_chain_a_diamond_and_own_ids_in_one_bulk(engine: Engine) -> None:
    wanted = [
        NewJob(b"1", job_id="a"),
        NewJob(b"2", job_id="b", needs=("a",)),
        NewJob(b"3", job_id="c", needs=("a",)),
        NewJob(b"4", job_id="d", needs=("b", "c", "b")),
    ]
    jobs = await engine.run(Push(QUEUE, wanted))
    order = []
    while (claimed := await claim(engine)) is not None:
        order.append(claimed.job.custom_id)
        await ack(engine, claimed.job)
    assert order == ["a", "b", "c", "d"]
    assert [await state(engine, job) for job in jobs] == [State.COMPLETED] * 4


@pytest.mark.parametrize(
    ("needs", "error"),
    [
        (("nobody",), "Dependency job not found: nobody"),
        ((12345,), f"Dependency job not found: {to_uuid(12345)}"),
        (("me",), "A job cannot depend on itself"),
        (("later",), "Dependency job not found: later"),
    ],
)
async def test_a_need_that_names_nobody_is_refused_and_stores_nothing(
    engine: Engine, needs: tuple[int | str, ...], error: str
) -> None:
    with pytest.raises(InvalidInput, match=error):
        await engine.run(Push(QUEUE, [NewJob(b"1", job_id="me", needs=needs), NewJob(b"2", job_id="later", needs=("me",))]))
    assert engine.store.totals() == Counts()


async def test_a_delay_runs_on_while_a_job_waits_for_others(engine: Engine, clock: ManualClock) -> None:
    needed = await child(engine)
    parent = await push(engine, needs=(needed.id,), delay=10_000)
    await clock.advance(4_000)
    await complete(engine, needed)
    assert await state(engine, parent) is State.DELAYED
    await clock.advance(6_000)
    assert (await claim_job(engine)).id == parent.id


@pytest.mark.parametrize(
    ("policy", "ends_as", "need"),
    [
        (0, State.WAITING_CHILDREN, Need.FAILED),
        (JobFlag.FAIL_PARENT, State.DEAD, Need.FAILED),
        (JobFlag.IGNORE_FAILURE, State.WAITING_CHILDREN, Need.IGNORED),
        (JobFlag.DROP_DEPENDENCY, State.WAITING_CHILDREN, Need.DROPPED),
        (JobFlag.CONTINUE_PARENT, State.WAITING, Need.IGNORED),
    ],
)
async def test_what_the_failure_of_a_child_means(engine: Engine, policy: int, ends_as: State, need: Need) -> None:
    failing, other = await child(engine, flags=policy, max_attempts=1, priority=1), await child(engine)
    parent = await push(engine, needs=(failing.id, other.id))
    await kill(engine, failing)
    assert await state(engine, parent) is ends_as
    (found,) = [each for each in await engine.store.need_list(parent.id) if each.needs == failing.id]
    assert (found.state, found.error) == (need, "broken")
    (payload,) = await told(engine, EventKind.FLOW_FAILED)
    assert payload == {
        "parentJobId": to_uuid(parent.id), "failedChildId": to_uuid(failing.id), "queue": "mail", "error": "broken",
    }  # fmt: skip
    if ends_as is State.WAITING_CHILDREN:
        await complete(engine, other)
        expected = State.WAITING_CHILDREN if policy == 0 else State.WAITING
        assert await state(engine, parent) is expected
    if ends_as is State.DEAD:
        dead = await stored(engine, parent)
        assert dead is not None
        details = details_of(dead)
        assert details.error == f"Child job {to_uuid(failing.id)} failed: broken"
        assert details.reason == DeathReason.CHILD_FAILED


async def test_a_failure_goes_up_the_whole_chain(engine: Engine) -> None:
    bottom = await child(engine, flags=JobFlag.FAIL_PARENT, max_attempts=1)
    middle = await push(engine, needs=(bottom.id,), flags=JobFlag.FAIL_PARENT)
    top = await push(engine, needs=(middle.id,))
    await kill(engine, bottom)
    assert [await state(engine, job) for job in (bottom, middle, top)] == [State.DEAD] * 3


async def test_a_child_that_is_brought_back_and_completes_fulfils_it_after_all(engine: Engine) -> None:
    needed = await child(engine, max_attempts=1)
    parent = await push(engine, needs=(needed.id,))
    await kill(engine, needed)
    await move(engine, needed, Arrow.REVIVE)
    await complete(engine, needed)
    assert await state(engine, parent) is State.WAITING


@pytest.mark.parametrize("arrow", [Arrow.CANCEL, Arrow.DISCARD])
async def test_a_child_that_is_gone_has_failed(engine: Engine, arrow: Arrow) -> None:
    needed = await child(engine, flags=JobFlag.FAIL_PARENT)
    parent = await push(engine, needs=(needed.id,))
    await move(engine, needed, arrow)
    assert await state(engine, parent) is State.DEAD


async def test_a_failed_need_is_taken_as_it_is_at_the_push(engine: Engine) -> None:
    hopeless = await child(engine, flags=JobFlag.FAIL_PARENT, max_attempts=1)
    await kill(engine, hopeless)
    with pytest.raises(InvalidInput, match="Dependency job has failed"):
        await push(engine, needs=(hopeless.id,))
    tolerated = await child(engine, flags=JobFlag.CONTINUE_PARENT, max_attempts=1)
    await kill(engine, tolerated)
    still = await child(engine)
    assert await state(engine, await push(engine, needs=(tolerated.id, still.id))) is State.WAITING


async def test_one_that_waits_can_be_cancelled_discarded_edited_and_expires(engine: Engine, clock: ManualClock) -> None:
    needed = await child(engine)
    cancelled, discarded, expiring = [await push(engine, needs=(needed.id,), ttl=ttl) for ttl in (None, None, 1_000)]
    await move(engine, cancelled, Arrow.CANCEL)
    await move(engine, discarded, Arrow.DISCARD)
    await clock.advance(1_000)
    states = [await state(engine, job) for job in (cancelled, discarded, expiring)]
    assert states == [State.NOWHERE, State.DEAD, State.NOWHERE]
    await complete(engine, needed)
    assert engine.store.totals() == Counts(completed=1, dead=1)


async def test_dependencies_can_be_dropped_and_children_cancelled(engine: Engine) -> None:
    one, two = await child(engine), await child(engine)
    parent = await push(engine, needs=(one.id, two.id))
    assert await engine.run(Unneed("default", one.id)) is True
    assert await engine.run(Unneed("default", one.id)) is False
    assert await engine.run(CancelChildren("default", parent.id)) == 1
    assert await state(engine, two) is State.NOWHERE
    assert await state(engine, parent) is State.WAITING
    with pytest.raises(JobNotFound):
        await engine.run(Unneed("default", "nobody"))


async def test_nobody_becomes_its_own_ancestor(engine: Engine) -> None:
    a, b, c = [await push(engine) for _ in range(3)]
    await engine.run(Adopt("default", b.id, a.id))
    await engine.run(Adopt("default", c.id, b.id))
    for child_, parent in ((a, c), (a, a), (b, c)):
        with pytest.raises(InvalidInput, match="its own ancestor"):
            await engine.run(Adopt("default", child_.id, parent.id))
    found = await stored(engine, c)
    assert found is not None
    assert details_of(found).parent == to_uuid(b.id)


@pytest.mark.parametrize(
    "policy", [0, JobFlag.FAIL_PARENT, JobFlag.CONTINUE_PARENT, JobFlag.IGNORE_FAILURE, JobFlag.DROP_DEPENDENCY]
)
@pytest.mark.parametrize("where", ["waiting", "delayed", "active"])
async def test_obliterating_a_queue_takes_parents_that_are_let_go_by_it(engine: Engine, where: str, policy: int) -> None:
    needed = await push(engine, flags=policy, delay=60_000 if where == "delayed" else 0)
    if where == "active":
        await claim_job(engine)
    parent = await push(engine, needs=(needed.id,), flags=policy)
    await push(engine, needs=(parent.id,))
    assert await admin.obliterate(engine, QUEUE) == 3
    assert engine.store.totals() == Counts()
    assert engine.store.queue_find(QUEUE) is None


async def test_a_child_that_a_claim_finds_expired_lets_its_parent_go(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = await child(engine, ttl=1_000, flags=JobFlag.DROP_DEPENDENCY)
    parent = await push(engine, needs=(needed.id,))
    engine.timer.stop()

    async def too_much_to_do(_engine: object, work: Any) -> None:
        await work.flush()

    monkeypatch.setattr(sweep, "sweep", too_much_to_do)
    await clock.advance(1_000)
    assert await claim(engine, queue=CHILDREN) is None
    assert await state(engine, needed) is State.NOWHERE
    assert await state(engine, parent) is State.WAITING
