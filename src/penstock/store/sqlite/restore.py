"""Puts a backup in place as the store of a data directory. See ``backup``."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw
import msgspec

from penstock.core.errors import BackupInvalid, ConfigInvalid, StorageFailed
from penstock.core.timestamps import to_moment
from penstock.store.disk import DirectoryLock, prepare_directory, sync_directory
from penstock.store.markfile import MARK_NAME
from penstock.store.sqlite import backup, files, history, snapshot
from penstock.store.sqlite.mark import MarkFile, Position

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import Clock

_FILES: Final = (backup.FILE_NAME, f"{backup.FILE_NAME}-wal", f"{backup.FILE_NAME}-shm", MARK_NAME)


class Restored(NamedTuple):
    """What was put in place. ``replaced``: where the store is that was there before, if there was one."""

    manifest: backup.Manifest
    epoch: int
    replaced: Path | None


def restore(source: Path, directory: Path, clock: Clock, tell: backup.Progress, *, replace: bool = False) -> Restored:
    """Check a backup, put it into a data directory that no server uses, and check it there.

    The store gets a new epoch: readers of its journal that had come further notice. ``replace``: a store that is there is moved
    into a directory beside the new one, not deleted.

    Raises BackupInvalid, StoreIncompatible (newer), StoreLocked, ConfigInvalid (there is a store), StorageFull, StorageFailed.
    """
    manifest = backup.verify(source, tell)
    files.check_version(source / backup.FILE_NAME, manifest.contents.schema)
    prepare_directory(directory)
    lock = DirectoryLock(directory)
    try:
        lock.acquire()
        try:
            there = [directory / name for name in _FILES if (directory / name).exists()]
            if any(path.stat().st_size for path in there) and not replace:
                raise ConfigInvalid(
                    f"There is a store in {directory} already. Choose another directory with --data, or say --replace: that "
                    "moves it into a directory beside the restored one. Nothing was changed."
                )
            restored = _put(source, manifest, directory, clock, tell=tell, there=there)
            lock.note(used=True, clean=True)
        finally:
            lock.release()
    except (apsw.Error, OSError) as error:
        raise StorageFailed(f"{source} cannot be restored into {directory}: {error}. Try again.") from error
    return restored


def _put(
    source: Path, manifest: backup.Manifest, directory: Path, clock: Clock, *, tell: backup.Progress, there: list[Path]
) -> Restored:
    snapshot.check_room(directory, manifest.bytes)
    fresh = directory / f"{backup.FILE_NAME}.restoring"
    try:
        backup.copy_checked(source / backup.FILE_NAME, fresh, manifest, tell)
        epoch = _begin_epoch(fresh, clock.now_ms() // 1000)
        _check_written(fresh, msgspec.structs.replace(manifest.contents, epoch=epoch), tell)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    replaced = None
    if there:
        replaced = _new_directory(directory / f"replaced-{to_moment(clock.now_ms()):%Y%m%dT%H%M%SZ}")
        for path in there:
            path.rename(replaced / path.name)
    sync_directory(directory)
    fresh.rename(directory / backup.FILE_NAME)
    if manifest.contents.identity:
        position = Position(manifest.contents.journal_next, clock.now_ms())
        MarkFile.open(directory, manifest.contents.identity, position).close()
    sync_directory(directory)
    return Restored(manifest, epoch, replaced)


def _check_written(path: Path, expected: backup.Contents, tell: backup.Progress) -> None:
    found = backup.look(path, tell)
    if found != expected:
        raise BackupInvalid(f"What was written to {path.parent} is not what was backed up: {found}. Check the disk.")


def _begin_epoch(path: Path, now_s: int) -> int:
    """Begin a new epoch in a restored file; 0 for one of a schema without epochs.

    It is the present time: the same backup may be restored several times, each time into another history.
    """
    db = apsw.Connection(str(path))
    try:
        db.pragma("synchronous", "full")
        if not list(db.execute("select 1 from sqlite_schema where name = 'history'")):
            return 0
        db.execute("update history set epoch = max(epoch + 1, ?)", (now_s,))
        return history.read(db).epoch
    finally:
        db.close()


def _new_directory(path: Path) -> Path:
    """Make a directory of this name, or with a number behind it: two restores may begin in the same second."""
    for number in itertools.count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir(mode=0o700)
            return candidate
    raise AssertionError
