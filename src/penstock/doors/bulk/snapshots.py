"""Snapshots: all jobs of one moment, as files that clients fetch part by part."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.access.identity import ANYWHERE
from penstock.core import limits
from penstock.core.errors import InvalidInput, SnapshotNotFound, TooMany
from penstock.core.ids import random_name
from penstock.doors.bulk import wire
from penstock.doors.bulk.service import BulkDoor, BulkService
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.route import JSON, File, Plain, Route
from penstock.doors.jobs.mapping import STATE_NAMES, STATES_BY_NAME
from penstock.store.bulk_reader import JobsWanted

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import Alarm
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi

log = structlog.get_logger("penstock.bulk")

_BODY: Final = BodyReader(wire.SnapshotBody)
_GONE: Final = Plain(b"", status=204)


class _Snapshot:
    """The files of a snapshot, its namespace, and its time of removal."""

    def __init__(self, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self.directory = directory
        self.paths: list[str] = []
        self.parts: list[wire.PartReply] = []
        self.damaged = 0
        self.unfetched: set[int] = set()  #: parts that no client has requested yet
        self.used_at = 0  #: steady clock, ms
        self.alarm: Alarm | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class SnapshotHandlers(BulkDoor):
    """``/bulk/snapshots``. ``kept_ms``: how long a snapshot is kept after its last use."""

    def __init__(self, engine: EngineApi, service: BulkService, kept_ms: int) -> None:
        super().__init__(engine, service)
        self._kept_ms = kept_ms
        self._kept: dict[str, _Snapshot] = {}
        self._making: dict[str, int] = {}  #: snapshots in progress, by namespace
        self._removing: set[asyncio.Task[None]] = set()

    async def take(self, req: Request) -> Plain:
        namespace = self.namespace(req)
        body = await _BODY.read_optional(req)
        wanted = _wanted(namespace, body)
        await self._make_room(namespace)
        self._making[namespace] = self._making.get(namespace, 0) + 1
        try:
            reply = await self._take(namespace, wanted, body.rows_per_part)
        finally:
            self._making[namespace] -= 1
            if not self._making[namespace]:
                del self._making[namespace]
        return Plain(msgspec.json.encode(reply), JSON, 201)

    async def part(self, req: Request, id: str, part: str) -> File:
        found = self._find(req, id)
        number = int(part) if part.isascii() and part.isdigit() and len(part) < 10 else -1
        if not 0 <= number < len(found.parts):
            raise SnapshotNotFound(f"This snapshot has no part {part!r}: they are counted from 0 to {len(found.parts) - 1}.")
        self._use(id, found)
        found.unfetched.discard(number)
        about = found.parts[number]
        return File(found.paths[number], wire.ARROW, about.bytes, ((wire.ROWS_HEADER, str(about.rows)),))

    async def delete(self, req: Request, id: str) -> Plain:
        self._find(req, id)
        await self._remove(id)
        return _GONE

    async def _take(self, namespace: str, wanted: JobsWanted, rows_per_part: int) -> wire.SnapshotReply:
        spool, clock = self.service.spool, self.service.clock
        taken_at = clock.now_ms()
        snapshot = _Snapshot(namespace, spool.directory())
        try:
            for number in range(len(self.engine.engines)):
                source = self.shard(number).store.source
                made = await self.service.processes.run(
                    "snapshot",
                    spool,
                    source=source,
                    shard=number,
                    wanted=msgspec.to_builtins(wanted),
                    states=STATE_NAMES,
                    directory=str(snapshot.directory),
                    rows_per_part=rows_per_part,
                )
                snapshot.damaged += made["damaged"]
                for each in made["parts"]:
                    about = wire.PartReply(len(snapshot.parts), number, each["rows"], each["bytes"])
                    spool.keep(about.bytes)
                    snapshot.parts.append(about)
                    snapshot.paths.append(each["path"])
        except BaseException:
            await spool.remove(snapshot.directory, snapshot.bytes)
            raise
        name = f"{random_name():016x}{random_name():016x}"
        snapshot.unfetched = set(range(len(snapshot.parts)))
        self._kept[name] = snapshot
        self._use(name, snapshot)
        rows = sum(part.rows for part in snapshot.parts)
        if snapshot.damaged:
            log.warning("damaged jobs were left out of a snapshot", jobs=snapshot.damaged, namespace=namespace)
        expires_at = clock.now_ms() + self._kept_ms
        return wire.SnapshotReply(name, rows, snapshot.parts, taken_at, expires_at, snapshot.damaged)

    async def _make_room(self, namespace: str) -> None:
        """Remove fetched snapshots, the longest unused first, if there are too many. Raises TooMany.

        A program like Spark does not report when it has finished with a snapshot.
        """
        while (is_full := self._is_full(namespace)) or self.service.spool.is_tight:
            before_ms = self.service.clock.steady_ms() - limits.bulk_fetched_ms
            fetched = [
                (each.namespace != namespace, each.used_at, name)
                for name, each in self._kept.items()
                if not each.unfetched and each.used_at <= before_ms
            ]
            if fetched:
                await self._remove(min(fetched)[-1])
            elif is_full:
                raise TooMany("Too many snapshots are kept. Delete some with DELETE /bulk/snapshots/{id}, or retry later.")
            else:
                return

    def _is_full(self, namespace: str) -> bool:
        theirs = sum(each.namespace == namespace for each in self._kept.values())
        return (
            len(self._kept) + sum(self._making.values()) >= limits.bulk_snapshots_max
            or theirs + self._making.get(namespace, 0) >= limits.bulk_snapshots_namespace_max
        )

    def _find(self, req: Request, name: str) -> _Snapshot:
        found = self._kept.get(name)
        if found is None or found.namespace != self.namespace(req):
            raise SnapshotNotFound
        return found

    def _use(self, name: str, snapshot: _Snapshot) -> None:
        """Extend the life of a snapshot, because it is used."""
        clock = self.service.clock
        snapshot.used_at = clock.steady_ms()
        if snapshot.alarm is None:
            snapshot.alarm = clock.call_at(snapshot.used_at + self._kept_ms, lambda: self._check_use(name, snapshot))

    def _check_use(self, name: str, snapshot: _Snapshot) -> None:
        """Remove a snapshot if it is unused for ``kept_ms``; else set the next check."""
        snapshot.alarm = None
        if self._kept.get(name) is not snapshot:
            return
        expires_at = snapshot.used_at + self._kept_ms
        if self.service.clock.steady_ms() >= expires_at:
            task = asyncio.get_running_loop().create_task(self._remove(name), name="penstock-bulk-remove")
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)
        else:
            snapshot.alarm = self.service.clock.call_at(expires_at, lambda: self._check_use(name, snapshot))

    async def _remove(self, name: str) -> None:
        snapshot = self._kept.pop(name, None)
        if snapshot is not None:
            if snapshot.alarm is not None:
                snapshot.alarm.cancel()
            await self.service.spool.remove(snapshot.directory, snapshot.bytes)

    def close(self) -> None:
        """Drop all snapshots; their files are removed with the spool."""
        for snapshot in self._kept.values():
            if snapshot.alarm is not None:
                snapshot.alarm.cancel()
        self._kept.clear()

    def routes(self) -> list[Route]:
        """Return the routes of snapshots."""
        tag, path = "Bulk", "/bulk/snapshots"
        also: Any = ((501, ErrorReply),)
        return [
            Route(
                "POST", path, self.take, "Take a snapshot of jobs", tag, wire.SnapshotReply, body=_BODY, status=201,
                namespaced=True, anywhere=True, also=also,
            ),
            Route(
                "GET", path + "/{id}/parts/{part}", self.part, "A part of a snapshot, as Arrow", tag, media=wire.ARROW,
                namespaced=True, anywhere=True,
            ),
            Route(
                "DELETE", path + "/{id}", self.delete, "Remove a snapshot", tag, status=204, namespaced=True, anywhere=True
            ),
        ]  # fmt: skip


def _wanted(namespace: str, body: wire.SnapshotBody) -> JobsWanted:
    if body.table != "jobs":
        raise InvalidInput('table must be "jobs"; the journal is read with GET /bulk/journal')
    if body.queues is not None and len(body.queues) > limits.bulk_snapshot_names_max:
        raise InvalidInput(f"queues must have at most {limits.bulk_snapshot_names_max} items")
    unknown = [each for each in body.states or () if each not in STATES_BY_NAME]
    if unknown:
        raise InvalidInput(f"states has {unknown[0]!r}: expected some of {', '.join(STATES_BY_NAME)}")
    if not 1 <= body.rows_per_part <= limits.bulk_part_rows_max:
        raise InvalidInput(f"rows_per_part must be between 1 and {limits.bulk_part_rows_max}")
    for moment in (body.created_from, body.created_to):
        if moment is not None and not 0 <= moment <= limits.timestamp_ms_max:
            raise InvalidInput(f"created_from and created_to are ms since 1970, up to {limits.timestamp_ms_max}")
    return JobsWanted(
        None if namespace == ANYWHERE else namespace,
        body.queues,
        None if body.states is None else [STATES_BY_NAME[each].value for each in body.states],
        body.created_from,
        body.created_to,
        body.include_payload,
    )
