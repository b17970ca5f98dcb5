"""Base of all bulk endpoints: the namespace of a request, the bulk processes and the spool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.access.identity import ANYWHERE
from penstock.bulkwork.pool import BulkProcesses
from penstock.bulkwork.spool import Spool, shared_place
from penstock.core import limits
from penstock.core.errors import HistoryReplaced, InvalidInput, StorageFailed
from penstock.core.history import History
from penstock.engine.bulk.staged_writes import PackedRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.config import Config
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi, ShardApi
    from penstock.store.contract import Store


class BulkService:
    """The bulk processes of a server and its spool."""

    def __init__(self, config: Config, engine: EngineApi) -> None:
        self.clock = engine.clock
        self.processes = BulkProcesses(config.bulk_processes, engine.clock, config.bulk_memory_bytes)
        files = any(each.store.source.startswith("sqlite:") for each in engine.engines)
        base = config.data / "spool" if files else shared_place()
        self.spool = Spool(base, config.bulk_spool_bytes, share=config.bulk_processes)
        self.spool.clean()
        self._removing: set[asyncio.Task[None]] = set()

    async def answer(self, task: str, **given: Any) -> dict[str, Any]:
        """Run a task that makes one file, and return the task's result. The file is removed after some time."""
        directory = self.spool.directory()
        size = 0
        try:
            made: dict[str, Any] = await self.processes.run(task, self.spool, directory=str(directory), **given)
            size = made.get("bytes", 0)
            self.spool.keep(size)
        except BaseException:
            await self.spool.remove(directory, size)
            raise
        if not size:
            await self.spool.remove(directory, 0)
            return made
        self.clock.call_at(self.clock.steady_ms() + limits.bulk_answer_ms, lambda: self._remove(directory, size))
        return made

    async def pack(self, body: bytes, constants: Mapping[str, str]) -> list[PackedRows]:
        """Check rows that are to be staged, and pack them for their queues. Raises InvalidInput."""
        directory = self.spool.directory()
        loop = asyncio.get_running_loop()
        path = directory / "rows.arrow"
        size = len(body)
        self.spool.keep(size)
        try:
            await loop.run_in_executor(None, path.write_bytes, body)
            made: dict[str, Any] = await self.processes.run(
                "pack", self.spool, path=str(path), constants=constants, directory=str(directory)
            )
            return await loop.run_in_executor(None, _read_chunks, Path(made["path"]), made["chunks"])
        finally:
            await self.spool.remove(directory, size)

    def _remove(self, directory: Path, size: int) -> None:
        task = asyncio.get_running_loop().create_task(self.spool.remove(directory, size), name="penstock-bulk-remove")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def close(self) -> None:
        """Stop the work in progress, and remove all files."""
        await self.processes.close()
        self.spool.close()


def _read_chunks(path: Path, chunks: list[tuple[str, int, int]]) -> list[PackedRows]:
    """Read packed rows chunk by chunk, so that they are in memory only once."""
    with path.open("rb") as file:
        return [PackedRows(queue, count, file.read(length)) for queue, count, length in chunks]


def check_history(shard: int, store: Store, expected: str) -> None:
    """Compare the history of a shard with the history of the reader's position. Raises HistoryReplaced."""
    if not expected or expected == str(store.history):
        return
    before = History.parse(expected)
    if before is None:
        raise InvalidInput("history must be as GET /bulk has it: the identity of a store, a colon, and a number")
    same = before.identity == store.history.identity
    raise HistoryReplaced(
        f"The journal of shard {shard} is not the one that was read: "
        + ("its store was restored, or has lost events." if same else "it is of another server, or its store was emptied.")
    )


class BulkDoor:
    """Base class of the handlers."""

    def __init__(self, engine: EngineApi, service: BulkService) -> None:
        self.engine = engine
        self.service = service

    @staticmethod
    def namespace(req: Request) -> str:
        """Return the namespace of a request; ``*``: all namespaces. The right to it is already checked."""
        if req.header("x-namespace") == ANYWHERE:
            return ANYWHERE
        return req.namespace()

    def shard(self, number: int) -> ShardApi:
        """Return a shard that is readable. Raises InvalidInput, StorageFailed."""
        engines = self.engine.engines
        if not 0 <= number < len(engines):
            raise InvalidInput(f"There is no shard {number}: they are counted from 0 to {len(engines) - 1}. See GET /bulk.")
        if not engines[number].store.status().writable:
            raise StorageFailed(f"Shard {number} cannot be read now. Retry in a moment.")
        return engines[number]
