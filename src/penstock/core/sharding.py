"""Which shard a queue lives on. The same on every server: changing the number of shards is a rebalance, see docs/shards.md."""

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
    """Return the number of the shard where it is written down which shard has the job of that name (a ``jobId``)."""
    return fnv1a32(f"{namespace}\0{name}") % shards


def shard_for(queue: QueueKey, shards: int) -> int:
    """Return the number of the shard of a queue, from 0 to ``shards`` - 1."""
    return 0 if shards == 1 else _shard_for(queue, shards)


@lru_cache(maxsize=8_192)
def _shard_for(queue: QueueKey, shards: int) -> int:
    return fnv1a32(queue.namespace + queue.name) % shards


class Layout(NamedTuple):
    """Which of how many shards a store is. Written into it when it is first used; only a rebalance changes it.

    A store whose number is not below ``shards`` has no queues: it is spare, because it was added and nothing was moved to it
    yet, or because everything was moved away from it. It may be left away.
    """

    shard: int
    shards: int  #: queues are spread over so many
    epoch: int = 0  #: how many rebalances were finished
    target: int | None = None  #: over how many they will be spread by the rebalance that is under way

    @property
    def needed(self) -> int:
        """How many stores a server must have."""
        return max(self.shards, self.target or 0)

    @property
    def has_moved(self) -> bool:
        """Tell whether queues may have moved, so that the number in an id does not say for sure where its job is."""
        return self.epoch > 0 or self.target is not None

    @property
    def may_be_elsewhere(self) -> bool:
        """Tell whether a job that is not here, though its id says so, may be on another shard."""
        return self.has_moved and self.needed > 1

    def takes(self, queue: QueueKey) -> bool:
        """Tell whether a new queue may be made here.

        During a rebalance that is so at its old place and at its new one. Whoever comes to the new one was sent by the old
        one, which does not take it any more.
        """
        at_target = self.target is not None and shard_for(queue, self.target) == self.shard
        return at_target or shard_for(queue, self.shards) == self.shard

    def check(self, found: Layout) -> None:
        """Compare what a server was given with what is written. Raises StoreIncompatible: queues would not be found."""
        if found.shard != self.shard or found.needed > self.shards:
            moving = "" if found.target is None else f", and is being rebalanced to {found.target}"
            raise StoreIncompatible(
                f"This store is shard {found.shard} of {found.shards} (counting from 0){moving}, but was named as shard "
                f"{self.shard} of {self.shards}. Give the same stores in the same order as before; nothing was changed."
            )


def check_together(layouts: Sequence[Layout | None]) -> Layout | None:
    """Compare what several stores say of themselves; return what a new one among them should go by, None if all are new.

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
                f"These stores do not belong together: shard {each.shard} says that there are {each.shards}, and shard "
                f"{newest.shard} that there are {newest.shards}. Give the same stores as before; nothing was changed."
            )
    return newest


#: A store that is all there is.
ALONE = Layout(0, 1)
