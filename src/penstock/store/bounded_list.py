"""A list that somebody asked for, and that must not get too large for its reader or for us."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from penstock.core import limits
from penstock.core.errors import InvalidInput

T = TypeVar("T")

#: The order of a page of jobs, from the first on and from the last on; where the columns are is put in.
ORDER: Final = {
    False: "{0}priority desc, {0}position, {0}id",
    True: "{0}priority, {0}position desc, {0}id desc",
}


class BoundedList(Generic[T]):
    """Takes items until they are larger than ``list_bytes_max``; one is always taken, however large it is.

    ``what``: what is larger, and what to do about it, for the error.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.items: list[T] = []
        self._what = what
        self._remedy = remedy
        self._bytes = 0

    def add(self, item: T, size_bytes: int) -> None:
        """Take one more. Raises InvalidInput if that is too much."""
        self._bytes += size_bytes
        if self._bytes > limits.list_bytes_max and self.items:
            most = limits.list_bytes_max // limits.MEBIBYTE
            raise InvalidInput(
                f"{self._what} larger than {most} MiB. {self._remedy}: the first {len(self.items)} would fit."
            )
        self.items.append(item)
