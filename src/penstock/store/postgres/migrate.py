"""Schema migrations of a database: ``penstock migrate up``, and automatically for an empty database."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import asyncpg

from penstock.core.errors import ConfigInvalid, StoreIncompatible
from penstock.store.postgres.connect import LOCK_WAIT_MS
from penstock.store.postgres.schema import LOCK_MIGRATE, MIGRATIONS, SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncpg import Connection


# Not to_regclass: it may answer from this connection's cache, which can be older than tables made by another server.
_EXISTS = "select exists (select from pg_tables where schemaname = $1 and tablename = 'migrations')"


class Status(NamedTuple):
    """The schema version of a database."""

    version: int  #: 0 = no tables yet
    current: int = SCHEMA_VERSION

    @property
    def is_new(self) -> bool:
        """Whether there are no tables yet."""
        return self.version == 0


async def status(db: Connection) -> Status:
    """Return the version of a database. Raises ConfigInvalid if its user may not read it."""
    with _rights():
        return await _status(db)


async def _status(db: Connection) -> Status:
    if not await db.fetchval(_EXISTS, SCHEMA):
        return Status(0)
    return Status(await db.fetchval(f"select coalesce(max(version), 0) from {SCHEMA}.migrations"))  # noqa: S608


async def up(db: Connection) -> Status:
    """Bring a database to the current version, in one transaction; two servers that try at once wait for each other.

    Raises StoreIncompatible for one that is newer than this Penstock, ConfigInvalid if its user may not change it.
    """
    with _rights():
        return await _up(db)


@contextmanager
def _rights() -> Iterator[None]:
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigInvalid(
            f"The user of the database has no permission for this: {error}. Use one that may create the "
            f"schema {SCHEMA}, or that owns it. Nothing was changed."
        ) from error


async def _up(db: Connection) -> Status:
    async with db.transaction():
        await db.execute(f"set local lock_timeout = {LOCK_WAIT_MS}")  # creating the tables may take longer than a batch
        await db.execute("select pg_advisory_xact_lock($1, 0)", LOCK_MIGRATE)
        before = await status(db)
        if before.version > SCHEMA_VERSION:
            raise StoreIncompatible(
                f"The database has schema version {before.version}, and this Penstock supports up to {SCHEMA_VERSION}: it was "
                "written by a newer version. Upgrade Penstock, or restore a backup of the database from before its upgrade. "
                "Nothing was changed."
            )
        for version in range(before.version, SCHEMA_VERSION):
            await db.execute(sql_of(version + 1))
    return before


async def check(db: Connection) -> None:
    """Create the tables in an empty database, and refuse an older or newer one. Raises StoreIncompatible.

    A start of a server does not change an older database: other servers of the old version may still use it.
    """
    found = await status(db)
    if found.is_new or found.version > SCHEMA_VERSION:
        await up(db)
    elif found.version < SCHEMA_VERSION:
        raise StoreIncompatible(
            f"The database has schema version {found.version}, this Penstock needs {SCHEMA_VERSION}. Stop the servers of the "
            "old version, back up the database (pg_dump), and run: penstock migrate up. Nothing was changed."
        )


def sql_of(version: int) -> str:
    """Return the statements that bring a database from the previous version to this one."""
    first = f"create schema if not exists {SCHEMA};\nset local search_path = {SCHEMA};\n"
    if version == 1:
        first += "create table migrations (version int primary key, applied_at timestamptz not null default now());\n"
    return f"{first}{MIGRATIONS[version - 1].strip()}\ninsert into migrations (version) values ({version});\n"
