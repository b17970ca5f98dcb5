"""Upgrades a file of an older schema: a copy beside it first, then the migrations; both are logged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import apsw
import structlog

from penstock.core.errors import StorageFull, StoreIncompatible
from penstock.core.limits import DAY_MS
from penstock.store.data_directory import sync_directory
from penstock.store.sqlite import files, schema, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import Clock

log = structlog.get_logger("penstock.store")

#: The first start after this time removes the copy.
KEEP_COPY_MS: Final = 7 * DAY_MS


def upgrade(db: apsw.Connection, path: Path, clock: Clock, *, keep_copy: bool) -> None:
    """Bring a file to the current schema, if it is older. ``keep_copy``: keep a copy of the old file beside it.

    Raises StoreIncompatible (newer, another program's, or it failed) and StorageFull (no room for the copy). The file is
    then unchanged.
    """
    _remove_old_copies(path, clock)
    version, application = int(db.pragma("user_version")), int(db.pragma("application_id"))
    is_new = version == 0 and application == 0 and not list(db.execute("select 1 from sqlite_schema limit 1"))
    if not is_new and application != schema.APPLICATION_ID:
        raise files.not_ours(path)
    files.check_version(path, version)
    if version == schema.SCHEMA_VERSION:
        return
    if is_new:
        schema.migrate(db, version)
        return
    copy = _copy(db, path, version) if keep_copy else None
    beside = "without a copy (upgrade_copy is off)" if copy is None else str(copy)
    log.info("upgrading the data file", file=str(path), schema=version, to=schema.SCHEMA_VERSION, copy=beside)
    cannot = f"{path} cannot be upgraded from schema version {version} to {schema.SCHEMA_VERSION}"
    try:
        schema.migrate(db, version)
    except apsw.FullError as error:
        raise StorageFull(f"{cannot}: the disk is full. Make room and start again. The file was not changed.") from error
    except apsw.Error as error:
        raise StoreIncompatible(
            f"{cannot}: {error}. Start the version of Penstock that was used before, and report this. The file was not changed."
        ) from error
    log.info("the data file was upgraded", file=str(path), schema=schema.SCHEMA_VERSION)


def _copy(db: apsw.Connection, path: Path, version: int) -> Path:
    copy = files.copy_name(path, version)
    partial = copy.with_name(f"{copy.name}.partial")
    log.info("copying the data file before its upgrade", copy=str(copy))
    try:
        snapshot.copy(db, partial)
        partial.replace(copy)
        sync_directory(path.parent)
    except (StorageFull, apsw.FullError, OSError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageFull(
            f"{path} has schema version {version} and is to be upgraded to {schema.SCHEMA_VERSION}, but there is no room for a "
            f"copy of it: {error} Or make a backup elsewhere with the version of Penstock that was used before (penstock "
            "backup), and start with upgrade_copy off (PENSTOCK_UPGRADE_COPY=no). The file was not changed."
        ) from error
    return copy


def _remove_old_copies(path: Path, clock: Clock) -> None:
    for copy in sorted(path.parent.glob(f"{path.name}.schema-*")):
        with contextlib.suppress(OSError):
            left_ms = int(copy.stat().st_mtime * 1000) + KEEP_COPY_MS - clock.now_ms()
            if left_ms <= 0 or copy.name.endswith(".partial"):
                copy.unlink()
                log.info("removed the copy that was made before an upgrade", copy=str(copy))
            else:
                log.info("a copy from before an upgrade is kept", copy=str(copy), days_left=-(-left_ms // DAY_MS))
