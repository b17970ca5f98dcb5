"""What a store promises about single jobs: written is read, guarded is guarded, removed is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core import lifecycle
from penstock.core.errors import RowChanged, ServerError
from penstock.core.job import Details, JobFlag, Payload, put_details
from penstock.core.lifecycle import STORED_STATES, Arrow, State
from penstock.core.queue import QueueKey, StateCounts
from penstock.store.contract import LogEntry, Page, Place, Selection
from tests.store.conformance.workbench import MAIL

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio

PAYLOADS = [b"", b"null", b'{"a":1}', b"\x00\xff\x00 any bytes at all", b"x" * 5_000, b"y" * 3_000_000]


async def test_what_is_ready_can_be_read_without_payloads(bench: Workbench) -> None:
    jobs = await bench.put(count=3, data=b"x" * 100)
    async with bench.transaction() as tx:
        queue = await tx.queue_open(MAIL)
        assert [job for job, _ in await tx.job_ready(queue, 2, bodies=False)] == jobs[:2]


async def test_many_jobs_are_loaded_like_few(bench: Workbench) -> None:
    jobs = await bench.put(count=20)
    async with bench.transaction() as tx:
        found = await tx.job_load([job.id for job in reversed(jobs)] + [5])
    assert sorted(found, key=lambda job: job.id) == jobs


@pytest.mark.parametrize("data", PAYLOADS, ids=lambda data: f"{len(data)} bytes")
async def test_payloads_come_back_byte_for_byte_after_a_restart(bench: Workbench, data: bytes) -> None:
    (job,) = await bench.put(data=data, size=len(data))
    await bench.restart()
    found = await bench.store.job_get("default", job.id)
    assert found is not None
    assert found[1].data == data
    async with bench.transaction() as tx:
        ((_, payload),) = await tx.job_ready(bench.queue(), 1)
    assert payload.data == data


async def test_every_field_of_a_job_comes_back(bench: Workbench) -> None:
    (job,) = await bench.put(
        state=State.ACTIVE, timeout=5, expires_at=2**50, flags=JobFlag.LIFO | JobFlag.DURABLE, group_id="grüppe",
        unique_key="ключ", custom_id="order-1", priority=-1_000_000, position=-5, run_at=1, attempts=2, stalls=1, token=2**62,
        lease_ms=77, lease_until=88, deadline=99, started_at=3, progress=55, size=2,
    )  # fmt: skip
    put_details(job, Details(owner="w1", error="bäd", reason="stalled", progress_message="half"))
    async with bench.transaction() as tx:
        await tx.job_save([(job, job.state, job.token)])
    await bench.restart()
    assert await bench.load(job.id) == job


@pytest.mark.parametrize("count", [3, 200])
async def test_many_jobs_of_all_kinds_come_back_together(bench: Workbench, count: int) -> None:
    async with bench.transaction() as tx:
        queue = await tx.queue_open(MAIL)
        jobs = [
            bench.make(
                queue, list(STORED_STATES)[number % len(STORED_STATES)], priority=number, timeout=number or None,
                group_id="grüppe" if number % 7 == 1 else None, custom_id=f"own {number}" if number % 3 else None,
                unique_key=f"k{number}" if number % 5 == 0 else None, expires_at=2**50 if number % 4 == 0 else None,
                details=b"\x80" if number % 6 == 0 else None,
            )
            for number in range(count)
        ]  # fmt: skip
        options = [b'{"n":1}' if number % 2 else None for number in range(count)]
        await tx.job_insert([(job, Payload(b"%d" % job.id, option)) for job, option in zip(jobs, options, strict=True)])
    await bench.restart()
    async with bench.transaction() as tx:
        assert {job.id: job for job in await tx.job_load([job.id for job in jobs])} == {job.id: job for job in jobs}
        payloads = await tx.payload_load([job.id for job in jobs])
    assert payloads == {job.id: Payload(b"%d" % job.id, option) for job, option in zip(jobs, options, strict=True)}
    for job in jobs:
        if job.custom_id is not None:
            found = await bench.store.job_get("default", job.custom_id)
            assert found is not None
            assert found[0].id == job.id


@pytest.mark.parametrize("kinds", [1, 20])
async def test_claimed_jobs_are_written_with_their_leases(bench: Workbench, kinds: int) -> None:
    jobs = await bench.put(count=40, timeout=60_000)
    await bench.clock.advance(1_000)
    before = [(job.state, job.token) for job in jobs]
    for number, job in enumerate(jobs):
        lifecycle.move(job, Arrow.CLAIM, bench, 10_000 + number % kinds)
    async with bench.transaction() as tx:
        await tx.job_lease([(job, *each) for job, each in zip(jobs, before, strict=True)])
    assert bench.store.totals() == StateCounts(active=40)
    assert bench.store.horizon.lease_expiry_ms == min(job.lease_until or 0 for job in jobs)
    await bench.restart()
    for job in jobs:
        assert await bench.load(job.id) == job


async def test_unknown_ids_are_left_out(bench: Workbench) -> None:
    (job,) = await bench.put()
    async with bench.transaction() as tx:
        assert [found.id for found in await tx.job_load([1, job.id, 2])] == [job.id]
    assert await bench.store.job_get("default", 1) is None
    assert await bench.store.job_get("nowhere", job.id) is None


async def test_the_part_that_never_changes_can_be_rewritten(bench: Workbench) -> None:
    (job,) = await bench.put(unique_key="k", group_id="g", timeout=5)
    (behind,) = await bench.put(group_id="g")
    assert await bench.ready() == [job.id]
    job.unique_key, job.group_id, job.timeout, job.max_attempts, job.backoff, job.created_at = None, "h", None, 9, 8, 7
    async with bench.transaction() as tx:
        await tx.job_rewrite([job])
    assert await bench.load(job.id) == job
    assert await bench.ready() == [job.id, behind.id]  # the group it left goes on without it
    (again,) = await bench.put(unique_key="k")
    async with bench.transaction() as tx:
        holders = await tx.job_find_unique([(job.queue, "k")])
    assert [holder.id for holder in holders.values()] == [again.id]
    await bench.restart()
    assert await bench.load(job.id) == job


async def test_rewriting_is_refused_if_state_or_token_changed_meanwhile(bench: Workbench) -> None:
    (job,) = await bench.put(state=State.ACTIVE)
    for change in ({"state": State.WAITING.value}, {"token": job.token + 1}):
        with pytest.raises(RowChanged):
            async with bench.transaction() as tx:
                await tx.job_rewrite([msgspec.structs.replace(job, backoff=5, **change)])
    assert await bench.load(job.id) == job


@pytest.mark.parametrize("wrong", ["state", "token"])
async def test_a_claim_is_refused_if_state_or_token_changed_meanwhile(bench: Workbench, wrong: str) -> None:
    (job,) = await bench.put(state=State.ACTIVE) if wrong == "state" else await bench.put(token=5)
    before = State.WAITING.value, job.token + (wrong == "token")
    claimed = msgspec.structs.replace(job, state=State.WAITING.value)
    lifecycle.move(claimed, Arrow.CLAIM, bench, 1_000)
    with pytest.raises(RowChanged):
        async with bench.transaction() as tx:
            await tx.job_lease([(claimed, *before)])
    assert await bench.load(job.id) == job


@pytest.mark.parametrize("verb", ["save", "remove"])
async def test_a_write_is_refused_if_state_or_token_changed_meanwhile(bench: Workbench, verb: str) -> None:
    (job,) = await bench.put(state=State.ACTIVE)
    for wrong in ((State.WAITING.value, job.token), (job.state, job.token + 1)):
        with pytest.raises(RowChanged, match="expected to change 1 rows and changed 0"):
            async with bench.transaction() as tx:
                await (tx.job_save if verb == "save" else tx.job_remove)([(job, *wrong)])
    assert await bench.load(job.id) == job


async def test_one_refused_write_undoes_its_whole_transaction(bench: Workbench) -> None:
    a, b = await bench.put(count=2)
    changed = msgspec.structs.replace(a, priority=9)
    with pytest.raises(ServerError):
        async with bench.transaction() as tx:
            await tx.job_save([(changed, a.state, a.token), (b, State.DEAD.value, b.token)])
    assert await bench.load(a.id) == a


async def test_a_removed_job_leaves_nothing_behind(bench: Workbench) -> None:
    (job,) = await bench.put(state=State.COMPLETED, custom_id="x")
    async with bench.transaction() as tx:
        await tx.result_save([(job.id, b"42")])
        await tx.log_append(job.id, LogEntry(1, "info", "hello"), 100)
    await bench.step(job, Arrow.CLEAN)
    assert await bench.store.job_get("default", job.id) is None
    assert await bench.store.job_get("default", "x") is None
    assert await bench.store.result_get(job.id) is None
    assert await bench.store.log_get(job.id) == []


async def test_a_job_is_found_by_its_producers_id_within_its_namespace(bench: Workbench) -> None:
    (job,) = await bench.put(custom_id="order-1")
    (other,) = await bench.put(queue=QueueKey("other", "mail"), custom_id="order-1")
    mine = await bench.store.job_get("default", "order-1")
    theirs = await bench.store.job_get("other", "order-1")
    assert mine is not None
    assert theirs is not None
    assert (mine[0].id, theirs[0].id) == (job.id, other.id)
    async with bench.transaction() as tx:
        names = [(other.namespace, "order-1"), (job.namespace, "order-1"), (job.namespace, "order-2"), (999, "order-1")]
        found = await tx.job_find_custom([*names, (job.namespace, "order\x00")])
        assert await tx.job_find_custom([]) == {}
    assert found == {(job.namespace, "order-1"): job, (other.namespace, "order-1"): other}


async def test_two_jobs_of_a_namespace_cannot_carry_one_producers_id(bench: Workbench) -> None:
    await bench.put(custom_id="order-1", state=State.COMPLETED)
    with pytest.raises(ServerError):
        await bench.put(queue=QueueKey("default", "elsewhere"), custom_id="order-1")


@pytest.mark.parametrize("state", [State.WAITING, State.DELAYED, State.ACTIVE])
async def test_a_unique_key_is_held_by_a_live_job(bench: Workbench, state: State) -> None:
    (job,) = await bench.put(state=state, unique_key="k")
    async with bench.transaction() as tx:
        found = await tx.job_find_unique([(job.queue, "other"), (job.queue, "k"), (999, "k")])
        assert found == {(job.queue, "k"): job}
        assert await tx.job_find_unique([]) == {}
    with pytest.raises(ServerError):
        await bench.put(unique_key="k")


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD])
async def test_a_finished_job_has_given_its_unique_key_back(bench: Workbench, state: State) -> None:
    (job,) = await bench.put(state=state, unique_key="k")
    async with bench.transaction() as tx:
        assert await tx.job_find_unique([(job.queue, "k")]) == {}
    await bench.put(unique_key="k")


async def test_a_payload_can_be_replaced(bench: Workbench) -> None:
    job, second, third = await bench.put(count=3)
    new = {job.id: Payload(b"new", b'{"tags":[]}'), second.id: Payload(b"newer", None)}
    async with bench.transaction() as tx:
        before = await tx.payload_load([third.id])
        await tx.payload_save([(each, new[each.id]) for each in (second, job)])
    async with bench.transaction() as tx:
        assert await tx.payload_load([1, second.id, job.id, third.id]) == new | before
        assert await tx.payload_load([]) == {}


async def test_results_are_kept_replaced_and_removed(bench: Workbench) -> None:
    (job,) = await bench.put(state=State.COMPLETED)
    assert await bench.store.result_get(job.id) is None
    for result in (b"1", b"2"):
        async with bench.transaction() as tx:
            await tx.result_save([(job.id, result)])
        assert await bench.store.result_get(job.id) == result
    async with bench.transaction() as tx:
        await tx.result_remove([job.id])
    assert await bench.store.result_get(job.id) is None


async def test_a_log_keeps_its_last_lines(bench: Workbench) -> None:
    (job,) = await bench.put()
    for number in range(5):
        async with bench.transaction() as tx:
            await tx.log_append(job.id, LogEntry(number, "warn", f"line {number}"), 3)
    assert [line.message for line in await bench.store.log_get(job.id)] == ["line 2", "line 3", "line 4"]
    async with bench.transaction() as tx:
        await tx.log_clear(job.id, 1)
    assert [line.message for line in await bench.store.log_get(job.id)] == ["line 4"]
    async with bench.transaction() as tx:
        await tx.log_clear(job.id)
        await tx.log_clear(job.id, 5)
    assert await bench.store.log_get(job.id) == []


async def test_a_listing_is_paged_in_order_of_priority_then_line(bench: Workbench) -> None:
    low = await bench.put(count=2, priority=1)
    high = await bench.put(count=2, priority=5)
    (delayed,) = await bench.put(state=State.DELAYED, priority=3)
    (active,) = await bench.put(state=State.ACTIVE, priority=9)
    (done,) = await bench.put(state=State.COMPLETED, priority=2)
    (dead,) = await bench.put(state=State.DEAD, priority=4)
    await bench.put(queue=QueueKey("default", "other"))

    async def page(states: tuple[State, ...], limit: int = 100, offset: int = 0) -> list[int]:
        return [job.id for job, _ in await bench.store.job_page(Page(bench.queue(), states, limit, offset))]

    everything = [active.id, high[0].id, high[1].id, dead.id, delayed.id, done.id, low[0].id, low[1].id]
    all_states = tuple(state for state in State if state is not State.NOWHERE)
    assert await page(all_states) == everything
    assert await page(all_states, 3, 2) == everything[2:5]
    assert await page((State.WAITING,)) == [high[0].id, high[1].id, low[0].id, low[1].id]
    assert await page((State.WAITING,), 2, 1) == [high[1].id, low[0].id]
    assert await page((State.DELAYED, State.DEAD)) == [dead.id, delayed.id]
    assert await page(all_states, 10, 100) == []


async def test_a_listing_can_be_turned_round(bench: Workbench) -> None:
    low = await bench.put(count=2, priority=1)
    (high,) = await bench.put(priority=5)
    (delayed,) = await bench.put(state=State.DELAYED, priority=3)

    async def page(*states: State, limit: int = 100, offset: int = 0) -> list[int]:
        wanted = Page(bench.queue(), states, limit, offset, descending=True)
        return [job.id for job, _ in await bench.store.job_page(wanted)]

    assert await page(State.WAITING) == [low[1].id, low[0].id, high.id]
    assert await page(State.WAITING, State.DELAYED) == [low[1].id, low[0].id, delayed.id, high.id]
    assert await page(State.WAITING, State.DELAYED, limit=2, offset=1) == [low[0].id, delayed.id]


async def test_heads_and_results_of_several_jobs(bench: Workbench) -> None:
    jobs = await bench.put(count=3)
    async with bench.transaction() as tx:
        await tx.result_save([(jobs[0].id, b"1"), (jobs[2].id, b"null")])
    asked = [jobs[2].id, 12345, jobs[0].id, jobs[1].id]
    assert [job.id for job in await bench.store.head_list(asked)] == [jobs[2].id, jobs[0].id, jobs[1].id]
    assert await bench.store.head_list([]) == []
    assert await bench.store.result_list(asked) == {jobs[0].id: b"1", jobs[2].id: b"null"}


async def test_a_listing_may_have_only_the_waiting_jobs_of_high_or_of_low_priority(bench: Workbench) -> None:
    (low,) = await bench.put(priority=-1)
    (plain,) = await bench.put(priority=0)
    (high,) = await bench.put(priority=5)
    (delayed,) = await bench.put(state=State.DELAYED, priority=0)

    async def page(prioritized: bool | None, *states: State) -> list[int]:
        wanted = Page(bench.queue(), states, 100, 0, prioritized)
        return [job.id for job, _ in await bench.store.job_page(wanted)]

    assert await page(True, State.WAITING) == [high.id]
    assert await page(False, State.WAITING) == [plain.id, low.id]
    assert await page(None, State.WAITING) == [high.id, plain.id, low.id]
    assert await page(True, State.WAITING, State.DELAYED) == [high.id, delayed.id]
    assert set(await page(False, State.WAITING, State.DELAYED)) == {plain.id, delayed.id, low.id}
    assert await bench.store.prioritized_count(bench.queue()) == 1


async def test_jobs_of_groups_are_counted(bench: Workbench) -> None:
    await bench.put(count=3, group_id="a")
    await bench.put(count=2, group_id="b")
    await bench.put(state=State.ACTIVE, group_id="c")
    await bench.put(state=State.DELAYED, group_id="a")
    await bench.put(count=4)
    counts = [await bench.store.group_count(bench.queue(), State.WAITING, group) for group in ("a", "b", "c", None)]
    assert counts == [3, 2, 0, 5]
    counts = [await bench.store.group_count(bench.queue(), State.ACTIVE, group) for group in ("a", "c", None)]
    assert counts == [0, 1, 1]


async def test_finished_jobs_are_counted_by_the_minute_of_their_end(bench: Workbench) -> None:
    for finished_at in (60_000, 119_999, 300_000):
        await bench.put(state=State.COMPLETED, finished_at=finished_at)
    await bench.put(state=State.DEAD, finished_at=240_000)
    await bench.put()
    completed = await bench.store.finished_minutes(bench.queue(), State.COMPLETED)
    assert (completed.total, completed.last_at, completed.minutes) == (3, 300_000, ((5, 1), (1, 2)))
    assert completed.per_minute(10) == [1, 0, 0, 0, 2]
    assert completed.per_minute(4) == [1]
    dead = await bench.store.finished_minutes(bench.queue(), State.DEAD)
    assert (dead.total, dead.last_at, dead.per_minute(10)) == (1, 240_000, [1])


async def test_priorities_are_counted_over_waiting_and_delayed_jobs(bench: Workbench) -> None:
    await bench.put(count=3, priority=5)
    await bench.put(state=State.DELAYED, priority=5)
    await bench.put(count=2, priority=-1)
    await bench.put(state=State.ACTIVE, priority=7)
    assert await bench.store.priority_counts(bench.queue()) == {-1: 2, 5: 4}


async def test_a_selection_is_bounded_by_number_age_and_what_was_there_at_the_start(bench: Workbench) -> None:
    old = await bench.put(count=3)
    (old_dead,) = await bench.put(state=State.DEAD)
    await bench.clock.advance(10_000)
    border = bench.now_ms
    mark = bench.ids.mark()
    young = await bench.put(count=2)
    queue = bench.queue()

    async def select(state: State, limit: int = 100, **bounds: Any) -> list[int]:
        bounds = {"up_to_id": bench.ids.mark()} | bounds
        return [place.id for place in await bench.store.job_select(Selection(queue, state, limit, **bounds))]

    assert await select(State.WAITING) == [job.id for job in old + young]
    assert await select(State.WAITING, 2) == [job.id for job in old[:2]]
    assert await select(State.WAITING, up_to_id=mark) == [job.id for job in old]
    assert await select(State.WAITING, before_ms=border) == [job.id for job in old]
    assert await select(State.DEAD, before_ms=border) == [old_dead.id]
    assert await select(State.WAITING, before_ms=border - 10_000) == []


@pytest.mark.parametrize("state", [state for state in State if state is not State.NOWHERE])
async def test_a_selection_goes_on_behind_a_place_and_passes_every_job_once(bench: Workbench, state: State) -> None:
    """Several die in the same millisecond, and their priorities say nothing about their age."""
    jobs = []
    for priority in (3, 9, 1):
        jobs += await bench.put(count=2, state=state, priority=priority)
        await bench.clock.advance(priority == 9)
    await bench.put(queue=QueueKey("default", "other"), state=state)
    passed: list[Place] = []
    while page := await bench.store.job_select(
        Selection(bench.queue(), state, 1, bench.ids.mark(), after=passed[-1] if passed else Place(0, 0))
    ):
        passed += page
    assert [place.id for place in passed] == [job.id for job in jobs]
