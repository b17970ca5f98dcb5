"""The server's pool of bulk processes: started on first use, replaced when one dies, ended with the server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

import penstock
from penstock.bulkwork.protocol import LENGTH_BYTES, MEMORY_VARIABLE, BulkTask, TaskOutcome, decode_outcome, frame
from penstock.core import limits
from penstock.core.errors import (
    BulkFailed,
    BulkMemory,
    BulkUnavailable,
    EpochUnknown,
    InvalidInput,
    JournalGone,
    LakeNotFound,
    LakeUnavailable,
    LakeUnusable,
    ServerError,
    ShuttingDown,
    SpoolFull,
    StorageFailed,
    TooMany,
)

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from penstock.bulkwork.spool import Spool
    from penstock.core.clock import Clock

log = structlog.get_logger("penstock.bulk")

_ERRORS: Final[dict[str, type[ServerError]]] = {
    each.code: each
    for each in (
        InvalidInput,
        SpoolFull,
        StorageFailed,
        BulkFailed,
        BulkMemory,
        EpochUnknown,
        LakeNotFound,
        LakeUnusable,
        LakeUnavailable,
    )
}


class BulkProcesses:
    """Up to ``count`` processes, each with one task at a time. While all are busy, tasks wait.

    ``memory_bytes``: the limit for each; 0: no limit. A process that has grown ends after its task.
    """

    def __init__(self, count: int, clock: Clock, memory_bytes: int = 0) -> None:
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._turns = asyncio.Semaphore(count)
        self._waiting = 0
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Return the ids of all processes, busy or not."""
        return [each.pid for each in (*self._busy, *self._idle)]

    async def run(self, name: str, spool: Spool | None = None, **given: Any) -> Any:
        """Execute a task; ``tasks`` has their names. Raises BulkFailed if its process dies during the task.

        ``spool``: the free room, at the time when the task starts, is passed to it.
        """
        if importlib.util.find_spec("pyarrow") is None:
            raise BulkUnavailable
        if self._waiting >= limits.bulk_tasks_max:
            raise TooMany("Too many bulk reads at once. Retry in a moment.")
        self._waiting += 1
        try:
            async with self._turns:
                with nullcontext() if spool is None else spool.room() as room:
                    outcome = await self._do(BulkTask(name, given if room is None else {**given, "room": room}))
        finally:
            self._waiting -= 1
        if outcome.code:
            raise _error(outcome)
        return outcome.answer

    async def close(self) -> None:
        """End all processes, even if they have a task."""
        self._closed = True
        ended = [*self._idle, *self._busy]
        self._idle = []
        for process in ended:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in ended))

    async def _do(self, task: BulkTask) -> TaskOutcome:
        process = await self._free_one()
        self._busy.add(process)
        watchdog = self._clock.call_at(self._clock.steady_ms() + limits.bulk_task_ms_max, process.kill)
        try:
            outcome = await _ask(process, task)
        except (OSError, asyncio.IncompleteReadError):
            if self._closed:
                raise ShuttingDown from None
            log.warning("a bulk process ended in the middle of a task", task=task.name, status=await process.wait())
            raise BulkFailed from None
        except BaseException:  # the caller has left: the next answer would go to another caller
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        else:
            if not self._closed and not outcome.is_last:
                self._idle.append(process)
            return outcome
        finally:
            watchdog.cancel()
            self._busy.discard(process)

    async def _free_one(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        if self._closed:
            raise ShuttingDown
        here = str(Path(penstock.__file__).parents[1])
        more = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{here}{os.pathsep}{more}" if more else here,
            MEMORY_VARIABLE: str(self._memory_bytes),
            # The system's allocator requests only what is used, and returns it. Arrow's own reserves a gigabyte.
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        }
        pipe = asyncio.subprocess.PIPE
        # Safe path (-P): nothing is imported from the directory in which the server was started.
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "penstock.bulkwork", stdin=pipe, stdout=pipe, env=environment
        )


async def _ask(process: Process, task: BulkTask) -> TaskOutcome:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(frame(task))
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
    return decode_outcome(await process.stdout.readexactly(size))


def _error(outcome: TaskOutcome) -> ServerError:
    if outcome.code == JournalGone.code:
        return JournalGone(outcome.text, first=outcome.first)
    return _ERRORS.get(outcome.code, ServerError)(outcome.text)
