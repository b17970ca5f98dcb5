"""The frames of the TCP protocol, without sockets: any cut of the stream, any garbage, any value."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import struct
from datetime import UTC, datetime
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.errors import FrameTooLarge, InvalidInput
from penstock.core.time_slices import at_once
from penstock.doors.jobs import jsonable, msgpack_parts, tcp_frames
from penstock.doors.jobs.tcp_frames import FrameParser
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
    parser = FrameParser()
    stream = b"".join(map(frame, messages))
    found = [tcp_frames.decode(each) for part in cut(stream, cuts) for each in parser.receive(part)]
    assert found == messages
    assert not parser.partial
    assert parser.kept == 0


@given(MESSAGES)
def test_what_goes_out_is_what_went_in(message: dict[str, Any]) -> None:
    decoded = tcp_frames.decode(frame(message)[4:])
    jsonable.convert(decoded)
    assert decoded == message
    encoded = tcp_frames.encode(decoded)
    assert struct.unpack(">I", encoded[:4])[0] == len(encoded) - 4
    assert msgpack.unpackb(encoded[4:]) == message


@given(st.binary(max_size=200), st.lists(st.integers(0, 10**6), max_size=5))
def test_garbage_is_refused_and_nothing_else(garbage: bytes, cuts: list[int]) -> None:
    parser = FrameParser(bytes_max=100)
    for part in cut(garbage, cuts):
        for each in parser.receive(part):
            assert len(each) <= 100
            with contextlib.suppress(InvalidInput):
                jsonable.convert(tcp_frames.decode(each))
        assert parser.broken or parser.kept <= 104
    with contextlib.suppress(InvalidInput):
        jsonable.convert(tcp_frames.decode(garbage))


def test_a_frame_too_large_is_refused_by_its_header_after_the_frames_before_it() -> None:
    parser = FrameParser()
    good = frame({"cmd": "Ping"})
    found = parser.receive(good + struct.pack(">I", 64 * 2**20 + 1) + b"x")
    assert [tcp_frames.decode(each) for each in found] == [{"cmd": "Ping"}]
    assert isinstance(parser.broken, FrameTooLarge)
    assert str(parser.broken) == "Frame too large: 67108865 bytes exceeds maximum 67108864"
    assert parser.receive(good) == []


def test_a_frame_that_is_only_announced_takes_no_room() -> None:
    parser = FrameParser()
    assert parser.receive(struct.pack(">I", 5_000)) == []
    assert (parser.partial, parser.kept) == (True, 4)


def test_a_frame_that_was_too_large_may_be_allowed_later() -> None:
    parser = FrameParser(bytes_max=10)
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
        tcp_frames.decode(body)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def taken(value: Any) -> Any:
    """Return a payload as it is stored."""
    message = tcp_frames.decode(frame({"data": value})[4:])
    jsonable.convert(message)
    return json.loads(msgspec.json.encode(message))["data"]


UNDEFINED = msgpack.ExtType(0, b"\0")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (msgpack.Timestamp(1_794_960_000), "2026-11-18T00:00:00.000Z"),
        (msgpack.Timestamp(1_700_000_000, 123_999_000), "2023-11-14T22:13:20.123Z"),
        (msgpack.Timestamp(-1, 995_000_000), "1969-12-31T23:59:59.995Z"),
        (msgpack.Timestamp(-62_135_596_800), "0001-01-01T00:00:00.000Z"),
        (msgpack.Timestamp(-62_167_219_200), "0000-01-01T00:00:00.000Z"),
        (msgpack.Timestamp(-62_167_219_201), "-000001-12-31T23:59:59.000Z"),
        (msgpack.Timestamp(253_402_300_800), "+010000-01-01T00:00:00.000Z"),
        (msgpack.Timestamp(8_640_000_000_000), "+275760-09-13T00:00:00.000Z"),
        (msgpack.Timestamp(-8_640_000_000_000), "-271821-04-20T00:00:00.000Z"),
        (msgpack.Timestamp(8_640_000_000_000, 1_000_000), None),
        (msgpack.Timestamp(2**62), None),
        ([{"a": [msgpack.Timestamp(2**62), 1, msgpack.Timestamp(0)]}, 2], [{"a": [None, 1, "1970-01-01T00:00:00.000Z"]}, 2]),
        ([math.nan, math.inf, -math.inf], [None, None, None]),
        (b"\x01\x02\xff", {"0": 1, "1": 2, "2": 255}),
        ({"empty": b""}, {"empty": {}}),
        ({1: 2, None: 3, 1.5: 5, 2.0: 6}, {"1": 2, "null": 3, "1.5": 5, "2": 6}),
        ({True: 4}, {"true": 4}),
        ({"a": UNDEFINED, "b": [UNDEFINED]}, {"b": [None]}),
        (UNDEFINED, None),
    ],
)
def test_values_json_does_not_have_are_taken_as_javascript_writes_them(value: Any, stored: Any) -> None:
    assert taken(value) == stored
    assert taken([[value]]) == [[stored]]


@given(st.datetimes())
def test_any_date_is_its_iso_text(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    assert taken(msgpack.Timestamp.from_datetime(moment)) == f"{moment.isoformat(timespec='milliseconds')[:-6]}Z"


def test_a_date_that_no_datetime_holds_is_found_at_any_depth_within_limits() -> None:
    value: Any = msgpack.Timestamp(2**62)
    for _ in range(30):
        value = {"in": [value]}
    assert "null" in json.dumps(taken(value))
    value = ["x" * 2**20, msgpack.Timestamp(2**62)]
    for _ in range(16):
        value = [value]
    with pytest.raises(InvalidInput, match="Invalid command format"):
        tcp_frames.decode(frame({"data": value})[4:])


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (msgpack.ExtType(5, b"x"), "Extension values are not supported, except dates"),
        ({"a": {b"x": 2}}, "Map keys must be text, numbers, booleans or null"),
        (b"x" * 2_000_001, "Too many values in one command"),
    ],
)
def test_what_json_cannot_say_is_refused(value: Any, error: str) -> None:
    message = tcp_frames.decode(frame({"data": value})[4:])
    with pytest.raises(InvalidInput, match=error):
        jsonable.convert(message)


def test_what_is_too_deep_is_cut_where_it_is_refused_anyway() -> None:
    message = tcp_frames.decode(frame({"jobs": [{"data": deep(100)}, {"data": 1}]})[4:])
    jsonable.convert(message)
    text = json.dumps(message["jobs"][0]["data"])
    assert 64 < text.count("[") < 100


def test_a_refused_result_spares_its_neighbours() -> None:
    message = tcp_frames.decode(frame({"results": [1, msgpack.ExtType(5, b"x"), msgpack.Timestamp(0)]})[4:])
    jsonable.convert(message)
    first, refused, last = message["results"]
    assert (first, last) == (1, "1970-01-01T00:00:00.000Z")
    assert refused == jsonable.Unfit("Extension values are not supported, except dates: JSON has no such values")


def test_a_message_of_too_many_values_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Too many values in one command \(max 2000000\)"):
        tcp_frames.decode(frame({"data": [None] * 2_000_000})[4:])


def test_large_whole_numbers_come_in_as_floats_and_go_out_as_floats_again() -> None:
    message = tcp_frames.decode(frame({"at": 1_700_000_000_000.0, "half": 0.5, "list": [4_294_967_296.0], "small": 5.0})[4:])
    jsonable.convert(message)
    assert repr(message) == "{'at': 1700000000000, 'half': 0.5, 'list': [4294967296], 'small': 5.0}"
    assert repr(msgpack.unpackb(tcp_frames.encode(message)[4:])) == (
        "{'at': 1700000000000.0, 'half': 0.5, 'list': [4294967296.0], 'small': 5.0}"
    )
    exact = {"snowflake": 2**60 + 1, "huge": 10**30, "beyond": 10**400, "below": -(10**400), "color": 2**32 - 1}
    found = msgpack.unpackb(tcp_frames.encode(exact)[4:])
    assert found == {"snowflake": 2**60 + 1, "huge": 1e30, "beyond": math.inf, "below": -math.inf, "color": 2**32 - 1}


def test_fields_javascript_does_not_define_are_not_given() -> None:
    message = tcp_frames.decode(frame({"cmd": "PULL", "owner": UNDEFINED, "data": UNDEFINED})[4:])
    jsonable.convert(message)
    assert message == {"cmd": "PULL", "data": None}


def test_a_reply_too_large_for_a_frame_becomes_an_error() -> None:
    encoded = tcp_frames.encode({"ok": True, "data": "x" * (64 * 2**20), "reqId": "7"})
    reply = msgpack.unpackb(encoded[4:])
    assert reply["ok"] is False
    assert reply["error"].startswith("Reply too large: 67108")
    assert reply["reqId"] == "7"


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every frame be decoded and encoded as the largest ones are."""
    monkeypatch.setattr(tcp_frames, "_WHOLE_BYTES", -1)
    monkeypatch.setattr(tcp_frames, "_WHOLE_VALUES", -1)
    monkeypatch.setattr(tcp_frames, "_FEW_ITEMS", 0)
    monkeypatch.setattr(tcp_frames, "_FEW_FIELDS", 0)
    monkeypatch.setattr(tcp_frames, "_PART_BYTES", 8)
    monkeypatch.setattr(msgpack_parts, "PIECE_BYTES", 4)


