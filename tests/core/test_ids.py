"""Ids: one integer, three spellings, always growing."""

from __future__ import annotations

import uuid
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import ids

some_id = st.integers(min_value=1, max_value=ids.ID_MAX)


@given(some_id)
def test_every_spelling_round_trips_exactly(job_id: int) -> None:
    assert ids.from_uuid(ids.to_uuid(job_id)) == job_id
    assert ids.from_ulid(ids.to_ulid(job_id)) == job_id


@given(some_id)
def test_the_uuid_is_a_version_7_uuid_with_the_time_of_the_id(job_id: int) -> None:
    parsed = uuid.UUID(ids.to_uuid(job_id))
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == ids.time_of(job_id)


@given(some_id)
def test_a_ulid_has_26_letters_of_its_alphabet_and_the_time_of_the_id(job_id: int) -> None:
    text = ids.to_ulid(job_id)
    assert len(text) == 26
    assert set(text) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    number = 0
    for letter in text:
        number = number * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    assert number >> 80 == ids.time_of(job_id)


@given(some_id, some_id)
def test_all_spellings_sort_like_the_ids(one: int, other: int) -> None:
    assert (ids.to_uuid(one) < ids.to_uuid(other)) == (one < other)
    assert (ids.to_ulid(one) < ids.to_ulid(other)) == (one < other)


@given(some_id, st.integers(min_value=0, max_value=35), st.sampled_from("0123456789abcdef"))
def test_a_mistyped_uuid_names_nothing(job_id: int, place: int, letter: str) -> None:
    right = ids.to_uuid(job_id)
    wrong = right[:place] + letter + right[place + 1 :]
    assert ids.from_uuid(wrong) == (job_id if wrong == right else None)


@given(st.uuids())
def test_a_foreign_uuid_names_nothing(foreign: uuid.UUID) -> None:
    assert ids.from_uuid(str(foreign)) is None


@pytest.mark.parametrize(
    "text", ["", "x", "019ce9d7-6983-7000-946f-48737be2b0f9", "0" * 36, "-" * 36, "g" * 36, "\x00" * 36, "é" * 36]
)
def test_what_is_no_uuid_of_ours_names_nothing(text: str) -> None:
    assert ids.from_uuid(text) is None


@pytest.mark.parametrize("text", ["", "0" * 25, "U" * 26, "8" + "0" * 25, "é" * 26])
def test_what_is_no_ulid_of_ours_names_nothing(text: str) -> None:
    assert ids.from_ulid(text) is None


def test_spellings_are_read_in_either_case() -> None:
    job_id = ids.IdSource().next(1_800_000_000_000)
    assert ids.from_uuid(ids.to_uuid(job_id).upper()) == job_id
    assert ids.from_ulid(ids.to_ulid(job_id).lower()) == job_id


@given(st.lists(st.integers(min_value=-5_000, max_value=5_000), max_size=3_000))
def test_ids_only_grow_however_the_clock_behaves(steps: list[int]) -> None:
    source = ids.IdSource(shard=3, node=5)
    now, last = 1_800_000_000_000, 0
    for step in steps:
        now += step
        job_id = source.next(now)
        assert job_id > last
        assert ids.shard_of(job_id) == 3
        last = job_id


@given(st.lists(st.integers(min_value=1, max_value=3_000), min_size=1, max_size=20))
def test_ids_taken_together_are_those_taken_one_by_one(counts: list[int]) -> None:
    together, one_by_one = ids.IdSource(), ids.IdSource()
    now = 1_800_000_000_000
    for count in counts:
        assert together.take(count, now) == [one_by_one.next(now) for _ in range(count)]
    assert together.mark() == one_by_one.mark()


def test_more_ids_than_fit_in_a_millisecond_borrow_from_the_next() -> None:
    source = ids.IdSource()
    now = 1_800_000_000_000
    taken = source.take(3 * ids.COUNT_MAX, now)
    assert len(set(taken)) == len(taken)
    assert ids.time_of(taken[0]) == now
    assert ids.time_of(taken[-1]) == now + 3


def test_a_new_source_starts_above_its_floor_even_if_the_clock_went_back() -> None:
    first = ids.IdSource()
    last = [first.next(1_800_000_000_000) for _ in range(5)][-1]
    second = ids.IdSource(floor=first.mark())
    assert second.next(1_700_000_000_000) > last


def test_shard_and_node_must_fit() -> None:
    with pytest.raises(ValueError, match="shard must be below 64"):
        ids.IdSource(shard=64)
    with pytest.raises(ValueError, match="node below 64"):
        ids.IdSource(node=64)


def test_the_first_id_of_a_millisecond_is_below_all_others_of_it() -> None:
    now = 1_800_000_000_000
    assert ids.first_of(now) <= ids.IdSource().next(now) < ids.first_of(now + 1)


def test_no_id_is_a_number_that_javascript_makes_of_another() -> None:
    now = 1_795_000_000_000
    for taken in (ids.IdSource(shard=5, node=9).take(5_000, now), [source.next(now) for source in [ids.IdSource()] * 3_000]):
        assert len(set(taken)) == len(taken)
        assert taken == sorted(taken)
        assert not {int(Decimal(repr(float(each)))) for each in taken} & set(taken)
