"""The shard of a queue. It is the same on every server; changing the number of shards is a rebalance, see docs/shards.md."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.errors import StoreIncompatible

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Return the home shard of a name (a ``jobId``): it records which shard has the job with that name."""
    return fnv1a32(f"{namespace}\0{name}") % shards


def shard_for(queue: QueueKey, shards: int) -> int:
    """Return the number of the shard of a queue, from 0 to ``shards`` - 1."""
    return 0 if shards == 1 else _shard_for(queue, shards)


@lru_cache(maxsize=8_192)
def _shard_for(queue: QueueKey, shards: int) -> int:
    return fnv1a32(queue.namespace + queue.name) % shards


class Layout(NamedTuple):
    """The number of a store among the shards. Written into the store when it is first used; only a rebalance changes it.

    A store whose number is not below ``shards`` has no queues: it is spare, because it was added and no queue has moved to
    it yet, or because all queues have moved away from it. The server can run without it.
    """

    shard: int
    shards: int  #: number of shards with queues
    epoch: int = 0  #: number of finished rebalances
    target: int | None = None  #: number of shards with queues after the current rebalance

    @property
    def needed(self) -> int:
        """Number of stores that a server must have."""
        return max(self.shards, self.target or 0)

    @property
    def has_moved(self) -> bool:
        """Whether queues may have moved, so that the number in an id may not be the shard of its job."""
        return self.epoch > 0 or self.target is not None

    @property
    def may_be_elsewhere(self) -> bool:
        """Return whether a job that is not here, although its id has this shard's number, may be on another shard."""
        return self.has_moved and self.needed > 1

    def takes(self, queue: QueueKey) -> bool:
        """Return whether a new queue may be created here.

        During a rebalance this is true at its old place and at its new one. A request at the new place was sent there by the
        old one, which no longer accepts it.
        """
        at_target = self.target is not None and shard_for(queue, self.target) == self.shard
        return at_target or shard_for(queue, self.shards) == self.shard

    def check(self, found: Layout) -> None:
        """Compare the server's settings with the stored layout.

        Raises StoreIncompatible if they differ: queues would not be found.
        """
        if found.shard != self.shard or found.needed > self.shards:
            moving = "" if found.target is None else f", and is being rebalanced to {found.target}"
            raise StoreIncompatible(
                f"This store is shard {found.shard} of {found.shards} (counting from 0){moving}, but was named as shard "
                f"{self.shard} of {self.shards}. Set the same stores in the same order as before; nothing was changed."
            )


def check_together(layouts: Sequence[Layout | None]) -> Layout | None:
    """Compare the layouts of several stores; return the layout for a new store among them, None if all are new.

    Raises StoreIncompatible if they cannot belong together.
    """
    known = [each for each in layouts if each is not None]
    if not known:
        return None
    newest = max(known, key=lambda each: (each.epoch, each.target or 0))
    for each in known:
        same = each.epoch == newest.epoch and each.shards == newest.shards and each.target in (None, newest.target)
        flipping = each.epoch == newest.epoch - 1 and each.target == newest.shards
        if not same and not flipping:
            raise StoreIncompatible(
                f"These stores are not of one set: shard {each.shard} has a record of {each.shards} shards, and shard "
                f"{newest.shard} of {newest.shards}. Set the same stores as before. Nothing was changed."
            )
    return newest


#: The layout of a single store.
ALONE = Layout(0, 1)
