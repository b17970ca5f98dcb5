"""How batches are formed: everything that waits, or a share for each namespace of what is too much for one batch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.engine.command import Command, Lane
from penstock.engine.fair_queue import FairQueue

if TYPE_CHECKING:
    from penstock.engine.command import AnyCommand


class Step(Command[None]):
    """A command of a namespace (empty: of none) that weighs something."""

    __slots__ = ("_namespace", "_weight", "number")
    _numbers = itertools.count()

    def __init__(self, namespace: str, weight: int = 1) -> None:
        self._namespace = namespace
        self._weight = weight
        self.number = next(self._numbers)

    def tenant(self) -> str | None:
        return self._namespace or None

    def weight(self) -> int:
        return self._weight


class Urgent(Step):
    """One about leases."""

    __slots__ = ()

    urgent = True


class Beside(Step):
    """One that may be done in another lane."""

    __slots__ = ()

    lane = Lane.PUSHES


def lines_of(*commands: AnyCommand) -> FairQueue:
    lines = FairQueue(lambda _command, weight: weight, lambda: 0.0)
    for command in commands:
        lines.add(command)
    return lines


def test_what_fits_into_one_batch_is_one_in_the_order_it_came() -> None:
    commands = [Step(namespace) for namespace in "abcab"]
    lines = lines_of(*commands)
    assert lines.take() == commands
    assert len(lines) == 0


def test_a_namespace_with_very_much_does_not_keep_another_waiting() -> None:
    small = Step("small")
    lines = lines_of(*(Step("flood", 10) for _ in range(10_000)), small)
    batch = lines.take()
    assert small in batch
    assert sum(command.weight() for command in batch) <= limits.batch_weight_shared_max + 10


def test_a_command_that_is_larger_than_a_batch_gets_its_turn_beside_another_namespace() -> None:
    large = Step("large", 20 * limits.batch_weight_max)
    lines = lines_of(large)
    for _ in range(10_000):
        lines.add(Step("other", limits.batch_weight_shared_max))
        if large in lines.take():
            return
    raise AssertionError("it waited for ever")


def test_what_workers_say_is_in_the_next_batch_whatever_waits() -> None:
    words = [Step("") for _ in range(100)]
    lines = lines_of(*(Step("flood", 100) for _ in range(1_000)), *words)
    batch = lines.take()
    assert batch[:100] == words
    assert len(batch) > 100  # and the rest gets on, too


def test_urgent_commands_come_before_the_others_of_their_namespace() -> None:
    urgent = [Urgent("flood") for _ in range(100)]
    batch = lines_of(*(Step("flood", 100) for _ in range(1_000)), *urgent).take()
    assert batch[:100] == urgent
    assert len(batch) > 100


def test_urgent_commands_of_a_namespace_do_not_keep_those_of_another_waiting() -> None:
    small = Urgent("small")
    lines = lines_of(*(Urgent("flood", 500) for _ in range(1_000)), small)
    assert small in lines.take()


@pytest.mark.parametrize("first", [Step("", 10), Urgent("flood", 10)], ids=["the server's", "urgent"])
def test_the_others_get_a_part_of_each_batch(first: Step) -> None:
    lines = lines_of(*(type(first)(first.tenant() or "", 10) for _ in range(10_000)), *(Step("quiet") for _ in range(100)))
    taken = [command for _ in range(4) for command in lines.take()]
    assert sum(command.tenant() == "quiet" for command in taken) == 100
    assert sum(command.weight() for command in taken) <= 5 * limits.batch_weight_max


def test_batches_are_small_for_a_while_after_namespaces_had_to_share() -> None:
    now = [0.0]
    lines = FairQueue(lambda _command, weight: weight, lambda: now[0])
    for namespace in "ab":
        for _ in range(limits.batch_weight_max):
            lines.add(Step(namespace))
    while lines:
        assert len(lines.take()) <= limits.batch_weight_shared_max
    for _ in range(2 * limits.batch_weight_max):
        lines.add(Step("a"))
    assert len(lines.take()) == limits.batch_weight_shared_max
    now[0] += limits.batch_shared_ms / 1000
    assert len(lines.take()) == min(limits.batch_weight_max, limits.batch_commands_max)


def test_a_namespace_may_not_take_all_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "pending_commands_namespace_max", 10)
    monkeypatch.setattr(limits, "pending_commands_max", 15)
    lines = lines_of(*(Step("flood") for _ in range(10)))
    with pytest.raises(TooMany, match="of this namespace"):
        lines.add(Step("flood"))
    for _ in range(5):
        lines.add(Step("other"))
    with pytest.raises(TooMany):
        lines.add(Step("third"))
    assert len(lines) == 15


def test_what_was_deferred_is_first_in_its_line() -> None:
    lines = lines_of(*(Step(namespace, 100) for namespace in "ab" * 100))
    batch = lines.take()
    again = [command for command in batch if command.tenant() == "a"]
    lines.put_first(again)
    taken = [command for command in [*lines.take(), *lines.take()] if command.tenant() == "a"]
    assert taken[: len(again)] == again


_COMMANDS = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "c", "d"]), st.integers(0, 3 * limits.batch_weight_shared_max), st.booleans())
)


@settings(deadline=None)
@given(st.lists(_COMMANDS, max_size=20))
def test_every_command_is_taken_once_and_in_order_within_its_namespace(arrivals: list[list[tuple[str, int, bool]]]) -> None:
    lines = FairQueue(lambda _command, weight: weight, lambda: 0.0)
    given: dict[str | None, list[int]] = defaultdict(list)
    taken: dict[str | None, list[int]] = defaultdict(list)
    count = 0
    for arrived in [*arrivals, *[[]] * 10_000]:
        for namespace, weight, beside in arrived:
            command = Beside(namespace, weight) if beside else Step(namespace, weight)
            lines.add(command)
            given[command.tenant()].append(command.number)
            count += 1
        if not lines:
            if not arrived:
                break
            continue
        batch = lines.take()
        assert batch, "a batch takes at least one"
        heavy = [command for command in batch if command.tenant() is not None]
        weight = sum(command.weight() for command in heavy[:-1])
        assert weight <= limits.batch_weight_max
        for each in batch:
            assert isinstance(each, Step)
            taken[each.tenant()].append(each.number)
    assert not lines
    assert taken == given
    assert sum(map(len, taken.values())) == count


@settings(deadline=None)
@given(_COMMANDS)
def test_what_other_lanes_may_do_is_taken_out_and_the_rest_stays(arrived: list[tuple[str, int, bool]]) -> None:
    lines = lines_of(*(Beside(name, weight) if beside else Step(name, weight) for name, weight, beside in arrived))
    first = lines.take()
    had = lines.has({Lane.PUSHES})
    out = lines.take_out({Lane.PUSHES})
    assert had == bool(out)
    assert all(isinstance(command, Beside) for command in out)
    assert not lines.has({Lane.PUSHES})
    assert len(first) + len(out) + len(lines) == len(arrived)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 60))
def test_namespaces_that_all_want_more_get_the_same_weight(namespaces: int, weight: int) -> None:
    lines = lines_of(*(Step(f"n{number}", weight + number) for number in range(namespaces) for _ in range(3_000)))
    got: dict[str | None, int] = defaultdict(int)
    for _ in range(10):
        for command in lines.take():
            got[command.tenant()] += command.weight()
    share = limits.batch_weight_shared_max // 8
    assert max(got.values()) - min(got.values()) <= 2 * share + 2 * (weight + namespaces)
