"""Requests of each namespace begin in turns of the event loop; large ones of a namespace one after the other."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from penstock.core import limits
from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.time_slices import Steps, in_slices
from penstock.engine.fair_share import FairShare

pytestmark = pytest.mark.anyio
TURN = limits.share_turn_requests


@pytest.fixture
async def fair_share(clock: ManualClock) -> FairShare:
    """A server on which two namespaces are active."""
    both = FairShare(clock)
    assert both.begin("flood") is None
    assert both.begin("quiet") is None
    assert both.shared
    return both


async def test_one_namespace_alone_never_waits(clock: ManualClock) -> None:
    fair_share = FairShare(clock)
    assert all(fair_share.begin("flood") is None for _ in range(1_000))
    for _ in range(10):
        await fair_share.begin_large("flood")
    assert not fair_share.shared
    assert not fair_share.waiting


async def test_a_request_begins_in_its_turn_whatever_another_namespace_asks_for(fair_share: FairShare) -> None:
    await yield_to_loop(2)
    begun = [fair_share.begin("flood") for _ in range(10 * TURN)]
    assert sum(place is None for place in begun) == TURN
    assert fair_share.begin("quiet") is None
    for turn in range(2, 11):
        await yield_to_loop(1)
        assert sum(place is None or place.done() for place in begun) == turn * TURN
        assert fair_share.begin("quiet") is None
    assert not fair_share.waiting


async def test_the_order_within_a_namespace_is_kept(fair_share: FairShare) -> None:
    await yield_to_loop(2)
    began: list[int] = []

    async def ask(number: int) -> None:
        if (place := fair_share.begin("flood")) is not None:
            await place
        began.append(number)

    await asyncio.gather(*(ask(number) for number in range(5 * TURN)))
    assert began == list(range(5 * TURN))


async def test_requests_that_came_together_count_as_many(fair_share: FairShare) -> None:
    await yield_to_loop(2)
    assert fair_share.begin("flood", 4 * TURN) is None
    later = fair_share.begin("flood")
    assert later is not None
    await later


async def test_large_requests_of_a_namespace_wait_for_each_other(fair_share: FairShare) -> None:
    now: dict[str, int] = {"flood": 0, "quiet": 0}
    most = dict(now)

    async def work(namespace: str) -> None:
        async with fair_share.large(namespace):
            now[namespace] += 1
            most[namespace] = max(most[namespace], now[namespace])
            async with fair_share.large(namespace):  # it does not wait for itself
                await yield_to_loop(3)
            now[namespace] -= 1

    await asyncio.gather(*(work("flood") for _ in range(10)), work("quiet"))
    assert most == {"flood": limits.share_large_requests, "quiet": 1}
    assert not fair_share._in_progress


async def test_a_large_request_that_is_cancelled_leaves_its_place_to_the_next(fair_share: FairShare) -> None:
    await fair_share.begin_large("flood")
    waiting = [asyncio.create_task(fair_share.begin_large("flood")) for _ in range(3)]
    await yield_to_loop(1)
    waiting[0].cancel()  # while it waits
    await yield_to_loop(1)
    fair_share.end_large("flood")
    waiting[1].cancel()  # in the moment in which it may go on
    await asyncio.wait_for(waiting[2], 10)
    fair_share.end_large("flood")
    assert not fair_share._in_progress
    assert not fair_share.waiting


async def test_when_the_others_are_gone_nothing_waits_any_more(fair_share: FairShare, clock: ManualClock) -> None:
    await fair_share.begin_large("flood")
    waiting = [asyncio.create_task(fair_share.begin_large("flood")) for _ in range(3)]
    await yield_to_loop(1)
    assert not any(task.done() for task in waiting)
    await clock.advance(limits.share_ms)  # both have been active since the last look
    fair_share.begin("flood")
    await clock.advance(limits.share_ms)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert not fair_share.shared
    for _ in range(4):
        fair_share.end_large("flood")
    assert not fair_share._in_progress
    assert all(fair_share.begin("flood") is None for _ in range(1_000))


async def test_names_of_namespaces_do_not_pile_up(fair_share: FairShare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "share_namespaces_max", 10)
    for number in range(100):
        fair_share.begin(f"n{number}")
    assert len(fair_share._seen) == 10
    await yield_to_loop(3)
    assert not fair_share._begun


running: list[asyncio.Task[None]] = []


async def enter(fair_share: FairShare, namespace: str) -> asyncio.Event:
    """Have a small request in progress until the event is set."""
    may_end = asyncio.Event()

    async def small() -> None:
        fair_share.enter(namespace)
        await may_end.wait()
        fair_share.leave()

    running.append(asyncio.create_task(small()))
    await yield_to_loop(1)
    return may_end


async def give_way(fair_share: FairShare) -> None:
    async with fair_share.large("flood"):
        await fair_share.give_way()


async def test_a_large_request_waits_for_small_ones_of_others(
    fair_share: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    first, second = await enter(fair_share, "quiet"), await enter(fair_share, "quiet")
    large = asyncio.create_task(give_way(fair_share))
    await yield_to_loop()
    first.set()
    await yield_to_loop()
    assert not large.done()
    second.set()
    await large


async def test_a_small_request_is_seen_behind_many_of_the_namespace_that_gives_way(
    fair_share: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    quiet = await enter(fair_share, "quiet")
    flood = [await enter(fair_share, "flood") for _ in range(2 * limits.share_looks_max)]
    large = asyncio.create_task(give_way(fair_share))
    await yield_to_loop()
    assert not large.done()
    quiet.set()
    await large
    for each in flood:
        each.set()


async def test_no_request_begins_while_events_of_its_namespace_are_behind(fair_share: FairShare) -> None:
    await yield_to_loop(2)
    fair_share.fall_behind("flood")
    places = [fair_share.begin("flood") for _ in range(2 * TURN)]
    assert fair_share.begin("quiet") is None
    await yield_to_loop()
    assert not any(place is None or place.done() for place in places)
    fair_share.catch_up("flood")
    await yield_to_loop(1)
    assert sum(place is None or place.done() for place in places) == TURN
    await yield_to_loop(1)
    assert all(place is None or place.done() for place in places)


async def test_who_is_behind_goes_on_when_no_other_namespace_is_active(clock: ManualClock, fair_share: FairShare) -> None:
    fair_share.fall_behind("flood")
    place = fair_share.begin("flood")
    assert place is not None
    await clock.advance(2 * limits.share_ms)
    assert not fair_share.shared
    assert place.done()
    assert fair_share.begin("flood") is None


async def test_background_work_goes_on_in_turns(fair_share: FairShare) -> None:
    most = limits.share_background_places
    flood = [fair_share.background.begin("flood") for _ in range(3 * most)]
    quiet = fair_share.background.begin("quiet")
    done = []
    for _ in range(8):
        await yield_to_loop(1)
        done.append(sum(place is not None and place.done() for place in flood))
    assert all(later - before <= most for before, later in itertools.pairwise(done))
    assert done[-1] == 3 * most
    assert quiet is not None
    assert quiet.done()


async def test_background_work_waits_for_small_requests_of_others(
    fair_share: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    may_end = await enter(fair_share, "quiet")
    place = fair_share.background.begin("flood")
    assert place is not None
    await yield_to_loop()
    assert not place.done()
    may_end.set()
    await place


async def test_background_work_of_one_namespace_alone_does_not_wait(clock: ManualClock) -> None:
    fair_share = FairShare(clock)
    assert fair_share.begin("flood") is None
    assert fair_share.background.begin("flood") is None


async def test_a_large_request_does_not_wait_for_its_own_namespace(
    fair_share: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    may_end = await enter(fair_share, "flood")
    await give_way(fair_share)
    may_end.set()


async def test_a_large_request_does_not_wait_for_what_waits_itself(
    fair_share: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 0)
    may_end = await enter(fair_share, "quiet")
    await give_way(fair_share)
    may_end.set()


async def test_a_small_request_does_not_wait_for_itself(fair_share: FairShare, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of a small request may be read in slices, too."""
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    fair_share.enter("quiet")
    async with asyncio.timeout(30):
        await fair_share.give_way()
    fair_share.leave()


