"""The frames of the TCP protocol, without sockets: any cut of the stream, any garbage, any value."""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import FrameTooLarge, InvalidInput
from penstock.doors.jobs import frames
from penstock.doors.jobs.frames import Parser
from tests.support.tcp import frame

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)
MESSAGES = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), VALUES, max_size=4)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(place % (len(stream) + 1) for place in cuts)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(0, 10**6), max_size=20))
def test_however_the_stream_is_cut_the_messages_are_the_same(messages: list[Any], cuts: list[int]) -> None:
    parser = Parser()
    stream = b"".join(map(frame, messages))
    found = [frames.decode(each) for part in cut(stream, cuts) for each in parser.receive(part)]
    assert found == messages
    assert not parser.partial
    assert parser.kept == 0


@given(MESSAGES)
def test_what_goes_out_is_what_went_in(message: dict[str, Any]) -> None:
    decoded = frames.decode(frame(message)[4:])
    frames.check(decoded)
    assert decoded == message
    encoded = frames.encode(decoded)
    assert struct.unpack(">I", encoded[:4])[0] == len(encoded) - 4
    assert msgpack.unpackb(encoded[4:]) == message


@given(st.binary(max_size=200), st.lists(st.integers(0, 10**6), max_size=5))
def test_garbage_is_refused_and_nothing_else(garbage: bytes, cuts: list[int]) -> None:
    parser = Parser(bytes_max=100)
    for part in cut(garbage, cuts):
        for each in parser.receive(part):
            assert len(each) <= 100
            with contextlib.suppress(InvalidInput):
                frames.check(frames.decode(each))
        assert parser.broken or parser.kept <= 104
    with contextlib.suppress(InvalidInput):
        frames.check(frames.decode(garbage))


def test_a_frame_too_large_is_refused_by_its_header_after_the_frames_before_it() -> None:
    parser = Parser()
    good = frame({"cmd": "Ping"})
    found = parser.receive(good + struct.pack(">I", 64 * 2**20 + 1) + b"x")
    assert [frames.decode(each) for each in found] == [{"cmd": "Ping"}]
    assert isinstance(parser.broken, FrameTooLarge)
    assert str(parser.broken) == "Frame too large: 67108865 bytes exceeds maximum 67108864"
    assert parser.receive(good) == []


def test_a_frame_that_is_only_announced_takes_no_room() -> None:
    parser = Parser()
    assert parser.receive(struct.pack(">I", 5_000)) == []
    assert (parser.partial, parser.kept) == (True, 4)


def test_a_frame_that_was_too_large_may_be_allowed_later() -> None:
    parser = Parser(bytes_max=10)
    large = frame({"cmd": "x" * 20})
    assert parser.receive(large[:10]) == []
    assert parser.broken
    assert parser.allow(1_000) == []
    assert parser.receive(large[10:] + large) == [large[4:]] * 2


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x01", b"\x81\xa1a", b"\x91" * 5_000, b"\x80\x80", b"\xa1\xff"]
)
def test_what_is_not_one_map_is_not_a_command(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^Invalid command format$"):
        frames.decode(body)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (math.nan, "NaN and Infinity are not supported"),
        ([-math.inf], "NaN and Infinity are not supported"),
        ({"a": b"bytes"}, "Binary and extension values are not supported"),
        (msgpack.ExtType(5, b"x"), "Binary and extension values are not supported"),
        (msgpack.Timestamp(1), "Binary and extension values are not supported"),
        ({"a": {1: 2}}, "Map keys must be strings"),
        (deep(100), r"JSON nested too deeply \(max 64 levels\)"),
    ],
)
def test_what_json_cannot_say_is_refused(value: Any, error: str) -> None:
    message = frames.decode(frame({"data": value})[4:])
    with pytest.raises(InvalidInput, match=error):
        frames.check(message)


def test_a_message_of_too_many_values_is_refused() -> None:
    message = frames.decode(frame({"data": [None] * 2_000_000})[4:])
    with pytest.raises(InvalidInput, match=r"Too many values in one command \(max 2000000\)"):
        frames.check(message)


def test_large_whole_numbers_come_in_as_floats_and_go_out_as_floats_again() -> None:
    message = frames.decode(frame({"at": 1_700_000_000_000.0, "half": 0.5, "list": [4_294_967_296.0], "small": 5.0})[4:])
    frames.check(message)
    assert repr(message) == "{'at': 1700000000000, 'half': 0.5, 'list': [4294967296], 'small': 5.0}"
    assert repr(msgpack.unpackb(frames.encode(message)[4:])) == (
        "{'at': 1700000000000.0, 'half': 0.5, 'list': [4294967296.0], 'small': 5.0}"
    )
    exact = {"snowflake": 2**60 + 1, "huge": 10**30, "beyond": 10**400, "below": -(10**400), "color": 2**32 - 1}
    found = msgpack.unpackb(frames.encode(exact)[4:])
    assert found == {"snowflake": 2**60 + 1, "huge": 1e30, "beyond": math.inf, "below": -math.inf, "color": 2**32 - 1}


def test_what_javascript_does_not_define_is_null() -> None:
    assert frames.decode(frame({"cmd": "PULL", "owner": msgpack.ExtType(0, b"\0")})[4:]) == {"cmd": "PULL", "owner": None}


def test_a_reply_too_large_for_a_frame_becomes_an_error() -> None:
    encoded = frames.encode({"ok": True, "data": "x" * (64 * 2**20), "reqId": "7"})
    reply = msgpack.unpackb(encoded[4:])
    assert reply["ok"] is False
    assert reply["error"].startswith("Reply too large: 67108")
    assert reply["reqId"] == "7"
