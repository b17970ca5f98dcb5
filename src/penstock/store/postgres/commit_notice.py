"""The part of a commit that other servers of a shard need: changes of counts, and earlier due times.

It is stored in the journal, beside the events, so that a server that has read the journal up to a block has all of it,
exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from penstock.store.contract import Horizon


class CommitNotice(msgspec.Struct, array_like=True, omit_defaults=True):
    """The notice of one commit."""

    tallies: dict[int, list[int]] = {}
    """By queue: the change of the number of jobs in each state."""
    horizon: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    """The earliest due times that this commit has added: due, job expiry, lease expiry, cron."""
    crons: int = 0
    """The change of the number of crons."""
    webhooks: bool = False
    """Whether webhooks were changed, including those that messages are pushed to."""
    unfollowed: bool = False
    """Whether there are ends that dependent jobs must receive."""
    fronts: list[int] = []
    """Queues in which a job got a position that other servers may count as empty; see queue_heads.py."""
    queues: list[int] = []
    """Queues that were created, removed, or got other settings: a claim that waits at a paused one may get a job now."""


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(CommitNotice).decode


def bring_forward(horizon: Horizon, news: CommitNotice) -> None:
    """Apply the due times of a commit that are earlier than the known ones."""
    due, job_expiry, lease_expiry, cron = news.horizon
    horizon.due_ms = earlier(horizon.due_ms, due)
    horizon.job_expiry_ms = earlier(horizon.job_expiry_ms, job_expiry)
    horizon.lease_expiry_ms = earlier(horizon.lease_expiry_ms, lease_expiry)
    horizon.cron_ms = earlier(horizon.cron_ms, cron)
    horizon.unfollowed = horizon.unfollowed or news.unfollowed


def earlier(known: int | None, new: int | None) -> int | None:
    """Return the earlier of two moments; each may be None."""
    if new is None:
        return known
    return new if known is None or new < known else known
