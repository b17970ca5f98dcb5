"""Counts for quotas, on a separate connection: a push never waits for the transactions of others to be counted.

The connection is opened at the first count. Its commits do not wait for the disk: a push on the same database that is
answered later has waited for the disk with its count, too; and a count that was lost in a crash allows a few more jobs in a
minute.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.store.postgres.connect import connect
from penstock.store.postgres.errors import translate
from penstock.store.postgres.reads import ZERO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from penstock.store.contract import QuotaCount
    from penstock.store.postgres.clock import ShardClock

_TAKE = "select quota_take($1::text[], $2::bigint[], $3::bigint[], $4)"
# Also rows in the future, which a clock has left that was set back.
_FORGET = """
delete from quotas using (select coalesce($1, clock_ms()) as now_ms) as t
where last <= t.now_ms - $2 or last > t.now_ms + $2
"""


class QuotaCounter:
    """One per store. ``disconnect`` it with the store; it connects automatically."""

    def __init__(self, url: str, clock: ShardClock, answer_ms: int) -> None:
        self._url = url
        self._answer_ms = answer_ms
        self._clock = clock
        self._db: Connection | None = None
        self._turn = asyncio.Lock()
        self._forget_at = 0

    async def take(self, takes: Sequence[QuotaCount]) -> list[int]:
        """See ``contract.Store.quota_take``."""
        # A name that the database cannot store: the push will be refused, nothing is counted.
        order = sorted(
            (at for at, take in enumerate(takes) if ZERO not in take.namespace), key=lambda at: takes[at].namespace
        )
        waits = [0] * len(takes)
        if order:
            names, counts, quotas = zip(*(takes[at] for at in order), strict=True)
            async with self._turn:
                for at, wait_ms in zip(order, await self._ask(names, counts, quotas), strict=True):
                    waits[at] = wait_ms
        return waits

    async def _ask(self, names: Sequence[str], counts: Sequence[int], quotas: Sequence[int | None]) -> list[int]:
        try:
            if self._db is None or self._db.is_closed():
                self._db = await connect(self._url, counter=True, answer_ms=self._answer_ms)
            if self._clock.steady_ms() >= self._forget_at:
                self._forget_at = self._clock.steady_ms() + limits.MINUTE_MS
                await self._db.execute(_FORGET, self._clock.given_ms, limits.MINUTE_MS)
            waits: list[int] = await self._db.fetchval(_TAKE, names, counts, quotas, self._clock.given_ms)
        except Exception as error:
            self.disconnect()
            raise translate(error) or error from error
        return waits

    def disconnect(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.terminate()
            self._db = None
