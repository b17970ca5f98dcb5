"""Leases of messages that were dequeued together: an action on one of them shows that their consumer is active.

A consumer of mqueue takes several messages and works on one after the other. It sends no heartbeat for the later ones. So
each ack, nack and heartbeat renews the leases of the messages that were dequeued together with it. A consumer that dies
sends nothing more, and all its leases expire. No lease is renewed before a third of it is over, so a quick consumer causes
no extra work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.engine.jobs.settle_by_id import ClaimedJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.queue import QueueKey


class _Together:
    """Messages that were dequeued together and are not settled yet. Times in steady ms."""

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
    """The groups of messages that this server has delivered. They are not known to other servers, or after a restart."""

    def __init__(self) -> None:
        self._groups: dict[int, _Together] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def take(self, topic: QueueKey, ids: Sequence[int], lease_ms: int, now_ms: int) -> None:
        """Add messages that were dequeued together. ``now_ms``: steady."""
        if len(ids) < 2:
            return
        together = _Together(topic, ids, lease_ms, now_ms)
        groups = self._groups
        for each in ids:
            groups.pop(each, None)  # it may be in an earlier group, and must be in the latest
            groups[each] = together
        while len(groups) > limits.batch_leases_max or groups[next(iter(groups))].until_ms <= now_ms:
            del groups[next(iter(groups))]  # the oldest group; its leases are over, or are not renewed here

    def settled(self, ids: Iterable[int], now_ms: int) -> list[ClaimedJob]:
        """Remove settled messages. Return those whose leases must be renewed now because of it."""
        alive: dict[int, _Together] = {}
        for each in ids:
            together = self._groups.pop(each, None)
            if together is not None:
                together.ids.discard(each)
                alive[id(together)] = together
        return self._due(alive.values(), now_ms)

    def renewed(self, ids: Iterable[int], now_ms: int) -> list[ClaimedJob]:
        """Return the other messages of the same groups whose leases must be renewed now."""
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
