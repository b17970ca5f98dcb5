"""The claims at one hot queue, served from its ready list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import FastPathFailed, ServerError
from penstock.engine.prefetch.commands import TakeBack
from penstock.engine.prefetch.prefetcher import Prefetcher
from penstock.engine.prefetch.unconfirmed_leases import At, UnconfirmedLease

if TYPE_CHECKING:
    from penstock.core.job import Delivery
    from penstock.core.queue import Queue
    from penstock.engine.jobs.claim import Claim
    from penstock.engine.prefetch.context import CacheContext

log = structlog.get_logger("penstock.fast")


class ListedClaim(NamedTuple):
    """A claim that waits for jobs of a ready list."""

    claim: Claim
    lease_ms: int  #: length of the lease of a job without a stall timeout of its own


class ClaimQueue:
    """Claims wait in order; the jobs for all of them are taken from the list at once."""

    def __init__(self, path: CacheContext, queue: Queue) -> None:
        self._path = path
        self.key = queue.key
        self.number = queue.number
        self.prefetcher = Prefetcher(path, queue)
        self._waiting: list[ListedClaim] = []
        self._serving: asyncio.Task[None] | None = None

    def join(self, claim: Claim, lease_ms: int) -> None:
        """Add a claim. ``lease_ms``: length of the lease of a job without a stall timeout of its own."""
        self.prefetcher.last_for(lease_ms)
        self._waiting.append(ListedClaim(claim, lease_ms))
        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve(), name="penstock-fast-line")

    async def close(self) -> None:
        """Wait until all claims in line are served, and until fetching ends."""
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        await self.prefetcher.close()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await yield_to_loop(1)  # more claims may come in this turn of the event loop
                claims = [each for each in self._waiting if not each.claim.future.done()]
                self._waiting = []
                try:
                    unserved = await self._hand_out(claims)
                except FastPathFailed:
                    self._path.failed()
                    self._leave_to_the_database(claims)
                    return
                except ServerError as error:  # the database has failed
                    for claim, _ in claims:
                        if not claim.future.done():
                            claim.future.set_exception(error)
                    continue
                except Exception:
                    log.exception("the fast path failed unexpectedly")
                    self._path.failed()
                    self._leave_to_the_database(claims)
                    return
                self._waiting[:0] = unserved
        finally:
            self._serving = None

    def _leave_to_the_database(self, claims: list[ListedClaim]) -> None:
        self._path.forget(self)
        for claim, _ in [*claims, *self._waiting]:
            if not claim.future.done():
                self._path.put_back(claim)
        self._waiting = []

    async def _hand_out(self, claims: list[ListedClaim]) -> list[ListedClaim]:
        """Serve claims from the list; return those that are to be tried again."""
        wanted = min(sum(claim.count for claim, _ in claims), limits.claim_jobs_max)
        if not wanted:
            return []
        if wanted > limits.fast_batch_jobs_max:
            self._path.leave_list(self, [claim for claim, _ in [*claims, *self._waiting]])
            self._waiting = []
            return []
        prefetcher = self.prefetcher
        if prefetcher.epoch is None and not await prefetcher.fetch_now(wanted, is_empty=True):  # there is no list yet
            self._leave_to_the_database(claims)
            return []
        lease_ms = max(each.lease_ms for each in claims)
        generation = self._path.generation
        jobs, overtaken = await self._pop(wanted, lease_ms)
        shares = _shares(claims, jobs)
        self._return(jobs[sum(len(share) for _, share in shares) :])
        if shares and not overtaken:
            caller, share = shares[-1]
            missing = min(caller.claim.count, limits.claim_jobs_max) - len(share)
            # No claim gets fewer jobs than it requested only because the list ends there.
            if missing:
                share += await self._top_up(missing, lease_ms)
        if self._path.generation != generation:  # given up meanwhile: its hand-outs are recorded, these are not
            self._leave_to_the_database(claims)
            return []
        self._give(shares)
        served = {caller for caller, _ in shares}
        unserved = [each for each in claims if each not in served and not each.claim.future.done()]
        if unserved and not shares:
            if not await prefetcher.fetch_now(wanted, is_empty=not prefetcher.depth):
                self._leave_to_the_database(unserved)
                return []
        elif prefetcher.is_low:
            prefetcher.fetch_soon()
        return unserved

    async def _top_up(self, missing: int, lease_ms: int) -> list[Delivery]:
        """Get more jobs for a claim that has some already. If that fails, the claim keeps what it has."""
        try:
            if await self.prefetcher.fetch_now(missing, is_empty=not self.prefetcher.depth):
                return (await self._pop(missing, lease_ms))[0]
        except FastPathFailed:
            self._path.failed()
        except ServerError:  # the database has failed: the next claim gets the error
            pass
        return []

    async def _pop(self, count: int, lease_ms: int) -> tuple[list[Delivery], bool]:
        """Take jobs from the list, and return whether a better one is in the database."""
        taken = await self._path.lists.pop(self._path.generation, self.number, count)
        self.prefetcher.depth, self.prefetcher.bytes = taken.left, taken.bytes
        return self._deliverable(taken.jobs, lease_ms), taken.overtaken

    def _deliverable(self, jobs: list[Delivery], lease_ms: int) -> list[Delivery]:
        """Leave out jobs that cannot be handed out any more: they are returned to the database."""
        now, steady = self._path.clock.now_ms(), self._path.clock.steady_ms()
        good: list[Delivery] = []
        bad: list[Delivery] = []
        for each in jobs:
            job = each.job
            lasts = job.lease_until is None or job.lease_until >= steady + lease_ms
            (good if lasts and (job.expires_at is None or job.expires_at > now) else bad).append(each)
        self._return(bad)
        return good

    def _return(self, jobs: list[Delivery]) -> None:
        """Return jobs to their old places in the database."""
        if jobs:
            self._path.engine.run_in_background(TakeBack([(job.id, job.token) for job, _ in jobs]))

    def _give(self, shares: list[tuple[ListedClaim, list[Delivery]]]) -> None:
        path, at = self._path, At(self._path.clock.now_ms(), self._path.clock.steady_ms())
        given = 0
        for (claim, asked_ms), share in shares:
            if claim.future.done():  # its caller left meanwhile
                self._return(share)
                continue
            given += len(share)
            for job, _ in share:
                lease_ms = path.lease_of(self.key, asked_ms, job)
                path.unconfirmed_leases.add(job.token, UnconfirmedLease(job.id, at, lease_ms, claim.owner))
                job.started_at, job.lease_ms = at.now_ms, lease_ms  # as the worker gets it
            claim.future.set_result(share)
        path.count(given)
        self.prefetcher.count(given)


def _shares(claims: list[ListedClaim], jobs: list[Delivery]) -> list[tuple[ListedClaim, list[Delivery]]]:
    """Divide jobs among claims, in the order of the claims."""
    shares: list[tuple[ListedClaim, list[Delivery]]] = []
    given = 0
    for each in claims:
        if given >= len(jobs):
            break
        if not each.claim.future.done():
            shares.append((each, jobs[given : given + each.claim.count]))
            given += len(shares[-1][1])
    return shares
