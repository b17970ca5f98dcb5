"""The commands of a stream: any split of the bytes gives the same, and whatever comes, nothing but commands comes out."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import limits
from penstock.doors.topics.decoder import CommandDecoder
from tests.fuzz.stream import CAMPAIGN

commands = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), max_size=10)
white = st.text(" \t\r\n", max_size=3)


def decode(*chunks: bytes) -> tuple[list[str], bool]:
    decoder = CommandDecoder()
    for chunk in chunks:
        decoder.feed(chunk)
    return list(decoder.commands), decoder.broken


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@given(commands, st.booleans(), white, st.lists(st.integers(0, 10_000), max_size=8))
def test_any_split_gives_what_was_sent(texts: list[str], ascii_only: bool, between: str, cuts: list[int]) -> None:
    data = between.join(json.dumps(text, ensure_ascii=ascii_only) for text in texts).encode()
    assert decode(*pieces(data, cuts)) == (texts, False)


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=8))
def test_whatever_comes_any_split_gives_the_same(data: bytes, cuts: list[int]) -> None:
    whole = decode(data)
    assert decode(*pieces(data, cuts)) == whole
    assert all(isinstance(each, str) for each in whole[0])


@pytest.mark.parametrize("text", ["1", "x", "{}", "null", '"\\q"', '"\x01"', '"\\ud800"', "[", "}", '"\xff"'])
def test_what_is_no_string_breaks_it_and_what_came_before_counts(text: str) -> None:
    data = text.encode("latin-1")
    assert decode(b'"INIT"' + data + b'"ACK"') == (["INIT"], True)
    assert decode(b'"INIT"', data, b'"ACK"') == (["INIT"], True)


def test_a_command_has_a_bound_whether_it_ends_or_not() -> None:
    longest = b'"' + b"x" * (limits.stream_command_bytes_max - 2) + b'"'
    assert decode(longest) == ([longest.decode()[1:-1]], False)
    assert decode(longest[:-1], b'x"') == ([], True)
    decoder = CommandDecoder()
    decoder.feed(b'"')
    for _ in range(100_000):
        decoder.feed(b"x" * 100)
        if decoder.broken:
            break
    assert decoder.broken
    assert decoder._rest == b"", "nothing is kept"


def test_white_space_is_not_kept() -> None:
    decoder = CommandDecoder()
    for _ in range(1_000):
        decoder.feed(b"\n" * 1_000)
    assert decoder._rest == b""
    assert not decoder.broken


def test_broken_streams_are_broken_in_the_same_way_for_another_decoder() -> None:
    met = CAMPAIGN.run(20_000, seed=7)
    assert met["error decoding command"] > 1_000
    assert met["complete, or unfinished"] > 1_000
