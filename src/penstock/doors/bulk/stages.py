"""Handlers of staged writes: rows that are not visible before a commit publishes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.queue import QueueKey
from penstock.doors.bulk.wire import ARROW
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import check_queue_name

if TYPE_CHECKING:
    from penstock.doors.bulk.service import BulkService
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi
    from penstock.engine.bulk.staged_writes import StagedWrites

TAG: Final = "Bulk"
_NAME: Final = re.compile(r"[A-Za-z0-9_.:@=+~-]+\Z")

Key = Annotated[str, Meta(min_length=1, max_length=limits.idempotency_key_chars_max, pattern=r"^[^\x00]*\Z")]


class CommitBody(msgspec.Struct):
    """A commit of staged rows. ``key``: the same key is the same commit. ``wait_ms``: the longest wait until it is done."""

    key: Key
    txns: Annotated[list[str], Meta(max_length=limits.commit_txns_max)]
    wait_ms: Annotated[int, Meta(ge=0, le=limits.completion_wait_ms_max)] = 0


class StageQuery(msgspec.Struct):
    """Query of a part of a staged write. Other parameters are constants for missing columns."""

    part: Annotated[int, Meta(ge=0, le=limits.stage_part_max)] = 0
    queue: str | None = None
    priority: int | None = None
    delay: int | None = None
    run_at: int | None = None
    max_attempts: int | None = None
    backoff: int | None = None
    ttl: int | None = None
    timeout: int | None = None
    unique_key: str | None = None
    group_id: str | None = None
    headers: str | None = None
    lifo: str | None = None
    durable: str | None = None
    remove_on_complete: str | None = None


class StagedReply(msgspec.Struct):
    """The rows that are staged as a part."""

    rows: int
    bytes: int  #: as they are stored


class CommitReply(msgspec.Struct):
    """The state of a commit: its rows will be published, or all are."""

    key: str
    rows: int
    state: Literal["committed", "published"]
    duplicate: bool  #: the key was used before, and nothing was changed
    known: int = 0  #: rows that made no job so far, because another job has their key or unique key


class AbortReply(msgspec.Struct):
    """The number of dropped rows. Committed rows are not dropped."""

    rows: int


COMMIT: Final = BodyReader(CommitBody)
STAGE: Final = BodyReader(StageQuery)


class StageHandlers:
    """One method per route."""

    def __init__(self, engine: EngineApi, stages: StagedWrites, service: BulkService) -> None:
        self._store = engine.store
        self._service = service
        self._stages = stages

    async def stage(self, req: Request, txn: str) -> StagedReply:
        namespace = req.namespace()
        check_name("txn", txn)
        constants = req.query()
        part = STAGE.parse_query(req).part
        constants.pop("part", None)
        packed = await self._service.pack(await req.body(limits.stage_bytes_max), constants)
        for queue in dict.fromkeys(each.queue for each in packed):
            if self._store.queue_find(QueueKey(namespace, queue)) is None:
                check_queue_name(queue)
        stage = await self._stages.stage(namespace, txn, part, packed)
        return StagedReply(stage.rows, stage.bytes)

    async def commit(self, req: Request) -> CommitReply:
        namespace = req.namespace()
        body = await COMMIT.read(req)
        for txn in body.txns:
            check_name("txns", txn)
        done = await self._stages.commit(namespace, body.key, body.txns, body.wait_ms)
        return CommitReply(body.key, done.rows, "published" if done.published else "committed", done.duplicate, done.known)

    async def state(self, req: Request, key: str) -> CommitReply:
        done = await self._stages.state(req.namespace(), key)
        return CommitReply(key, done.rows, "published" if done.published else "committed", duplicate=False, known=done.known)

    async def abort(self, req: Request, txn: str) -> AbortReply:
        return AbortReply(await self._stages.abort(req.namespace(), txn))

    def routes(self) -> list[Route]:
        """Return the routes of staged writes."""
        routes = [
            Route(
                "POST",
                "/bulk/stages/{txn}",
                self.stage,
                "Stage rows, not visible yet",
                TAG,
                StagedReply,
                query=STAGE,
                takes=ARROW,
                body_required=True,
                also=((501, ErrorReply), (507, ErrorReply)),
            ),
            Route("POST", "/bulk/stages/{txn}/abort", self.abort, "Drop rows that are not committed", TAG, AbortReply),
            Route(
                "POST",
                "/bulk/commits",
                self.commit,
                "Publish staged rows, exactly once",
                TAG,
                CommitReply,
                COMMIT,
                body_required=True,
            ),
            Route("GET", "/bulk/commits/{key}", self.state, "The state of a commit", TAG, CommitReply),
        ]
        return [route._replace(namespaced=True) for route in routes]


def check_name(what: str, name: str) -> None:
    """Raise InvalidInput unless ``name`` is a valid name of a group or a staged write."""
    if not 0 < len(name) <= limits.name_chars_max or _NAME.match(name) is None:
        raise InvalidInput(
            f"{what} must have between 1 and {limits.name_chars_max} characters, letters, digits and _.:@=+~- only"
        )
