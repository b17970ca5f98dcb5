"""The identity of a database and its epoch, see ``core.history``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.history import History
from penstock.store.postgres.schema import SCHEMA

if TYPE_CHECKING:
    from asyncpg import Connection

#: For any connection, with any search path.
HISTORY = f"select identity::text, history_epoch from {SCHEMA}.catalog"  # noqa: S608 - a constant
_RAISE = f"update {SCHEMA}.catalog set history_epoch = history_epoch + 1"  # noqa: S608


async def read(db: Connection) -> History:
    """Return the history of a database."""
    return History(*await db.fetchrow(HISTORY))


async def raise_epoch(db: Connection) -> History:
    """Record that events of the journal were replaced, or may have been, and return the new history.

    Readers that keep a position in the journal then detect that it belongs to an earlier epoch. Call it after a backup was
    restored and before a server opens it; it may be part of a transaction of the caller.
    """
    await db.execute(_RAISE)
    return await read(db)
