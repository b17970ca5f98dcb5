"""The identity of a file and its epoch, see ``core.history``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.history import History

if TYPE_CHECKING:
    import apsw


def read(db: apsw.Connection) -> History:
    """Return the history of a file."""
    return History(*next(iter(db.execute("select identity, epoch from history"))))


def raise_epoch(db: apsw.Connection) -> History:
    """Record that events of the journal were replaced, or may have been, and return the new history.

    Readers that keep a position in the journal then detect that it belongs to an earlier epoch. Call it after a backup was
    restored and before a server opens it; it may be part of a transaction of the caller.
    """
    db.execute("update history set epoch = epoch + 1")
    return read(db)
