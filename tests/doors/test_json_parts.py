"""Long replies are spelled as short ones, to the byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core import limits
from penstock.core.time_slices import at_once
from penstock.doors import json_parts
from penstock.doors.jobs.wire import replies

if TYPE_CHECKING:
    import pytest


class Item(msgspec.Struct):
    """An item with a payload."""

    data: msgspec.Raw
    name: str


class Listing(msgspec.Struct, rename="camel"):
    """A reply with two lists and a map."""

    first: str
    all_items: list[Item]
    tokens: list[str]
    errors: list[replies.ItemError]
    sums: dict[int, int]
    last: int | msgspec.UnsetType = msgspec.UNSET


class Envelope(msgspec.Struct):
    """The content of a reply in an envelope."""

    head: str
    values: dict[str, msgspec.Raw]
    items: list[Item]
    perhaps: list[Item] | msgspec.UnsetType = msgspec.UNSET


class Enveloped(msgspec.Struct):
    """A reply in an envelope."""

    data: Envelope
    values: dict[str, msgspec.Raw]


TEXTS = st.text(max_size=8) | st.sampled_from(['"allItems":[]', '"errors":[]', "[]"])
ITEMS = st.builds(Item, st.binary(max_size=8).map(lambda text: msgspec.Raw(b'"%b"' % text.hex().encode())), TEXTS)
ERRORS = st.builds(replies.ItemError, TEXTS, TEXTS)
LAST = st.just(msgspec.UNSET) | st.integers(0, 9)
SUMS = st.dictionaries(st.integers(-9, 9), st.integers(0, 10**12))
LISTINGS = st.builds(Listing, TEXTS, st.lists(ITEMS), st.lists(TEXTS), st.lists(ERRORS), SUMS, LAST)
VALUES = st.dictionaries(TEXTS, st.binary(max_size=8).map(lambda text: msgspec.Raw(b'"%b"' % text.hex().encode())))
ENVELOPED = st.builds(Enveloped, st.builds(Envelope, TEXTS, VALUES, st.lists(ITEMS)), VALUES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LISTINGS | ENVELOPED, st.sampled_from([1, 50, 100_000]))
def test_parts_are_the_same_text(monkeypatch: pytest.MonkeyPatch, listing: Listing | Enveloped, part_bytes: int) -> None:
    monkeypatch.setattr(json_parts, "PART_BYTES", part_bytes)
    monkeypatch.setattr(limits, "count_rest_rows", 3)
    assert b"".join(at_once(json_parts.part_steps(listing))) == json_parts.encode(listing)


def test_a_reply_is_long_because_of_its_items_or_their_payloads() -> None:
    small, large = Item(msgspec.Raw(b"1"), ""), Item(msgspec.Raw(b"1" * 2**20), "")
    assert not json_parts.is_long(Listing("", [small] * 100, [], [], {1: 1}))
    assert not json_parts.is_long(Listing("", [large], [], [], {}))
    assert json_parts.is_long(Listing("", [small, large], [], [], {}))
    assert json_parts.is_long(Listing("", [small] * 2_001, [], [], {}))
    assert json_parts.is_long(Listing("", [], [], [], dict.fromkeys(range(2_001), 1)))
    assert json_parts.is_long(Listing("", [], ["a"] * 10_001, [], {}))
    assert not json_parts.is_long(Listing("", [], ["a"] * 10_000, [], {}))
    assert not json_parts.is_long(replies.Ok())
    assert not json_parts.is_long(replies.QueuesReply(queues=["a"]))


def test_a_reply_is_long_because_of_what_is_in_its_envelope() -> None:
    small, large = {"a": msgspec.Raw(b"1")}, {"a": msgspec.Raw(b"1" * 2**20), "b": msgspec.Raw(b"1")}
    many = {str(number): msgspec.Raw(b"1") for number in range(2_001)}
    assert not json_parts.is_long(Enveloped(Envelope("", small, []), small))
    for long in (large, many):
        assert json_parts.is_long(Enveloped(Envelope("", long, []), small))
        assert json_parts.is_long(Enveloped(Envelope("", small, []), long))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ERRORS) | st.lists(TEXTS), st.sampled_from([1, 50, 100_000]))
def test_parts_of_a_list_are_the_same_text(monkeypatch: pytest.MonkeyPatch, items: list[object], part_bytes: int) -> None:
    monkeypatch.setattr(json_parts, "PART_BYTES", part_bytes)
    monkeypatch.setattr(limits, "count_rest_rows", 3)
    assert b"".join(at_once(json_parts.part_steps(items))) == json_parts.encode(items)


def test_a_long_list_is_long() -> None:
    assert json_parts.is_long(["a"] * 2_001)
    assert not json_parts.is_long(["a"] * 2_000)
