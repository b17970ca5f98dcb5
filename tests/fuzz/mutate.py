"""Makes broken inputs out of sound ones. The same seed makes the same inputs."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NUMBER = re.compile(rb"-?\d+")
NUMBERS = (
    b"-1", b"-0", b"0", b"00", b"1", b"007", b"+1", b"1.5", b"1e9", b"255", b"1024", b"65536", b"16384", b"16385",
    b"536870913", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807", b"18446744073709551616", b"9" * 30,
)  # fmt: skip
BYTES = (b"\0", b"\r", b"\n", b"\r\n", b"\n\n\n", b" ", b"\t", b'"', b"'", b"\\", b"\xff", b"\xed\xa0\x80", b"{", b"[" * 100)


class Mutator:
    """``corpus``: sound inputs. ``words``: pieces of the language they are in, put in where they do not belong."""

    def __init__(self, seed: int, corpus: Sequence[bytes], words: Sequence[bytes] = ()) -> None:
        self.random = random.Random(seed)
        self._corpus = corpus
        self._words = (*words, *BYTES, *NUMBERS)
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._flip, self._replace, self._insert, self._cut, self._repeat, self._truncate, self._splice, self._renumber,
        )  # fmt: skip

    def inputs(self, count: int) -> Iterator[bytes]:
        """Make so many inputs, each a few steps away from one or two sound ones."""
        rng = self.random
        for _ in range(count):
            data = rng.choice(self._corpus)
            if rng.random() < 0.3:
                data += rng.choice(self._corpus)
            for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
                data = rng.choice(self._ways)(data)
            yield data

    def cuts(self, data: bytes) -> list[bytes]:
        """Cut an input into pieces, as a network may."""
        rng = self.random
        way = rng.random()
        if way < 0.5 or len(data) < 2:
            return [data]
        if way < 0.6 and len(data) < 200:
            return [data[place : place + 1] for place in range(len(data))]
        places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 5)))
        return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]

    def _place(self, data: bytes) -> int:
        return self.random.randrange(len(data) + 1)

    def _range(self, data: bytes) -> tuple[int, int]:
        start = self._place(data)
        return start, min(len(data), start + self.random.choice((1, 1, 2, 3, 8, 32, 1_000)))

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        place = self.random.randrange(len(data))
        return data[:place] + bytes((data[place] ^ 1 << self.random.randrange(8),)) + data[place + 1 :]

    def _replace(self, data: bytes) -> bytes:
        start, end = self._range(data)
        return data[:start] + self.random.choice(self._words) + data[end:]

    def _insert(self, data: bytes) -> bytes:
        place = self._place(data)
        return data[:place] + self.random.choice(self._words) + data[place:]

    def _cut(self, data: bytes) -> bytes:
        start, end = self._range(data)
        return data[:start] + data[end:]

    def _repeat(self, data: bytes) -> bytes:
        start, end = self._range(data)
        return data[:end] + data[start:end] * self.random.choice((1, 2, 50)) + data[end:]

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def _splice(self, data: bytes) -> bytes:
        other = self.random.choice(self._corpus)
        return data[: self._place(data)] + other[self._place(other) :]

    def _renumber(self, data: bytes) -> bytes:
        numbers = list(_NUMBER.finditer(data))
        if not numbers:
            return data
        number = self.random.choice(numbers)
        return data[: number.start()] + self.random.choice(NUMBERS) + data[number.end() :]
