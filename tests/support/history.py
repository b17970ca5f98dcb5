"""What clients did and saw, and whether a queue that does what it promises could have answered so.

The words are Jepsen's. A history is written by clients only, never by the server. An operation ended ``ok`` (2xx), ``fail``
(the server said it did not happen) or ``info`` (nobody knows: the connection broke before the answer).
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Delivery:
    at: float  # when the worker had it in hands
    job: str
    token: str
    attempt: int
    lease_ms: int
    epoch: int  # which start of the server handed it out
    asked_at: float  # when the worker asked: the lease cannot have begun earlier


@dataclass
class Ack:
    asked_at: float
    answered_at: float
    job: str
    token: str
    outcome: str


@dataclass
class History:
    """Items are told apart by the payload each producer wrote into its job: unique, and known before the push."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: dict[str, str] = field(default_factory=dict)  # item: job id
    refused: set[str] = field(default_factory=set)
    deliveries: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    acks: dict[str, list[Ack]] = field(default_factory=lambda: defaultdict(list))
    left_over: set[str] = field(default_factory=set)  # items still in the store, or dead, at the end
    epoch: int = 0

    @staticmethod
    def now() -> float:
        return time.monotonic()


@dataclass
class Verdict:
    acknowledged: int
    delivered: int
    duplicates: int
    lost: set[str]
    unexpected: set[str]
    failed_seen: set[str]
    resurrected: set[str]
    two_holders: set[str]
    stale_ok: set[str]
    unexplained: set[str]
    recovered: int

    @property
    def is_clean(self) -> bool:
        return not any(
            (
                self.lost,
                self.unexpected,
                self.failed_seen,
                self.resurrected,
                self.two_holders,
                self.stale_ok,
                self.unexplained,
            )
        )

    def __str__(self) -> str:
        bad = {name: len(value) for name, value in vars(self).items() if isinstance(value, set)}
        return (
            f"{self.acknowledged} acknowledged, {self.delivered} delivered, "
            f"{self.duplicates} duplicates, {self.recovered} recovered, {bad}"
        )


def judge(history: History) -> Verdict:
    """Compare what was promised with what was seen."""
    seen = set(history.deliveries) | history.left_over
    verdict = Verdict(
        acknowledged=len(history.acknowledged),
        delivered=sum(map(len, history.deliveries.values())),
        duplicates=0,
        lost=set(history.acknowledged) - seen,
        unexpected=seen - history.attempted,
        failed_seen=seen & history.refused,
        resurrected=set(),
        two_holders=set(),
        stale_ok=set(),
        unexplained=set(),
        recovered=len((seen & history.attempted) - set(history.acknowledged)),
    )
    for item, deliveries in history.deliveries.items():
        # Whoever asked first may have waited longest: of two overlapping long polls, the later one can be served first.
        deliveries.sort(key=lambda delivery: (delivery.attempt, delivery.asked_at))
        done = [ack for ack in history.acks[item] if ack.outcome == "ok"]
        for ack in done:
            if any(delivery.asked_at > ack.answered_at for delivery in deliveries):
                verdict.resurrected.add(item)
            # Not by the order of tokens: a server whose transaction was held up gives a lower one than another did meanwhile.
            shown = [each.at for each in deliveries if each.token == ack.token]
            if any(each.asked_at > min(shown) and each.at < ack.asked_at for each in deliveries if shown):
                verdict.stale_ok.add(item)
        for before, after in itertools.pairwise(deliveries):
            verdict.duplicates += 1
            # A lease begins on the server between asking and getting. Its holder may be sure of it until then plus its length.
            certain_until = before.asked_at + before.lease_ms / 1000
            if after.at < certain_until:
                verdict.two_holders.add(item)
            unknown = any(ack.outcome == "info" and ack.token == before.token for ack in history.acks[item])
            if after.at < certain_until and not unknown and before.epoch == after.epoch:
                verdict.unexplained.add(item)
    return verdict
