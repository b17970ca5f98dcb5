"""Jobs, read and written in batches, and listings of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import Delivery, JobRecord, Payload
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue


class Place(NamedTuple):
    """The position of a job among the jobs of its queue and state, in the order of a listing."""

    at: int  #: wall clock: when it finished, or is due; 0 for one that is waiting or active
    id: int


class Selection(NamedTuple):
    """A limited selection of jobs of one queue in one state, in order: by the time they finished or are due, then by id."""

    queue: Queue
    state: State
    limit: int
    up_to_id: int  #: leave out jobs that were pushed later, or were claimed and returned since
    before_ms: int | None = None  #: only jobs pushed (or, if finished, finished) before this wall-clock time
    after: Place = Place(0, 0)  #: only jobs after this place


class Page(NamedTuple):
    """A page of a listing, highest priority first."""

    queue: Queue
    states: tuple[State, ...]
    limit: int
    offset: int = 0
    prioritized: bool | None = (
        None  #: of the waiting jobs, only those with a priority above 0, or only the others; None: all
    )
    descending: bool = False  #: in reverse order
    shared: bool = False  #: the reading thread pauses regularly, so that the event loop can run


class FinishedMinutes(NamedTuple):
    """When finished jobs ended."""

    total: int = 0
    last_at: int = 0  #: wall clock, ms: when the last of them ended; 0: none
    minutes: tuple[tuple[int, int], ...] = ()  #: minutes since 1970 with the number of jobs that ended in each, newest first

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> FinishedMinutes:
        """Make it from rows: the minute, the number of jobs, when the last of them ended. Newest first."""
        found = [tuple(row) for row in rows]
        last_at = found[0][2] if found else 0
        return cls(sum(row[1] for row in found), last_at, tuple((row[0], row[1]) for row in found))

    def per_minute(self, minutes_max: int) -> list[int]:
        """Return the number of ends in each minute, newest first, up to the oldest minute with one. Gaps are zeros."""
        if not self.minutes:
            return []
        newest = self.minutes[0][0]
        places = [(newest - minute, count) for minute, count in self.minutes if newest - minute < minutes_max]
        counts = [0] * (places[-1][0] + 1)
        for place, count in places:
            counts[place] = count
        return counts


class JobTransaction(Protocol):
    """Jobs, inside of a transaction."""

    async def job_insert(self, jobs: Sequence[tuple[JobRecord, Payload]]) -> None:
        """Write new jobs. Their ids are new."""

    async def job_load(self, ids: Iterable[int]) -> list[JobRecord]:
        """Read jobs and lock them for this transaction. Unknown ids are left out; a damaged job is quarantined."""

    async def job_find_ids(self, names: Iterable[tuple[int, str]]) -> list[int]:
        """Return the ids of the jobs that have custom ids, by namespace and custom id, without locking the jobs."""

    async def job_find_custom(self, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRecord]:
        """Read jobs by custom id, by namespace and id; locked like ``job_load``, unknown ones left out."""

    async def job_find_unique(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRecord]:
        """Read the unfinished (waiting, delayed, active or waiting-children) jobs with unique keys, by queue and key.

        Locked like ``job_load``. Keys without a job are left out.
        """

    async def job_ready(self, queue: Queue, limit: int, *, bodies: bool = True) -> list[tuple[JobRecord, Payload]]:
        """Read the next waiting jobs in order of priority, then position, locked for this transaction.

        Of one group at most as many as its limit allows; a group at its limit is left out. Fewer than ``limit`` when their
        payloads reach ``claim_batch_bytes_max``. ``bodies``: False if the payloads are not needed.
        """

    async def job_due(self, now_ms: int, limit: int) -> list[JobRecord]:
        """Read delayed jobs that are due, earliest first."""

    async def job_lease_expired(self, steady_ms: int, limit: int) -> list[JobRecord]:
        """Read active jobs whose lease has ended."""

    async def job_expired(self, now_ms: int, limit: int) -> list[JobRecord]:
        """Read waiting and delayed jobs whose time-to-live has ended."""

    async def job_save(self, jobs: Sequence[tuple[JobRecord, int, int]]) -> None:
        """Write jobs back, each with the state and token it was read with. Raises RowChanged if they have changed."""

    async def job_lease(self, jobs: Sequence[tuple[JobRecord, int, int]]) -> None:
        """The same as ``job_save`` for waiting jobs that were just claimed, without any other change."""

    async def job_remove(self, jobs: Sequence[tuple[JobRecord, int, int]]) -> None:
        """Delete jobs with all their data, guarded like ``job_save``."""

    async def job_rewrite(self, jobs: Sequence[JobRecord]) -> None:
        """Write the fields of jobs that otherwise never change.

        The other fields are as they were last read or saved; they guard the write.
        """


class JobReads(Protocol):
    """Jobs, outside of transactions."""

    async def job_get(self, namespace: str, ref: int | str) -> tuple[JobRecord, Payload] | None:
        """Read one job by its id or custom id. Raises JobQuarantined for a damaged one."""

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        """Find the ids of jobs by their custom ids. Unknown ones are left out."""

    async def job_select(self, selection: Selection) -> list[Place]:
        """Find a limited selection of jobs, on its own connection. Their states may have changed when they are loaded."""

    async def job_page(self, page: Page) -> list[Delivery]:
        """Read a page of a listing, on its own connection."""

    async def job_fetch(self, ids: Sequence[int], *, namespace: str = "") -> list[Delivery]:
        """Read some jobs with their payloads, on its own connection. Unknown and damaged ones are left out.

        Jobs beyond ``claim_batch_bytes_max`` are left out, too: the caller sends another claim for the rest.
        """

    async def head_list(self, ids: Sequence[int], *, namespace: str = "") -> list[JobRecord]:
        """Read some jobs without their payloads, in this order. Unknown and damaged ones are left out."""

    async def finished_minutes(self, queue: Queue, state: State) -> FinishedMinutes:
        """Count the completed or dead jobs that are kept, by the minute of their end. The cost grows with their number."""
