"""The data of a job beside its row: payload, result and log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import JobRecord, Payload


class LogEntry(msgspec.Struct, frozen=True):
    """A line of a job's log, written by a worker."""

    at: int  #: wall clock, ms
    level: str
    message: str


class JobDataTransaction(Protocol):
    """Payloads, results and logs, inside of a transaction."""

    async def payload_save(self, payloads: Sequence[tuple[JobRecord, Payload]]) -> None:
        """Replace the payloads of jobs, each job once."""

    async def payload_load(self, ids: Iterable[int]) -> dict[int, Payload]:
        """Read the payloads of jobs, by id. Unknown ids are left out; a damaged job is quarantined."""

    async def result_save(self, results: Iterable[tuple[int, bytes]]) -> None:
        """Write the results of jobs, by job."""

    async def result_remove(self, ids: Iterable[int]) -> None:
        """Delete the results of jobs."""

    async def result_load(self, job_id: int) -> bytes | None:
        """Read the result of a job."""

    async def log_append(self, job_id: int, entry: LogEntry, keep: int) -> None:
        """Add a line to a job's log and delete the oldest lines beyond ``keep``."""

    async def log_insert(self, logs: Sequence[tuple[int, Sequence[LogEntry]]]) -> None:
        """Write whole logs, by job; the jobs have no logs yet."""

    async def log_clear(self, job_id: int, keep: int = 0) -> None:
        """Delete a job's log, except for the last ``keep`` lines."""


class JobDataReads(Protocol):
    """Results and logs, outside of transactions."""

    async def result_get(self, job_id: int, *, namespace: str = "") -> bytes | None:
        """Read the result of a job."""

    async def result_list(self, ids: Sequence[int], *, namespace: str = "") -> dict[int, bytes]:
        """Read the results of some jobs, on its own connection; jobs without a result are left out.

        Raises InvalidInput if they are larger than ``list_bytes_max``.
        """

    async def log_get(self, job_id: int, *, namespace: str = "") -> list[LogEntry]:
        """Read a job's log, oldest first."""