async def test_requests_that_catch_up_go_on_in_turns_and_in_their_order(fair_share: FairShare) -> None:
    await yield_to_loop(2)
    fair_share.fall_behind("flood")
    fair_share.fall_behind("other")
    waiting = [fair_share.begin("flood") for _ in range(3 * TURN)]
    fair_share.catch_up("flood")
    fair_share.catch_up("other")
    last = fair_share.begin("flood")
    await yield_to_loop(1)
    assert sum(place is None or place.done() for place in waiting) == TURN
    assert last is not None
    await yield_to_loop(1)
    assert sum(place is None or place.done() for place in waiting) == 2 * TURN
    assert not last.done()


async def test_a_large_request_goes_on_after_a_while(fair_share: FairShare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 1)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    may_end = await enter(fair_share, "quiet")
    await give_way(fair_share)
    may_end.set()


async def test_slices_give_way(fair_share: FairShare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    monkeypatch.setattr(limits, "share_slice_ms", 0)
    steps_done = 0

    def steps() -> Steps[int]:
        nonlocal steps_done
        for _ in range(3):
            steps_done += 1
            yield
        return steps_done

    may_end = await enter(fair_share, "quiet")
    work = asyncio.create_task(in_slices(steps()))
    await yield_to_loop()
    assert not steps_done
    may_end.set()
    monkeypatch.setattr(limits, "share_slice_ms", 60_000)
    assert await work == 3
