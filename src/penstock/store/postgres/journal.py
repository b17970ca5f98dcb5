"""The journal, in a transaction on a PostgreSQL shard."""

from __future__ import annotations

from penstock.store.postgres.transaction_base import PostgresTransactionBase, changed_rows

# The newest block always stays: the numbering continues from it.
_OLDEST_BLOCKS = (
    "select block, at, total - length(body) from journal where block < (select max(block) from journal)"
    " order by block limit $1"
)


class PostgresJournal(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        surplus = self._store.journal_bytes - bytes_max
        last = None
        for block, at, bytes_before in await self._db.fetch(_OLDEST_BLOCKS, limit):
            if at >= before_ms and bytes_before >= surplus:
                break
            last = block
        if last is None:
            return 0
        self.wrote = True
        return changed_rows(await self._db.execute("delete from journal where block <= $1", last))
