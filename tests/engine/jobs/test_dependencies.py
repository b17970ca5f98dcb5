"""Flows: a job waits for those it needs, and goes on, or not, in the transaction in which the last of them ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.dependencies import Need
from penstock.core.durability import Durability
from penstock.core.errors import InvalidInput, JobNotFound
from penstock.core.events import EventKind
from penstock.core.ids import to_uuid
from penstock.core.job import DeathReason, JobFlag, JobSpec, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey, StateCounts
from penstock.core.sharding import shard_for
from penstock.engine import timers
from penstock.engine.engine import Engine
from penstock.engine.jobs.dependencies import Adopt, CancelChildren, DropDependency
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.queues import admin
from penstock.engine.queues.admin import MoveBatch
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.transaction import SqliteTransaction
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push, push_many, state, stored
from tests.support.fleets import Settled, fleet_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.dependencies import Dependency
    from penstock.core.job import JobRecord

pytestmark = pytest.mark.anyio

CHILDREN = QueueKey("default", "children")


@pytest.fixture(params=["one shard", "three shards"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Any]:
    """On three shards, children and parents live apart."""
    if request.param == "one shard":
        store = await SqliteStore.open(tmp_path / "data", clock, ballast_bytes=0, read_inline=True)
        running = Engine(store, clock, durability=Durability.NEVER)
        running.start()
        yield running
        await running.close()
        await store.close()
        return
    assert shard_for(QUEUE, 3) != shard_for(CHILDREN, 3)
    async with fleet_on(tmp_path, clock) as fleet:
        yield Settled(fleet)


async def child(engine: Engine, **options: Any) -> JobRecord:
    return await push(engine, queue=CHILDREN, **options)


async def complete(engine: Engine, job: JobRecord, result: bytes | None = b"1") -> None:
    claimed = await claim_job(engine, queue=CHILDREN)
    assert claimed.id == job.id
    assert await ack(engine, job, result) is None


async def kill(engine: Engine, job: JobRecord, error: str = "broken") -> None:
    await claim_job(engine, queue=CHILDREN)
    assert await fail(engine, job, error) is None


async def told(engine: Engine, *kinds: EventKind) -> list[Any]:
    blocks = [block for each in engine.engines for block in await each.store.journal_read(0, 1_000)]
    return [event[4] for block in blocks for event in block.events if event[0] in kinds]


async def test_a_job_waits_until_all_it_needs_have_completed(engine: Engine) -> None:
    first, second = await child(engine), await child(engine)
    parent = await push(engine, needs=(first.id, second.id))
    assert await state(engine, parent) is State.WAITING_CHILDREN
    assert engine.store.totals() == StateCounts(waiting=2, waiting_children=1)
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
        JobSpec(b"1", job_id="a"),
        JobSpec(b"2", job_id="b", needs=("a",)),
        JobSpec(b"3", job_id="c", needs=("a",)),
        JobSpec(b"4", job_id="d", needs=("b", "c", "b")),
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
        await engine.run(
            Push(QUEUE, [JobSpec(b"1", job_id="me", needs=needs), JobSpec(b"2", job_id="later", needs=("me",))])
        )
    assert engine.store.totals() == StateCounts()


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
        (JobFlag.CONTINUE_PARENT, State.WAITING, Need.CONTINUED),
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
    assert engine.store.totals() == StateCounts(completed=1, dead=1)


async def test_dependencies_can_be_dropped_and_children_cancelled(engine: Engine) -> None:
    one, two = await child(engine), await child(engine)
    parent = await push(engine, needs=(one.id, two.id))
    assert await engine.run(DropDependency("default", one.id)) is True
    assert await engine.run(DropDependency("default", one.id)) is False
    assert await engine.run(CancelChildren("default", parent.id)) == 1
    assert await state(engine, two) is State.NOWHERE
    assert await state(engine, parent) is State.WAITING
    with pytest.raises(JobNotFound):
        await engine.run(DropDependency("default", "nobody"))


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
    assert await admin.obliterate(engine.of(QUEUE), QUEUE) == 3
    assert engine.store.totals() == StateCounts()
    assert engine.store.queue_find(QUEUE) is None


async def test_a_child_that_a_claim_finds_expired_lets_its_parent_go(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = await child(engine, ttl=1_000, flags=JobFlag.DROP_DEPENDENCY)
    parent = await push(engine, needs=(needed.id,))
    engine.of(CHILDREN).timer.stop()

    async def too_much_to_do(_engine: object, work: Any) -> None:
        await work.flush()

    monkeypatch.setattr(timers, "sweep", too_much_to_do)
    await clock.advance(1_000)
    assert await claim(engine, queue=CHILDREN) is None
    assert await state(engine, needed) is State.NOWHERE
    assert await state(engine, parent) is State.WAITING


# Large flows: in slices.


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a batch do as little of a flow as it can."""
    monkeypatch.setattr(limits, "flow_needs_batch_max", 2)
    return 2


def unfollowed(engine: Engine) -> bool:
    return any(each.store.horizon.unfollowed for each in engine.engines)


