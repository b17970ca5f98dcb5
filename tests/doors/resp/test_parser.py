"""The parser of the Redis protocol: what it takes, what it refuses, and that it does not matter how bytes arrive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import limits
from penstock.core.errors import ProtocolError
from penstock.doors.resp.inline import split
from penstock.doors.resp.parser import CLIENTS, STRANGERS, Bounds, RespParser
from tests.fuzz.resp import CAMPAIGN, CORPUS, check, encoded, outcome

PING = [b"PING"]
words = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


def refused(data: bytes, bounds: Bounds = CLIENTS) -> str | None:
    return outcome([data], bounds, 1_000).refusal


def commands(data: bytes) -> list[list[bytes]]:
    seen = outcome([data], CLIENTS, 1_000)
    assert (seen.refusal, seen.partial) == (None, False)
    return seen.commands


@given(st.lists(words, max_size=6), st.data())
def test_what_is_spelled_is_read_whatever_the_pieces(many: list[list[bytes]], data: st.DataObject) -> None:
    wire = b"".join(encoded(*each) for each in many)
    places = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    pieces = [wire[start:end] for start, end in zip([0, *places], [*places, len(wire)], strict=True)]
    for turn in (1, 2, 1_000):
        assert outcome(pieces, CLIENTS, turn) == (many, None, False)


@pytest.mark.parametrize("data", CORPUS, ids=range(len(CORPUS)))
def test_every_split_of_a_stream_gives_the_same(data: bytes) -> None:
    for place in range(0, len(data) + 1, 1 if len(data) < 1_000 else 97):
        check(data, [data[:place], data[place:]], CLIENTS, 1)
    if len(data) < 1_000:
        check(data, [data[place : place + 1] for place in range(len(data))], CLIENTS, 1_000)


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_whatever_arrives_nothing_but_the_declared_error_comes(data: bytes) -> None:
    for bounds in (CLIENTS, STRANGERS):
        check(data, [data[:5], data[5:]], bounds, 3)


def test_mutated_commands_get_nothing_but_the_declared_error() -> None:
    met = CAMPAIGN.run(20_000, seed=7)
    assert met["commands"] > 5_000
    assert met["invalid bulk length"]
    assert met["unbalanced quotes in request"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"PING", [b"PING"]),
        (b"  SET  a\tb ", [b"SET", b"a", b"b"]),
        (b'"a b" c', [b"a b", b"c"]),
        (b"'a b' ''", [b"a b", b""]),
        (rb'"\x41\n\r\t\b\a\"\\\q"', [b'A\n\r\t\b\a"\\q']),
        (rb"'it\'s \n'", [rb"it's \n"]),
        (b'foo"bar"', [b"foobar"]),
        (rb'"\xzz"', [b"xzz"]),
        (b"a\0b", [b"a\0b"]),
        (b"", []),
        (b"\"\" ''", [b"", b""]),
    ],
)
def test_lines_are_cut_into_words_as_redis_does(line: bytes, found: list[bytes]) -> None:
    assert split(line) == found


@pytest.mark.parametrize("line", [b'"a', b"'a", b'"a"b', b"'a'b", rb"'a\'", rb'"a\"', b'a "b" "', b"'\\''x"])
def test_quotes_that_do_not_end_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="unbalanced quotes in request"):
        split(line)


def test_lines_end_with_one_or_two_bytes_and_empty_ones_are_nothing() -> None:
    assert commands(b"PING\nPING\r\n\n\r\n\r\n   \r\n" + encoded(b"PING") + b"\nPING\n") == [PING] * 4
    assert commands(b"\n" * 1_000_000 + b"PING\n") == [PING]
    assert commands(b"\nPING\n\n" * 20_000) == [PING] * 20_000


def test_an_array_of_nothing_is_nothing() -> None:
    assert commands(b"*0\r\n*-1\r\n*-7\r\n" + encoded(b"PING")) == [PING]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*65\r\n", "invalid multibulk length"),
        (b"*007\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*1_0\r\n", "invalid multibulk length"),
        (b"* 1\r\n", "invalid multibulk length"),
        (b"*-0\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*-\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*" + b"9" * 40, "too big mbulk count string"),
        (b"*1\r\n$" + b"9" * 40, "too big bulk count string"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$-2\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$four\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$2147483647\r\n", "invalid bulk length"),
        (b"*1\r\n$10485761\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$3\r\nPING\r\n", "a bulk string is longer than announced"),
        (b"*1\r\n$4\r\nPING\n\n", "a bulk string is longer than announced"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n" * 100_000, "expected '$', got '*'"),
        (b"*1\r\n\xff", "expected '$', got byte 255"),
        (b"*3\r\n$10485760\r\n" + b"x" * 10485760 + b"\r\n$65536\r\n" + b"x" * 65536 + b"\r\n$1\r\n", "too big request"),
        (b"x" * 65_537, "too big inline request"),
        (b"x" * 1_000_000 + b"\n", "too big inline request"),
        (b"x " * 65 + b"\n", "invalid multibulk length"),
        (b'PING "\n', "unbalanced quotes in request"),
    ],
    ids=repr,
)
def test_what_is_malformed_or_too_large_is_refused(data: bytes, error: str) -> None:
    assert refused(data) == error


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*11\r\n", "unauthenticated multibulk length"),
        (b"*1\r\n$16385\r\n", "unauthenticated bulk length"),
        (b"x" * 16_385, "too big inline request"),
        (b"x " * 11 + b"\n", "unauthenticated multibulk length"),
    ],
)
def test_strangers_may_send_less(data: bytes, error: str) -> None:
    assert refused(data, STRANGERS) == error
    assert outcome([data], CLIENTS, 1_000).refusal is None


def test_what_is_announced_is_refused_before_it_arrives_and_costs_nothing() -> None:
    parser = RespParser()
    parser.receive(b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$10485760\r\n")
    assert parser.take(1) == []
    assert parser.kept < 40
    assert parser.partial


def test_commands_before_a_malformed_one_are_not_lost() -> None:
    parser = RespParser()
    parser.receive(encoded(b"PING") * 3 + b"*x\r\n" + encoded(b"PING"))
    assert parser.take(1_000) == [PING] * 3
    for _ in range(2):
        with pytest.raises(ProtocolError, match="invalid multibulk length"):
            parser.take(1)
    parser.receive(b"x" * 1_000)
    assert parser.kept == 0


def test_no_more_is_taken_than_asked_for_and_bounds_hold_from_the_next_command_on() -> None:
    parser = RespParser(STRANGERS)
    parser.receive(encoded(b"AUTH", b"secret") + encoded(b"PUBLISH", b"t", b"x" * 20_000))
    assert parser.take(1) == [[b"AUTH", b"secret"]]
    parser.bounds = CLIENTS
    assert parser.take(1) == [[b"PUBLISH", b"t", b"x" * 20_000]]
    assert not parser.partial


def test_a_large_word_in_small_pieces_is_put_together_once() -> None:
    parser = RespParser()
    wire = encoded(b"PUBLISH", b"t", b"x" * limits.payload_bytes_max)
    joined = 0
    real = parser._join

    def count() -> None:
        nonlocal joined
        joined += 1
        real()

    parser._join = count  # type: ignore[method-assign]
    taken: list[Any] = []
    for place in range(0, len(wire), 65_536):
        parser.receive(wire[place : place + 65_536])
        taken += parser.take(1_000)
    assert [len(word) for word in taken[0]] == [7, 1, limits.payload_bytes_max]
    assert joined <= 3


@pytest.mark.parametrize(
    "line", [b"POST / HTTP/1.1", b"GET / HTTP/1.1", b"Host: localhost:6380", b"host: x", b"PRI * HTTP/2.0", b"post x"]
)
def test_requests_of_http_are_refused_without_a_word(line: bytes) -> None:
    parser = RespParser()
    parser.receive(line + b"\r\n")
    with pytest.raises(ProtocolError) as refusal:
        parser.take(1)
    assert refusal.value.silent
