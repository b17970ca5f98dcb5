"""The identity of a file and its epoch, see ``core.history``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.history import History

if TYPE_CHECKING:
    import apsw


def read(db: apsw.Connection) -> History:
    """Return which history a file tells."""
    return History(*next(iter(db.execute("select identity, epoch from history"))))


def raise_epoch(db: apsw.Connection) -> History:
    """Note that events of the journal were replaced, or may have been, and return the new history.

    Whoever keeps a place in the journal finds that it is of an earlier epoch. To be called after a backup was put in place and
    before a server opens it; it may be part of a transaction of the caller.
    """
    db.execute("update history set epoch = epoch + 1")
    return read(db)