async def states(engine: Engine, jobs: Sequence[JobRecord]) -> list[State]:
    return [await state(engine, job) for job in jobs]


async def test_a_long_chain_fails_in_slices_and_every_error_is_short_and_names_the_root(
    engine: Engine, clock: ManualClock
) -> None:
    length = 5 * limits.flow_levels_batch_max
    chain = [
        JobSpec(b"1", job_id=f"c{n}", needs=(f"c{n - 1}",) if n else (), flags=JobFlag.FAIL_PARENT, ttl=None if n else 1_500)
        for n in range(length)
    ]
    jobs = await engine.run(Push(QUEUE, chain))
    await clock.advance(1_500)
    assert engine.store.totals() == StateCounts(dead=length - 1)
    last = await stored(engine, jobs[-1])
    assert last is not None
    assert details_of(last).error == "Child job c0 failed: the job was gone before it completed (expire)"
    blocks = await engine.of(QUEUE).store.journal_read(0, 1_000)
    failures = [sum(event[0] == EventKind.JOB_FAILED for event in block.events) for block in blocks]
    assert max(failures) <= limits.flow_levels_batch_max + 1
    assert not unfollowed(engine)
    assert await claim(engine) is None  # and everything else goes on


async def test_what_a_batch_had_no_room_for_is_done_after_a_restart_in_order(
    tmp_path: Path, clock: ManualClock, small_slices: int
) -> None:
    async def start() -> Engine:
        store = await SqliteStore.open(tmp_path, clock, ballast_bytes=0, read_inline=True)
        return Engine(store, clock, durability=Durability.NEVER)

    engine = await start()
    needed = await child(engine, flags=JobFlag.REMOVE_ON_COMPLETE)
    parents = await push_many(engine, 7, needs=(needed.id,))
    await complete(engine, needed, b'"kept"')
    waiting = [State.WAITING_CHILDREN] * (7 - small_slices)
    assert await states(engine, parents) == [State.WAITING] * small_slices + waiting
    await engine.close()
    await engine.store.close()
    engine = await start()
    assert unfollowed(engine)
    engine.start()
    await clock.advance(0)
    assert [job.id for job in await claim_all(engine)] == [job.id for job in parents]
    for parent in parents:
        (need,) = await engine.store.need_list(parent.id)
        assert (need.state, need.result) == (Need.DONE, b'"kept"')
    assert not unfollowed(engine)
    await engine.close()
    await engine.store.close()


@pytest.mark.usefixtures("small_slices")
async def test_a_small_flow_does_not_wait_for_a_large_one(engine: Engine) -> None:
    large, small = await child(engine), await child(engine)
    parents = await push_many(engine, 30, needs=(large.id,))
    parent = await push(engine, needs=(small.id,))
    await complete(engine, large)
    await complete(engine, small)
    assert unfollowed(engine)
    assert await state(engine, parent) is State.WAITING
    assert await state(engine, parents[-1]) is State.WAITING_CHILDREN


async def test_the_ends_of_one_job_are_told_in_order_and_only_to_those_who_were_there(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "flow_needs_batch_max", 1)
    needed = await child(engine, flags=JobFlag.FAIL_PARENT, max_attempts=1)
    early = await push_many(engine, 20, needs=(needed.id,))
    await kill(engine, needed)
    await move(engine, needed, Arrow.REVIVE)
    late = await push(engine, needs=(needed.id,))
    await complete(engine, needed)
    assert unfollowed(engine)
    await clock.advance(0)
    assert await states(engine, early) == [State.DEAD] * 20
    assert await state(engine, late) is State.WAITING


async def test_results_that_are_copied_are_bounded_too(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "flow_bytes_batch_max", 1_000)
    needed = await child(engine)
    parents = await push_many(engine, 5, needs=(needed.id,))
    await complete(engine, needed, b'"' + b"x" * 600 + b'"')
    assert engine.store.totals() == StateCounts(waiting=2, completed=1, waiting_children=3)
    await clock.advance(0)
    assert await states(engine, parents) == [State.WAITING] * 5


async def test_many_children_of_one_parent_are_written_down_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    original = SqliteTransaction.need_save

    async def need_save(tx: SqliteTransaction, needs: Sequence[Dependency]) -> None:
        saved.append(len(needs))
        await original(tx, needs)

    monkeypatch.setattr(SqliteTransaction, "need_save", need_save)
    children = await push_many(engine, 100, queue=CHILDREN)
    parent = await push(engine, needs=tuple(each.id for each in children))
    await claim_all(engine, queue=CHILDREN)
    await engine.run(Ack("default", [LeaseRef(each.id) for each in children], [b"1"] * 100))
    assert saved == [100]
    assert await state(engine, parent) is State.WAITING


async def test_a_long_error_is_cut_where_it_is_copied(engine: Engine) -> None:
    failing = await child(engine, flags=JobFlag.FAIL_PARENT, max_attempts=1)
    parent = await push(engine, needs=(failing.id,))
    await kill(engine, failing, "x" * 60_000)
    short = "x" * limits.flow_error_chars_max
    (need,) = await engine.store.need_list(parent.id)
    assert need.error == short
    (payload,) = await told(engine, EventKind.FLOW_FAILED)
    assert payload["error"] == short
    dead, cause = await stored(engine, parent), await stored(engine, failing)
    assert dead is not None
    assert cause is not None
    assert details_of(dead).error == f"Child job {to_uuid(failing.id)} failed: {short}"
    assert details_of(cause).error == "x" * 60_000


