"""Follows the journal of a shard, so that this server knows what the others commit, in the order in which they commit it.

The database wakes it up. It then reads the blocks it does not know, takes over their news, and passes their events on. Our own
commits need no reading as long as nobody else came in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.core.lifecycle import State
from penstock.store.contract import JournalBlock
from penstock.store.postgres import commit_notice
from penstock.store.postgres.reads import decode_body
from penstock.store.postgres.schema import CHANNEL

if TYPE_CHECKING:
    from asyncpg import Connection

    from penstock.store import contract
    from penstock.store.postgres.store import PostgresStore

log = structlog.get_logger("penstock.store")

BLOCKS_AT_ONCE: Final = 500
#: After a longer time without a connection, only the newest events are passed on. Webhooks read the journal themselves.
MISSED_BLOCKS_MAX: Final = 10_000
_NOBODY: Final = 0
_READ = (
    "select block, seq, count, at, server, news, case when server <> $3 then body end as body"
    " from journal where block > $1 order by block limit $2"
)


class PostgresFollower:
    """``known`` is the last block whose news this server has, and whose events it has passed on."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.known = 0
        self.listeners: list[contract.Follower] = []
        self._ours: dict[int, JournalBlock] = {}  #: our own commits that must wait for earlier ones of others
        self._held = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, db: Connection, known: int) -> None:
        """Begin to listen on a connection, knowing everything up to a block."""
        self.known = known
        self._held = False
        self._ours.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(db), name="penstock-follower")

    async def listen(self, db: Connection) -> None:
        """Have the database wake us up."""
        await db.add_listener(CHANNEL, self._woken)

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def committed(self, number: int, block: JournalBlock) -> JournalBlock | None:
        """Hear of our own commit; return its block if it may be told at once, None if earlier ones must be told first."""
        if number == self.known + 1:
            self.known = number
            if self._held:
                self._held = False
                self._wanted.set()
            if number + 1 not in self._ours:
                return block if block.events else None
            blocks = [block]  # two of ours were under way, and we heard of the later one first
            while (following := self._ours.pop(self.known + 1, None)) is not None:
                self.known += 1
                blocks.append(following)
            self.tell([each for each in blocks if each.events], set(), webhooks=False)
            return None
        if number > self.known:
            self._ours[number] = block
            self._wanted.set()
        return None

    def _woken(self, _db: Any, _pid: int, _channel: str, payload: str) -> None:
        server, _, block = payload.partition(" ")
        if int(server) != self._store.server and int(block) > self.known:
            self._wanted.set()

    async def _run(self, db: Connection) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while await self._read(db):
                    pass
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, following starts anew with a new connection
            self._store.lost(error)

    def catch_up(self) -> None:
        """Look for news although nobody woke us up."""
        self._wanted.set()

    async def _read(self, db: Connection) -> bool:
        """Read some blocks; True if there may be more."""
        found = await db.fetch(_READ, self.known, BLOCKS_AT_ONCE, self._store.server)
        blocks: list[JournalBlock] = []
        ready: set[int] = set()
        webhooks = False
        for number, seq, count, at, server, told, body in found:
            if number <= self.known:  # our own, committed while we were reading
                continue
            if number != self.known + 1:
                raise LookupError(f"block {self.known + 1} of the journal is gone before this server has read it")
            if server == self._store.server:
                if number not in self._ours:  # the answer to our commit is still on its way, see committed()
                    self._held = True
                    break
                self.known = number
                block = self._ours.pop(number)
                if block.events:
                    blocks.append(block)
                continue
            heard = commit_notice.decode(told)
            if heard.queues or heard.webhooks or any(queue not in self._store.catalog.by_number for queue in heard.tallies):
                await self._store.refresh(db)  # the counts of a new queue begin with this very block
            self.known = number  # not before: a commit of ours that comes meanwhile must not be told first
            self._store.catalog.hear(heard)
            for queue in heard.fronts:
                self._store.fronts.forget(queue)
            webhooks = webhooks or heard.webhooks
            ready.update(heard.queues)
            ready.update(queue for queue, delta in heard.tallies.items() if _frees(delta))
            if count:
                queues, events = decode_body(body)
                blocks.append(JournalBlock(seq, at, events, queues))
                self._store.journal_next = max(self._store.journal_next, seq + count)
        self.tell(blocks, ready, webhooks=webhooks)
        return len(found) >= BLOCKS_AT_ONCE

    def tell(self, blocks: list[JournalBlock], ready: set[int], *, webhooks: bool) -> None:
        """Pass on blocks, the numbers of queues that may have something to claim, and whether webhooks have changed."""
        if blocks or ready or webhooks:
            for listener in self.listeners:
                listener(blocks, ready, webhooks=webhooks)

    async def missed(self, db: Connection, last: int) -> list[JournalBlock]:
        """Read the events that were committed, up to a block, while this server had no connection. Their news are known."""
        missed: list[JournalBlock] = []
        known = self.known or last  # nobody has heard anything yet from a server that starts
        while known < last:
            found = await db.fetch(_READ, known, min(BLOCKS_AT_ONCE, last - known), _NOBODY)
            if not found:
                break
            known = found[-1]["block"]
            for _, seq, count, at, _, _, body in found:
                if count:
                    queues, events = decode_body(body)
                    missed.append(JournalBlock(seq, at, events, queues))
            del missed[:-MISSED_BLOCKS_MAX]
        return missed


def _frees(delta: list[int]) -> bool:
    """Tell whether somebody who waits for a job may get one now."""
    return delta[State.WAITING] > 0 or delta[State.ACTIVE] < 0
