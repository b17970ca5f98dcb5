"""Checks of a data file before it is opened for writing: files of other programs are refused, and not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import apsw

from penstock.core.errors import StoreIncompatible
from penstock.store.sqlite import schema

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_USER_VERSION: Final = slice(60, 64)
_APPLICATION_ID: Final = slice(68, 72)


def check_file(path: Path, log_path: Path) -> None:
    """Refuse a file that is damaged, another program's, or newer. Raises StoreIncompatible. An empty one is allowed."""
    header = _read_header(path)
    if not header:
        return
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StoreIncompatible(
            f"{path} cannot be read as a SQLite file: its header is damaged, or it is of another kind. Restore a backup with: "
            "penstock restore, or choose another directory with --data. Nothing was changed."
        )
    application = int.from_bytes(header[_APPLICATION_ID])
    has_log = log_path.is_file() and log_path.stat().st_size > 0
    if application not in (0, schema.APPLICATION_ID) or (application == 0 and not has_log and _has_tables(path)):
        raise not_ours(path)
    if application == schema.APPLICATION_ID:
        check_version(path, int.from_bytes(header[_USER_VERSION]))


def check_version(path: Path, version: int) -> None:
    """Refuse a file of a newer schema. Raises StoreIncompatible."""
    if version <= schema.SCHEMA_VERSION:
        return
    copy = copy_name(path, schema.SCHEMA_VERSION)
    back = (
        f"Or go back to the copy that the upgrade made, without what happened since: move {path.name}, {path.name}-wal and "
        f"penstock.mark away, and rename {copy.name} to {path.name}."
        if copy.exists()
        else "Or restore a backup that this version made, with: penstock restore."
    )
    raise StoreIncompatible(
        f"{path} has schema version {version}, and this Penstock supports up to {schema.SCHEMA_VERSION}: it was written by a "
        f"newer version. Upgrade Penstock. {back} Nothing was changed."
    )


def copy_name(path: Path, version: int) -> Path:
    """Return the path of the copy that an upgrade keeps of a file with an older schema version."""
    return path.with_name(f"{path.name}.schema-{version}")


def not_ours(path: Path) -> StoreIncompatible:
    """Return the error for another program's database."""
    return StoreIncompatible(
        f"{path} is a SQLite file, but not one of Penstock's. Choose another directory with --data. Nothing was changed."
    )


def _read_header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreIncompatible(
            f"{path} cannot be read: {error.strerror}. Give this user the right to read and write it, or choose another "
            "directory with --data. Nothing was changed."
        ) from None


def _has_tables(path: Path) -> bool:
    uri = f"file:{str(path.absolute()).replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?immutable=1"
    try:
        db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            return bool(list(db.execute("select 1 from sqlite_schema limit 1")))
        finally:
            db.close()
    except apsw.Error:
        return False  # the error appears when it is opened
