"""The journal, in a transaction of the SQLite store."""

from __future__ import annotations

import msgspec

from penstock.store.contract import JournalBlock
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

_encode = msgspec.msgpack.Encoder().encode
# The newest block always stays: the numbering continues from it.
_OLDEST_BLOCKS = (
    "select seq, at, total - length(body) from journal where seq < (select max(seq) from journal) order by seq limit ?"
)


class SqliteJournal(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        self._begin()
        surplus = self._store.journal_bytes - bytes_max
        last = None
        for seq, at, bytes_before in self._db.execute(_OLDEST_BLOCKS, (limit,)):
            if at >= before_ms and bytes_before >= surplus:
                break
            last = seq
        if last is None:
            return 0
        self._db.execute("delete from journal where seq <= ?", (last,))
        return self._db.changes()

    def _write_journal(self) -> None:
        store = self._store
        queues = self._mentioned()
        body = _encode((queues, self._events))
        store.journal_bytes += len(body)
        self._db.execute(
            "insert into journal (seq, count, at, id_mark, total, body) values (?, ?, ?, ?, ?, ?)",
            (store.journal_next, len(self._events), self.now_ms, self._id_mark(), store.journal_bytes, body),
        )
        self.block = JournalBlock(store.journal_next, self.now_ms, self._events, queues)
        store.journal_next += len(self._events)
        count, size = len(self._events), len(body)

        def undo() -> None:
            store.journal_next -= count
            store.journal_bytes -= size

        self._undo.append(undo)
