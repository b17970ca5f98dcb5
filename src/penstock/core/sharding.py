"""Which shard a queue lives on. The same on every server, for ever: changing it would be losing queues."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.errors import StoreIncompatible

if TYPE_CHECKING:
    from penstock.core.queue import QueueKey

_OFFSET = 2_166_136_261
_PRIME = 16_777_619
_MASK = 0xFFFFFFFF


def fnv1a32(text: str) -> int:
    """Return the 32-bit FNV-1a hash of a text.

    >>> hex(fnv1a32("foobar"))
    '0xbf9cf968'
    """
    value = _OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _PRIME & _MASK
    return value


def home_of(namespace: str, name: str, shards: int) -> int:
    """Return the number of the shard where it is written down which shard has the job of that name (a ``jobId``)."""
    return fnv1a32(f"{namespace}\0{name}") % shards


@lru_cache(maxsize=65_536)
def shard_for(queue: QueueKey, shards: int) -> int:
    """Return the number of the shard of a queue, from 0 to ``shards`` - 1."""
    return fnv1a32(queue.namespace + queue.name) % shards


class Layout(NamedTuple):
    """Which of how many shards a store is. Written into it when it is first used, and true for ever after."""

    shard: int
    shards: int

    def check(self, found: Layout) -> None:
        """Compare with what is written in the store. Raises StoreIncompatible: its queues would not be found."""
        if found != self:
            raise StoreIncompatible(
                f"This store is shard {found.shard} of {found.shards} (counting from 0), but was named as shard {self.shard} "
                f"of {self.shards}. Give the same stores in the same order as before; nothing was changed."
            )


#: A store that is all there is.
ALONE = Layout(0, 1)
