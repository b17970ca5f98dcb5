"""The embedded store: one SQLite file, one writer, no set-up."""

from penstock.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
