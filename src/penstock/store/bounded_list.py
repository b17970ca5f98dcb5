"""A requested list whose size is limited, to protect its reader and the server's memory."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from penstock.core import limits
from penstock.core.errors import InvalidInput

T = TypeVar("T")

#: The order of a page of jobs, forwards and backwards; the place of the columns is a parameter.
ORDER: Final = {
    False: "{0}priority desc, {0}position, {0}id",
    True: "{0}priority, {0}position desc, {0}id desc",
}


class BoundedList(Generic[T]):
    """Adds items until they are larger than ``list_bytes_max``; the first item is always added.

    ``what``: what is too large, and what the caller can do, for the error.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.items: list[T] = []
        self._what = what
        self._remedy = remedy
        self._bytes = 0

    def add(self, item: T, size_bytes: int) -> None:
        """Add an item. Raises InvalidInput if the list becomes too large."""
        self._bytes += size_bytes
        if self._bytes > limits.list_bytes_max and self.items:
            most = limits.list_bytes_max // limits.MEBIBYTE
            raise InvalidInput(
                f"{self._what} larger than {most} MiB. {self._remedy}: the first {len(self.items)} would fit."
            )
        self.items.append(item)