# Children that are gone.


async def test_a_completion_counts_though_the_child_is_removed_in_the_same_batch(engine: Engine) -> None:
    needed = await child(engine)
    parent = await push(engine, needs=(needed.id,))
    await claim_job(engine, queue=CHILDREN)
    shard = engine.of(CHILDREN)
    outcome, _ = await asyncio.gather(
        shard.run(Ack("default", [LeaseRef(needed.id)], [b"5"])),
        shard.run(MoveBatch(CHILDREN, Arrow.OBLITERATE, (State.ACTIVE, State.COMPLETED), [needed.id])),
    )
    await yield_to_loop(100)
    assert outcome == [None]
    assert await state(engine, needed) is State.NOWHERE
    assert await state(engine, parent) is State.WAITING
    (need,) = await engine.store.need_list(parent.id)
    assert (need.state, need.result) == (Need.DONE, b"5")


@pytest.mark.parametrize("name", [None, "my/child"])
@pytest.mark.parametrize("way", ["drained", "purged", "removed"])
async def test_a_parent_can_be_freed_of_a_child_that_is_gone(engine: Engine, name: str | None, way: str) -> None:
    removed = JobFlag.REMOVE_ON_FAIL if way == "removed" else 0
    gone = await child(engine, job_id=name, max_attempts=1, flags=removed)
    parent = await push(engine, needs=(gone.id,))
    if way == "drained":
        await admin.drain(engine.of(CHILDREN), CHILDREN)
    else:
        await kill(engine, gone)
        await admin.purge(engine.of(CHILDREN), CHILDREN)
    assert await state(engine, gone) is State.NOWHERE
    assert await state(engine, parent) is State.WAITING_CHILDREN
    with pytest.raises(JobNotFound):
        await engine.run(DropDependency("elsewhere", name or gone.id))
    await push(engine, queue=QueueKey("elsewhere", "mail"))
    with pytest.raises(JobNotFound):
        await engine.run(DropDependency("elsewhere", name or gone.id))
    assert await engine.run(DropDependency("default", name or gone.id)) is True
    assert await state(engine, parent) is State.WAITING
    with pytest.raises(JobNotFound):
        await engine.run(DropDependency("default", name or gone.id))


async def test_children_that_are_gone_count_as_unprocessed(engine: Engine) -> None:
    gone, waiting, active = await child(engine), await child(engine), await child(engine, priority=1)
    parent = await push(engine, needs=(gone.id, waiting.id, active.id))
    await claim_job(engine, queue=CHILDREN)
    await move(engine, gone, Arrow.CANCEL)
    assert await engine.run(CancelChildren("default", parent.id)) == 2
    assert await state(engine, parent) is State.WAITING_CHILDREN
    await ack(engine, active)
    assert await state(engine, parent) is State.WAITING


@pytest.mark.usefixtures("small_slices")
async def test_a_child_that_has_completed_and_is_gone_is_not_unprocessed(engine: Engine, clock: ManualClock) -> None:
    needed = await child(engine, flags=JobFlag.REMOVE_ON_COMPLETE)
    parents = await push_many(engine, 20, needs=(needed.id,))
    await complete(engine, needed)
    assert await engine.run(CancelChildren("default", parents[-1].id)) == 0
    await clock.advance(0)
    (need,) = await engine.store.need_list(parents[-1].id)
    assert need.state is Need.DONE


async def test_drain_leaves_those_that_wait_for_others_and_clean_takes_them_if_asked(engine: Engine) -> None:
    needed = await child(engine)
    parent = await push(engine, needs=(needed.id,))
    assert await admin.drain(engine.of(QUEUE), QUEUE) == 0
    assert await admin.clean(engine.of(QUEUE), QUEUE, 60_000, (State.WAITING_CHILDREN,), 10) == []
    (cleaned,) = await admin.clean(engine.of(QUEUE), QUEUE, 0, (State.WAITING_CHILDREN,), 10)
    assert cleaned.id == parent.id
    await complete(engine, needed)
    assert engine.store.totals() == StateCounts(completed=1)


@pytest.mark.parametrize(
    ("arrow", "error"),
    [(Arrow.DISCARD, "the job was discarded"), (Arrow.CANCEL, "the job was gone before it completed (cancel)")],
)
async def test_the_parent_is_told_what_became_of_its_child(engine: Engine, arrow: Arrow, error: str) -> None:
    needed = await child(engine, backoff=0)
    parent = await push(engine, needs=(needed.id,))
    await kill(engine, needed, "an earlier attempt")
    await move(engine, needed, arrow)
    (need,) = await engine.store.need_list(parent.id)
    assert need.error == error
    if arrow is Arrow.DISCARD:
        (need,) = await engine.store.need_list((await push(engine, needs=(needed.id,))).id)
        assert need.error == error