@pytest.mark.usefixtures("tiny_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES)
def test_a_large_frame_is_decoded_and_encoded_in_steps_as_a_small_one(message: dict[str, Any]) -> None:
    text = msgpack.packb(message)
    assert tcp_frames.decode(text) == message
    parts = at_once(tcp_frames.encode_steps(tcp_frames.decode(text)))
    assert b"".join(parts) == tcp_frames.encode(tcp_frames.decode(text))


@pytest.mark.usefixtures("tiny_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES, st.binary(max_size=6), st.integers(0, 60))
def test_a_large_frame_that_is_broken_is_refused_as_a_small_one(message: dict[str, Any], more: bytes, cut_at: int) -> None:
    whole = msgpack.packb(message)
    text = whole[:cut_at] + more
    try:
        expected = msgspec.msgpack.decode(text)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError):
        expected = None
    if type(expected) is dict:
        assert repr(tcp_frames.decode(text)) == repr(expected)
    else:
        with contextlib.suppress(InvalidInput):
            decoded = tcp_frames.decode(text)
            assert expected is None, decoded  # only dates that no datetime can hold are decoded here alone


@pytest.mark.usefixtures("tiny_pieces")
def test_levels_that_no_payload_may_have_are_left_empty_in_a_large_frame() -> None:
    text = b"\x81\xa4data" + b"\x91" * 200 + b"\xc0"
    message, whole = tcp_frames.decode(text), msgspec.msgpack.decode(text)
    jsonable.convert(message)
    jsonable.convert(whole)
    assert message == whole
