"""Leases that this server has handed out from ready lists and that are not in the database yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core.ids import time_of

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from penstock.engine.unit_of_work import UnitOfWork


class At(NamedTuple):
    """A moment that has passed."""

    now_ms: int
    steady_ms: int

    def serial(self) -> int:
        """Raise NotImplementedError: serials cannot be made for the past."""
        raise NotImplementedError


class UnconfirmedLease(NamedTuple):
    """A job that a worker has, and since when."""

    job_id: int
    at: At
    lease_ms: int
    owner: str | None


class UnconfirmedLeases:
    """The leases, by token."""

    def __init__(self) -> None:
        self._by_token: dict[int, UnconfirmedLease] = {}

    def __len__(self) -> int:
        return len(self._by_token)

    def __contains__(self, token: int) -> bool:
        return token in self._by_token

    def add(self, token: int, lease: UnconfirmedLease) -> None:
        """Add a job that was handed out."""
        self._by_token[token] = lease

    def older_than(self, steady_ms: int, limit: int) -> dict[int, UnconfirmedLease]:
        """Return some leases that were handed out before a moment, oldest first, by token."""
        found: dict[int, UnconfirmedLease] = {}
        for token, lease in self._by_token.items():
            if lease.at.steady_ms >= steady_ms or len(found) >= limit:
                break
            found[token] = lease
        return found

    def forget(self, token: int) -> None:
        """Remove a lease that is in the database."""
        self._by_token.pop(token, None)

    def begin(self, work: UnitOfWork, job: JobRecord) -> None:
        """Record the lease of a job that its worker settles or renews, if the job was set aside: start and length."""
        if job.started_at is not None:
            return
        lease = self._by_token.get(job.token)
        if lease is None:  # another server handed it out: the time it was set aside is the best known start
            aside = work.steady_ms if job.lease_until is None else min(work.steady_ms, job.lease_until - job.lease_ms)
            work.begin(job, job.lease_ms, At(time_of(job.token), aside))
        else:
            work.begin(job, lease.lease_ms, lease.at)
            work.after_commit.append(lambda: self.forget(job.token))
