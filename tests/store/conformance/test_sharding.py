"""What a store keeps for the other shards: ends they wait for, and names of a whole namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.dependencies import Dependency, JobEnd, Need, Relay
from penstock.core.errors import RowChanged
from penstock.core.reservations import Reservation

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio

DONE = JobEnd(7, 1, Need.DONE, result=b"\x00r")
FAILED = JobEnd(8, 2, Need.FAILED, buries=True, frees=False, inherited=True, error="bro\x00ken")


async def due(bench: Workbench, shard: int = 1, limit: int = 10) -> list[Relay]:
    async with bench.transaction() as tx:
        return await tx.relay_due(shard, limit)


async def test_ends_are_told_to_those_who_asked_and_nobody_else(bench: Workbench) -> None:
    now = bench.now_ms
    async with bench.transaction() as tx:
        await tx.relay_ask([1, 2], 1, alive=False)
        await tx.relay_ask([1], 2, alive=False)
        assert await tx.relay_due(1, 10) == []
        await tx.relay_end([(DONE, 0), (FAILED, 99), (JobEnd(9, 3, Need.DONE), 0)])
        assert await tx.relay_asked([1, 2, 3], 2) == {1: 0}
        assert await tx.relay_shards() == {1, 2}
    await bench.restart()
    assert await due(bench) == [Relay(1, DONE, 0, now, 0), Relay(1, FAILED, 99, now, 0)]
    assert await due(bench, 2) == [Relay(2, DONE, 0, now, 0)]
    assert await due(bench, 3) == []
    assert len(await due(bench, 1, 1)) == 1


async def test_an_end_is_told_again_at_a_moment_of_its_own(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.relay_ask([1], 1, alive=False)
        await tx.relay_end([(DONE, 0)])
    (relay,) = await due(bench)
    async with bench.transaction() as tx:
        await tx.relay_again([(relay, bench.now_ms + 50)])
        assert await tx.relay_asked([1], 1) == {1: 1}
    assert await due(bench) == []
    await bench.clock.advance(50)
    assert [each.deliveries for each in await due(bench)] == [1]


async def test_what_was_asked_for_may_be_kept_when_an_end_was_told(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.relay_ask([1, 2], 1, alive=False)
        await tx.relay_end([(DONE, 0), (FAILED, 0)])
    done, failed = await due(bench)
    async with bench.transaction() as tx:
        await tx.relay_done([done], keep=False)
        await tx.relay_done([failed], keep=True)
        assert await tx.relay_asked([1, 2], 1) == {2: None}
        await tx.relay_end([(FAILED._replace(serial=9, state=Need.DONE, error=None, result=b"1"), 0)])
    assert [(each.end.state, each.end.result, each.deliveries) for each in await due(bench)] == [(Need.DONE, b"1", 0)]


async def test_what_was_replaced_or_asked_for_again_is_not_forgotten(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.relay_ask([1, 2], 1, alive=False)
        await tx.relay_end([(DONE, 0), (FAILED, 0)])
    told = await due(bench)
    await bench.clock.advance(5)
    async with bench.transaction() as tx:
        await tx.relay_end([(DONE._replace(serial=10), 0)])
        await tx.relay_ask([2], 1, alive=False)
    async with bench.transaction() as tx:
        await tx.relay_done(told, keep=False)
        await tx.relay_done(told, keep=True)
        await tx.relay_again([(told[0], bench.now_ms + 1_000)])
    assert sorted(each.end.serial for each in await due(bench)) == [8, 10]
    assert {each.end.job: each.asked_at for each in await due(bench)}[2] == bench.now_ms


async def test_asking_for_one_that_lives_forgets_how_it_ended_before(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.relay_ask([1], 1, alive=True)
        await tx.relay_ask([1], 2, alive=True)
        await tx.relay_end([(DONE, 0)])
        (told,) = await tx.relay_due(2, 1)
        await tx.relay_ask([1], 1, alive=False)
        await tx.relay_ask([1], 2, alive=True)
        await tx.relay_again([(told, bench.now_ms)])
        assert await tx.relay_shards() == {1}
        assert await tx.relay_asked([1], 2) == {1: None}


async def test_only_what_will_not_end_any_more_is_given_up(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.relay_ask([1, 2], 1, alive=False)
        await tx.relay_end([(DONE, 0)])
        await tx.relay_forget([1, 2])
        assert await tx.relay_asked([1, 2], 1) == {1: 0}


async def test_large_ends_are_read_in_portions(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.relay_ask([1, 2, 3], 1, alive=False)
        large = b"x" * (limits.flow_bytes_batch_max // 2 + 1)
        await tx.relay_end([(JobEnd(number, number, Need.DONE, result=large), 0) for number in (1, 2, 3)])
    assert len(await due(bench)) == 2


async def test_open_dependencies_page_by_page(bench: Workbench) -> None:
    states = {1: Need.PENDING, 2: Need.DONE, 3: Need.FAILED, 4: Need.PENDING}
    async with bench.transaction() as tx:
        await tx.need_add([Dependency(job, needs, state, "n") for needs, state in states.items() for job in (10, 11)])
    found: list[tuple[int, int]] = []
    async with bench.transaction() as tx:
        while page := await tx.need_page(found[-1] if found else (0, 0), 2):
            found += [(each.needs, each.job) for each in page]
    assert found == [(needs, job) for needs in (1, 3, 4) for job in (10, 11)]


# Names.


async def test_a_name_is_written_if_nobody_else_has_changed_it(bench: Workbench) -> None:
    one, other = Reservation("ns", "n", 1, 5, 100), Reservation("ns", "n", 2, 6, 200)
    async with bench.transaction() as tx:
        assert await tx.name_load([one.key]) == {}
        await tx.name_save([(one, 0), (one._replace(name="m"), 0)])
    for reservation, read_with in ((other, 0), (other, 7)):
        with pytest.raises(RowChanged):
            async with bench.transaction() as tx:
                await tx.name_save([(reservation, read_with)])
    async with bench.transaction() as tx:
        assert await tx.name_load([one.key, ("elsewhere", "n")]) == {one.key: one}
        await tx.name_save([(other, 5)])
    await bench.restart()
    async with bench.transaction() as tx:
        assert await tx.name_load([one.key]) == {one.key: other}
        assert [each.name for each in await tx.name_page(("", ""), 10)] == ["m", "n"]
        assert [each.name for each in await tx.name_page(("ns", "m"), 10)] == ["n"]
        assert len(await tx.name_page(("", ""), 1)) == 1
        # The first has another ticket by now, the second another time.
        await tx.name_remove([one, other._replace(at=201), one._replace(name="m")])
        assert await tx.name_page(("", ""), 10) == [other]


async def test_tickets_stay_withdrawn_for_a_while(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        assert await tx.ticket_hold([1, 2]) == set()
    async with bench.transaction() as tx:
        await tx.ticket_withdraw([2, 3])
        await tx.ticket_withdraw([2])
        await tx.ticket_withdraw([])
    async with bench.transaction() as tx:
        assert await tx.ticket_hold([1, 2]) == {2}
        await tx.ticket_trim(bench.now_ms, 10)
        assert await tx.ticket_hold([2]) == {2}
        await tx.ticket_trim(bench.now_ms + 1, 1)
        assert len(await tx.ticket_hold([2, 3])) == 1


async def test_jobs_are_found_by_their_own_ids(bench: Workbench) -> None:
    (job,) = await bench.put(custom_id="mine")
    assert await bench.store.name_find("default", ["mine", "yours", "zero\x00"]) == {"mine": job.id}
    assert await bench.store.name_find("elsewhere", ["mine"]) == {}
