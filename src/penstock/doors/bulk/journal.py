"""The journal in bulk: all events from a number on, in order. Only durable events are returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.access.identity import ANYWHERE
from penstock.core import limits
from penstock.core.errors import HistoryReplaced, InvalidInput, JournalGone
from penstock.doors.bulk import wire
from penstock.doors.bulk.service import BulkDoor, BulkService, check_history
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply, JournalGoneReply
from penstock.doors.http.route import File, Route

if TYPE_CHECKING:
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi, ShardApi
    from penstock.store.contract import Store

_QUERY: Final = BodyReader(wire.JournalQuery)
_AT: Final = BodyReader(wire.JournalAtQuery)


class JournalHandlers(BulkDoor):
    """``GET /bulk`` and ``/bulk/journal``. ``rows_max``: the most events of one read."""

    def __init__(self, engine: EngineApi, service: BulkService, rows_max: int) -> None:
        super().__init__(engine, service)
        self._rows_max = rows_max

    async def overview(self, req: Request) -> wire.BulkReply:
        self.namespace(req)
        shards = []
        for number in range(len(self.engine.engines)):
            engine = self.shard(number)
            # The order matters: the first kept event can only move up, and so can the first event that is not durable.
            history, durable_up_to, following = engine.store.history, engine.durable_up_to, await engine.store.journal_end()
            if engine.store.capabilities.is_shared:  # events of another server are durable, too
                durable_up_to = following
            shards.append(wire.ShardPlace(number, await _first_kept(engine.store), following, durable_up_to, str(history)))
        return wire.BulkReply(shards, self.engine.clock.now_ms(), __version__)

    async def read(self, req: Request) -> File:
        namespace = self.namespace(req)
        query = _QUERY.parse_query(req)
        engine = self.shard(query.shard)
        check_history(query.shard, engine.store, query.history)
        if limits.journal_seq_max >= query.from_ > await engine.store.journal_end():
            raise HistoryReplaced(
                f"The journal of shard {query.shard} ends before {engine.store.journal_next}, and {query.from_} was requested:"
                " it is another server's, or its store was emptied or restored."
            )
        seq, to = self._range(engine, query)
        first = await _first_kept(engine.store)
        if seq < first:
            raise JournalGone(f"The journal starts at {first}, and {seq} was requested.", first=first)
        made = await self.service.answer(
            "journal",
            source=engine.store.source,
            shard=query.shard,
            namespace=None if namespace == ANYWHERE else namespace,
            seq=seq,
            to=to,
        )
        return File(made["path"], wire.ARROW, made["bytes"], ((wire.ROWS_HEADER, str(made["rows"])),))

    async def at(self, req: Request) -> wire.JournalAtReply:
        self.namespace(req)
        query = _AT.parse_query(req)
        if not 0 <= query.timestamp <= limits.timestamp_ms_max:
            raise InvalidInput(f"timestamp is ms since 1970, up to {limits.timestamp_ms_max}")
        engine = self.shard(query.shard)
        following = engine.store.journal_next
        found = await self.service.processes.run("journal_at", source=engine.store.source, at_ms=query.timestamp)
        return wire.JournalAtReply(following if found is None else found)

    def _range(self, engine: ShardApi, query: wire.JournalQuery) -> tuple[int, int]:
        seq, to, durable = query.from_, query.to, engine.durable_up_to
        if not 0 <= seq <= limits.journal_seq_max:
            raise InvalidInput("from must be the number of an event: 1 or more. See GET /bulk for what there is.")
        if to is None:
            to = max(seq, min(seq + self._rows_max, durable))
        if to < seq:
            raise InvalidInput("to must not be less than from")
        if to - seq > self._rows_max:
            raise InvalidInput(f"At most {self._rows_max} events can be read at once (bulk_journal_rows). Request fewer.")
        # On a shared store, another server may have newer events than this one; the bulk process checks this itself.
        if to > durable and not engine.store.capabilities.is_shared:
            raise InvalidInput(f"to is {to}, and only what is before {durable} is durable (vouched, see GET /bulk)")
        return seq, to

    def routes(self) -> list[Route]:
        """Return the routes of the journal."""
        tag = "Bulk"
        no_arrow = (501, ErrorReply)
        return [
            Route(
                "GET", "/bulk", self.overview, "What can be read in bulk", tag, wire.BulkReply, namespaced=True, anywhere=True
            ),
            Route(
                "GET", "/bulk/journal", self.read, "Events of the journal, as Arrow", tag, query=_QUERY, media=wire.ARROW,
                namespaced=True, anywhere=True, also=((409, ErrorReply), (410, JournalGoneReply), no_arrow),
            ),
            Route(
                "GET", "/bulk/journal/at", self.at, "Find a place in the journal by time", tag, wire.JournalAtReply, query=_AT,
                namespaced=True, anywhere=True, also=(no_arrow,),
            ),
        ]  # fmt: skip


async def _first_kept(store: Store) -> int:
    """Return the number of the oldest stored event, or of the next event if none is stored."""
    following = store.journal_next
    first = await store.journal_first()
    return following if first is None else first
