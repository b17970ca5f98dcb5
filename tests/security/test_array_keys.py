"""Frames of MessagePack that cost much more to read than to send, from clients that have not shown a token."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.doors.jobs import jsonable, tcp_frames
from tests.security.measure import cpu_s
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BITS = 2**64
#: The constants of Python's hash of tuples.
_ADD, _FACTOR, _START = 14029467366897019727, 11400714785074694791, 2870177450012600261
_MODULUS = 2**61 - 1  #: of the hash of integers
_HASH = 0x1234567


def with_one_hash(count: int) -> list[tuple[int, int]]:
    """Return pairs of integers, as tuples all with the same hash: the second makes up for the first."""
    found: list[tuple[int, int]] = []
    first = 0
    while len(found) < count:
        first += 1
        value = (_START + first * _ADD) % _BITS
        value = ((value << 31 | value >> 33) * _FACTOR) % _BITS
        second = (_HASH - value) * pow(_ADD, -1, _BITS) % _BITS
        second -= _BITS * (second >= _BITS // 2)
        if -_MODULUS < second < _MODULUS and second not in (-1, -2):
            found.append((first, second))
    return found


def with_keys(count: int) -> bytes:
    """Return a command with a map of so many keys that have the same hash."""
    pairs = with_one_hash(count)
    assert len(set(map(hash, pairs))) == 1
    items = b"".join(b"\x92\xcf%b\xd3%b\xc0" % (struct.pack(">Q", one), struct.pack(">q", two)) for one, two in pairs)
    return b"\x82\xa3cmd\xa4Ping\xa1x\xdf" + struct.pack(">I", count) + items


def with_numbers(count: int, levels: int, last: bytes) -> bytes:
    """Return a command with an array of numbers and one more value, below so many levels."""
    numbers = b"\xdd" + struct.pack(">I", count + 1) + b"\x01" * count + last
    return b"\x82\xa3cmd\xa4None\xa1x" + b"\x91" * levels + numbers


TOKEN = "secret-token-of-a-test"
DISTANT_DATE = b"\xd7\xff" + b"\xff" * 8  #: one that no datetime holds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path: Path = tmp_path_factory.mktemp("asks")
    with ServerProcess(path / "data", env={"AUTH_TOKENS": TOKEN}) as running:
        yield running


def cost_s(server: ServerProcess, body: bytes, count: int) -> float:
    """Return how long the server computes for frames of a client without a token, in seconds."""
    before = cpu_s(server.pid)
    for start in range(0, count, limits.stranger_commands_max):
        some = min(limits.stranger_commands_max, count - start)
        with TcpClient(server.tcp_port) as client:
            client.socket.sendall((struct.pack(">I", len(body)) + body) * some)
            for _ in range(some):
                assert client.read()["ok"] is False
    return cpu_s(server.pid) - before


def test_keys_with_equal_hashes_cost_no_more_than_texts(server: ServerProcess) -> None:
    bad = with_keys(3_200)
    assert len(bad) < limits.stranger_frame_bytes_max
    plain = msgspec.msgpack.encode({"cmd": "None", "x": {f"{number:016}": None for number in range(3_200)}})
    assert cost_s(server, bad, 30) <= 3 * cost_s(server, plain, 30) + 0.3


def test_a_date_below_many_levels_costs_little(server: ServerProcess) -> None:
    plain = cost_s(server, with_numbers(30_000, 60, b"\x01"), 20)
    assert cost_s(server, with_numbers(30_000, 400, DISTANT_DATE), 20) <= 40 * plain + 0.5


def test_frames_that_are_refused_do_not_keep_other_clients_waiting(server: ServerProcess) -> None:
    """The answer to another client does not wait until all of what one client has sent is refused."""
    bad = struct.pack(">I", 1) + b"\xc1"
    with TcpClient(server.tcp_port) as client, server.client() as other:
        client.ok("Auth", token=TOKEN)  # a client without a token is cut off after a few commands
        client.socket.sendall(bad * 40_000)  # 200 kB, which the server reads at once
        next(reply for reply in iter(client.read, None) if reply["ok"] is False)
        assert other.get("/live").status_code == 200
        client.socket.setblocking(False)
        first = 0
        with contextlib.suppress(BlockingIOError):  # nothing more has arrived yet
            first = len(client.socket.recv(1 << 26))
        client.socket.settimeout(30)
        received = first
        size = len(msgpack.packb({"ok": False, "error": "Invalid command format", "code": "invalid_input"})) + 4
        assert first < 40_000 * size // 2, "all frames were refused before the other client was answered"
        while received < (40_000 - 1) * size:
            received += len(client.socket.recv(1 << 20))


KEY = [1, 2]


@pytest.mark.parametrize("shift", range(3))
def test_array_keys_are_found_wherever_they_are(shift: int) -> None:
    many: dict[Any, Any] = {"a": [{(number, 1): [number] * shift} for number in range(200)] * 2}
    filler = {f"k{number}": None for number in range(20)}
    with pytest.raises(InvalidInput, match=jsonable.BAD_KEY):
        tcp_frames.decode(msgpack.packb({"cmd": "Ping", "f": filler, "b": "x" * shift, **many}))


def test_arrays_that_are_no_keys_are_taken() -> None:
    values = {"d": {f"k{number}": [[number], {"a": [1.5, None, "text", b"\x93", 2**40]}] for number in range(300)}}
    message = {"cmd": "PUSH", "date": msgpack.Timestamp(1), **values}
    assert tcp_frames.decode(msgpack.packb(message))["d"] == values["d"]
