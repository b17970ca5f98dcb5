"""Leases of messages that were dequeued together: a word about one of them proves that their consumer lives.

A consumer of mqueue takes several messages and works through them. It never says that it is still at the later ones. So each
ack, nack and heartbeat renews the leases of the messages that came with the one it is about. A consumer that dies says nothing
more, and all its leases run out. Nothing is renewed before a third of a lease is over, so a quick consumer causes no work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.engine.jobs.settle_by_id import ClaimedJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.queue import QueueKey


class _Together:
    """Messages that were dequeued together and are not settled yet. Moments in steady ms."""

    __slots__ = ("due_ms", "ids", "lease_ms", "topic", "until_ms")

    def __init__(self, topic: QueueKey, ids: Sequence[int], lease_ms: int, now_ms: int) -> None:
        self.topic = topic
        self.ids = set(ids)
        self.lease_ms = lease_ms
        self.renew(now_ms)

    def renew(self, now_ms: int) -> None:
        self.due_ms = now_ms + self.lease_ms // 3
        self.until_ms = now_ms + self.lease_ms


class Leases:
    """What this server has handed out in groups. Another server, or this one after a restart, does not know of it."""

    def __init__(self) -> None:
        self._groups: dict[int, _Together] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def take(self, topic: QueueKey, ids: Sequence[int], lease_ms: int, now_ms: int) -> None:
        """Note that messages were dequeued together. ``now_ms``: steady."""
        if len(ids) < 2:
            return
        together = _Together(topic, ids, lease_ms, now_ms)
        groups = self._groups
        for each in ids:
            groups.pop(each, None)  # it may be of an earlier group, and has to be the latest
            groups[each] = together
        while len(groups) > limits.batch_leases_max or groups[next(iter(groups))].until_ms <= now_ms:
            del groups[next(iter(groups))]  # the oldest; its lease is over, or must do without this

    def settled(self, ids: Iterable[int], now_ms: int) -> list[ClaimedJob]:
        """Forget messages that are settled; return those whose leases are to be renewed now because of it."""
        alive: dict[int, _Together] = {}
        for each in ids:
            together = self._groups.pop(each, None)
            if together is not None:
                together.ids.discard(each)
                alive[id(together)] = together
        return self._due(alive.values(), now_ms)

    def renewed(self, ids: Iterable[int], now_ms: int) -> list[ClaimedJob]:
        """Return the messages that came with some whose leases were renewed, if theirs are to be renewed now."""
        known = set(ids)
        alive = {id(together): together for each in known if (together := self._groups.get(each)) is not None}
        return [each for each in self._due(alive.values(), now_ms) if each.id not in known]

    def _due(self, alive: Iterable[_Together], now_ms: int) -> list[ClaimedJob]:
        receipts: list[ClaimedJob] = []
        for together in alive:
            if together.ids and together.due_ms <= now_ms < together.until_ms:
                together.renew(now_ms)
                receipts += [ClaimedJob(together.topic, each) for each in sorted(together.ids)]
        return receipts
