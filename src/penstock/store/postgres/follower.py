"""Follows the journal of a shard, so that this server has the commits of the others, in the order of their commits.

The database notifies it. It then reads the blocks that are new, applies their notices, and passes their events on. This
server's commits need no reading if no other server has committed in between.
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
_NO_SERVER: Final = 0
_READ = (
    "select block, seq, count, at, server, news, case when server <> $3 then body end as body"
    " from journal where block > $1 order by block limit $2"
)


class PostgresFollower:
    """``known`` is the last block whose notice this server has applied, and whose events it has passed on."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.known = 0
        self.listeners: list[contract.Follower] = []
        self._ours: dict[int, JournalBlock] = {}  #: this server's commits that must wait for earlier ones of others
        self._held = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, db: Connection, known: int) -> None:
        """Start to listen on a connection; everything up to a block is known."""
        self.known = known
        self._held = False
        self._ours.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(db), name="penstock-follower")

    async def listen(self, db: Connection) -> None:
        """Subscribe to the notifications of the database."""
        await db.add_listener(CHANNEL, self._woken)

    async def stop(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def committed(self, number: int, block: JournalBlock) -> JournalBlock | None:
        """Record a commit of this server; return its block if it may be passed on at once, None if earlier ones come first."""
        if number == self.known + 1:
            self.known = number
            if self._held:
                self._held = False
                self._wanted.set()
            if number + 1 not in self._ours:
                return block if block.events else None
            blocks = [block]  # two commits of this server were in progress, and the later one was reported first
            while (following := self._ours.pop(self.known + 1, None)) is not None:
                self.known += 1
                blocks.append(following)
            self.publish([each for each in blocks if each.events], set(), webhooks=False)
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
        except Exception as error:  # noqa: BLE001 - after every error, following starts again with a new connection
            self._store.lost(error)

    def catch_up(self) -> None:
        """Read new blocks without a notification."""
        self._wanted.set()

    async def _read(self, db: Connection) -> bool:
        """Read some blocks; return True if there may be more."""
        found = await db.fetch(_READ, self.known, BLOCKS_AT_ONCE, self._store.server)
        blocks: list[JournalBlock] = []
        ready: set[int] = set()
        webhooks = False
        for number, seq, count, at, server, encoded, body in found:
            if number <= self.known:  # a commit of this server, committed during the read
                continue
            if number != self.known + 1:
                raise LookupError(f"block {self.known + 1} of the journal was removed before this server has read it")
            if server == self._store.server:
                if number not in self._ours:  # the answer to this server's commit is still on its way, see committed()
                    self._held = True
                    break
                self.known = number
                block = self._ours.pop(number)
                if block.events:
                    blocks.append(block)
                continue
            notice = commit_notice.decode(encoded)
            if (
                notice.queues
                or notice.webhooks
                or any(queue not in self._store.catalog.by_number for queue in notice.tallies)
            ):
                await self._store.refresh(db)  # the counts of a new queue begin with this block
            self.known = number  # not before: a commit of this server that comes meanwhile must not be passed on first
            self._store.catalog.apply_notice(notice)
            for queue in notice.fronts:
                self._store.fronts.forget(queue)
            webhooks = webhooks or notice.webhooks
            ready.update(notice.queues)
            ready.update(queue for queue, delta in notice.tallies.items() if _frees(delta))
            if count:
                queues, events = decode_body(body)
                blocks.append(JournalBlock(seq, at, events, queues))
                self._store.journal_next = max(self._store.journal_next, seq + count)
        self.publish(blocks, ready, webhooks=webhooks)
        return len(found) >= BLOCKS_AT_ONCE

    def publish(self, blocks: list[JournalBlock], ready: set[int], *, webhooks: bool) -> None:
        """Pass on blocks, the numbers of queues that may have ready jobs, and whether webhooks have changed."""
        if blocks or ready or webhooks:
            for listener in self.listeners:
                listener(blocks, ready, webhooks=webhooks)

    async def missed(self, db: Connection, last: int) -> list[JournalBlock]:
        """Read the events that were committed, up to a block, while this server had no connection.

        Their notices are applied.
        """
        missed: list[JournalBlock] = []
        known = self.known or last  # a server that starts has passed on nothing yet
        while known < last:
            found = await db.fetch(_READ, known, min(BLOCKS_AT_ONCE, last - known), _NO_SERVER)
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
    """Return whether a waiting claim may get a job now."""
    return delta[State.WAITING] > 0 or delta[State.ACTIVE] < 0
