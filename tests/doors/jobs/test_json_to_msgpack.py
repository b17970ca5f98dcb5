"""Large JSON is converted to MessagePack in pieces: the result is the same as if it were decoded and encoded at once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.time_slices import at_once
from penstock.doors.jobs import json_to_msgpack, tcp_frames

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=8),
    max_leaves=60,
)
INDENTS = st.sampled_from([None, 0, 2])


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_to_msgpack, "_WHOLE_BYTES", 0)
        patch.setattr(json_to_msgpack, "_WHOLE_VALUES", 0)
        patch.setattr(json_to_msgpack, "_PIECE_BYTES", 24)
        yield


def both(text: bytes) -> tuple[object, object]:
    """Return a text decoded at once and in pieces, as a client reads it."""
    whole = json_to_msgpack.plain(text)
    pieces = at_once(json_to_msgpack.plain_steps(text))
    frames = [tcp_frames.encode(each)[tcp_frames.HEADER_BYTES :] for each in (whole, pieces)]
    return msgspec.msgpack.decode(frames[0]), msgspec.msgpack.decode(frames[1])


@given(VALUES, INDENTS, st.booleans())
def test_pieces_are_worth_the_whole(value: object, indent: int | None, ascii_only: bool) -> None:
    whole, pieces = both(json.dumps({"job": value, "ok": True}, indent=indent, ensure_ascii=ascii_only).encode())
    assert pieces == whole


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 60 + b"]" * 60,
        b"[" + b'{"a":[1,{"b":"]}"}]},' * 30 + b"[]]",
        b'["' + b"\\\\" * 50 + b'\\"' * 51 + b'",[1]]',
        b'{"' + b"k" * 100 + b'":{"' + b'\\"' * 40 + b'":[1,2,3]}}',
        b"[" + b"9" * 200 + b",-1e400," + b"1" * 20 + b"]",
        b'"' + b"a,[{" * 30 + b'"',
        b"[ [ ] , { } , [ [ 1 ] ] ]",
        b"[4294967296,-2147483649,9007199254740993]",
        b"[" + '"ü€😀",'.encode() * 20 + b"0]",
    ],
)
def test_texts_that_are_hard_to_divide(text: bytes) -> None:
    whole, pieces = both(b'{"data":%b,"n":1}' % text)
    assert pieces == whole
