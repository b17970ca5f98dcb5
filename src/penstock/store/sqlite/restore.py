"""Restores a backup as the store of a data directory. See ``backup``."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw
import msgspec

from penstock.core.errors import BackupInvalid, ConfigInvalid, RestoreUnfinished, StorageFailed
from penstock.core.timestamps import to_moment
from penstock.store.data_directory import DirectoryLock, prepare_directory, sync_directory
from penstock.store.sqlite import backup, files, history, restore_plan, snapshot
from penstock.store.sqlite.restore_plan import RestorePlan
from penstock.store.sqlite.sync_mark import MarkFile, Position
from penstock.store.sync_mark_file import MARK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.core.clock import Clock

_FILES: Final = (backup.FILE_NAME, f"{backup.FILE_NAME}-wal", f"{backup.FILE_NAME}-shm", MARK_NAME)


class Restored(NamedTuple):
    """A restored store. ``replaced``: the path of the previous store, if there was one."""

    manifest: backup.Manifest
    epoch: int
    replaced: Path | None


class _Ready(NamedTuple):
    """A backup that is written and checked beside the store of a directory."""

    directory: Path
    manifest: backup.Manifest
    epoch: int


def restore(
    sources: Sequence[Path],
    directories: Sequence[Path],
    clock: Clock,
    progresses: Sequence[backup.Progress],
    *,
    replace: bool = False,
) -> list[Restored]:
    """Check backups, put each into a data directory that no server uses, and check it there: all of them or none.

    All are prepared beside the stores first. Then a plan is written into each directory, and only when all have one, files
    are renamed. After an interruption, a directory with a plan is not opened, and ``complete`` continues the restore.

    The stores get a new epoch: readers of their journals that had read further detect that. ``replace``: an existing store
    is moved into a directory beside the new one, not deleted.

    Raises BackupInvalid, StoreIncompatible (newer), StoreLocked, ConfigInvalid (there is a store), StorageFull,
    StorageFailed, RestoreUnfinished (by an earlier restore, or by this one).
    """
    with _locked(directories) as locks:
        for directory in directories:
            restore_plan.check_none(directory)
            _check_free(directory, replace=replace)
        ready: list[_Ready] = []
        try:
            for source, directory, progress in zip(sources, directories, progresses, strict=True):
                ready.append(_prepare(source, directory, clock, progress))
        except BaseException:
            for directory in directories:
                with contextlib.suppress(OSError):
                    _fresh(directory).unlink(missing_ok=True)
            raise
        plans = _plan(ready, clock)
        _switch(directories, plans, clock)
        for lock in locks:
            lock.note(used=True, clean=True)
    return [
        Restored(each.manifest, each.epoch, each.directory / plan.replaced if plan.replaced else None)
        for each, plan in zip(ready, plans, strict=True)
    ]


def complete(directories: Sequence[Path], clock: Clock) -> list[Path | None]:
    """Continue an interrupted restore; return the paths of the previous stores.

    Raises ConfigInvalid (no restore is in progress, or it was one into other directories), StoreLocked, StorageFailed.
    """
    with _locked(directories) as locks:
        plans = [restore_plan.read(directory) for directory in directories]
        known = [plan for plan in plans if plan is not None]
        if not known and not any(_fresh(directory).exists() for directory in directories):
            raise ConfigInvalid(f"No restore into {', '.join(map(str, directories))} was interrupted. Nothing was changed.")
        for number, plan in enumerate(plans):
            if plan is not None and (plan.shard, plan.shards, plan.restore) != (number, len(directories), known[0].restore):
                raise ConfigInvalid(
                    f"{directories[number]} was shard {plan.shard} of {plan.shards} in the restore that was interrupted. "
                    "Name the directories of all shards, in the order of that restore. Nothing was changed."
                )
        if any(plan is None and _fresh(directory).exists() for plan, directory in zip(plans, directories, strict=True)):
            # Not all plans were written, so nothing was renamed: remove all prepared files.
            _undo(directories)
            raise ConfigInvalid(
                "The restore was interrupted before it changed anything. It is undone; restore the backup again."
            )
        _switch(directories, plans, clock)
        for lock in locks:
            lock.note(used=True, clean=True)
    return [
        directory / plan.replaced if plan is not None and plan.replaced else None
        for plan, directory in zip(plans, directories, strict=True)
    ]


@contextlib.contextmanager
def _locked(directories: Sequence[Path]) -> Iterator[list[DirectoryLock]]:
    """Lock some directories against servers. An error of the disk becomes StorageFailed."""
    locks: list[DirectoryLock] = []
    try:
        for directory in directories:
            prepare_directory(directory)
            lock = DirectoryLock(directory)
            lock.acquire()
            locks.append(lock)
        yield locks
    except (apsw.Error, OSError) as error:
        where = ", ".join(map(str, directories))
        raise StorageFailed(
            f"The backup cannot be restored into {where}: {error}. Nothing was changed; try again."
        ) from error
    finally:
        for lock in locks:
            lock.release()


def _fresh(directory: Path) -> Path:
    return directory / f"{backup.FILE_NAME}.restoring"


def _there(directory: Path) -> list[Path]:
    """Return the files of the store of a directory."""
    return [directory / name for name in _FILES if (directory / name).exists()]


def _check_free(directory: Path, *, replace: bool) -> None:
    if any(path.stat().st_size for path in _there(directory)) and not replace:
        raise ConfigInvalid(
            f"There is a store in {directory} already. Choose another directory with --data, or use --replace: that "
            "moves it into a directory beside the restored one. Nothing was changed."
        )


def _prepare(source: Path, directory: Path, clock: Clock, progress: backup.Progress) -> _Ready:
    """Write a backup beside the store of a directory, and check it there."""
    manifest = backup.verify(source, progress)
    files.check_version(source / backup.FILE_NAME, manifest.contents.schema)
    fresh = _fresh(directory)
    fresh.unlink(missing_ok=True)  # left by a restore that was killed
    snapshot.check_room(directory, manifest.bytes)
    backup.copy_checked(source / backup.FILE_NAME, fresh, manifest, progress)
    epoch = _begin_epoch(fresh, clock.now_ms() // 1000)
    _check_written(fresh, msgspec.structs.replace(manifest.contents, epoch=epoch), progress)
    sync_directory(directory)
    return _Ready(directory, manifest, epoch)


def _plan(ready: Sequence[_Ready], clock: Clock) -> list[RestorePlan]:
    """Write a plan into each directory. If that fails, nothing is changed."""
    restore_id = os.urandom(16).hex()
    plans = []
    try:
        for number, each in enumerate(ready):
            moment = to_moment(clock.now_ms())
            replaced = (
                _new_directory(each.directory / f"replaced-{moment:%Y%m%dT%H%M%SZ}").name if _there(each.directory) else ""
            )
            contents = each.manifest.contents
            plan = RestorePlan(restore_id, number, len(ready), replaced, contents.identity, contents.journal_next)
            restore_plan.write(each.directory, plan)
            plans.append(plan)
    except BaseException:
        with contextlib.suppress(OSError):
            _undo([each.directory for each in ready])
        raise
    return plans


def _undo(directories: Sequence[Path]) -> None:
    """Remove the prepared files. All plans are removed first: then only files can be left that are never read."""
    for directory in directories:
        plan = restore_plan.read(directory)
        if plan is not None:
            with contextlib.suppress(OSError):
                (directory / plan.replaced).rmdir()
            restore_plan.remove(directory)
    for directory in directories:
        _fresh(directory).unlink(missing_ok=True)


def _switch(directories: Sequence[Path], plans: Sequence[RestorePlan | None], clock: Clock) -> None:
    """Move the prepared files into place. Each step may have been done before. Raises RestoreUnfinished if the disk refuses."""
    left = [(directory, plan) for directory, plan in zip(directories, plans, strict=True) if plan is not None]
    try:
        for directory, plan in left:
            _put(directory, plan, clock)
        for directory, _ in left:
            restore_plan.remove(directory)
    except OSError as error:
        raise RestoreUnfinished(f"{error}. {restore_plan.unfinished(*left[-1])}") from error


def _put(directory: Path, plan: RestorePlan, clock: Clock) -> None:
    fresh = _fresh(directory)
    if fresh.exists():
        for path in _there(directory):
            (directory / plan.replaced).mkdir(mode=0o700, exist_ok=True)
            path.rename(directory / plan.replaced / path.name)
        sync_directory(directory)
        fresh.rename(directory / backup.FILE_NAME)
    if plan.identity:
        MarkFile.open(directory, plan.identity, Position(plan.journal_next, clock.now_ms())).close()
    sync_directory(directory)


def _check_written(path: Path, expected: backup.Contents, progress: backup.Progress) -> None:
    found = backup.inspect(path, progress)
    if found != expected:
        raise BackupInvalid(f"The restored files in {path.parent} differ from the backup: {found}. Check the disk.")


def _begin_epoch(path: Path, now_s: int) -> int:
    """Begin a new epoch in a restored file; 0 for one of a schema without epochs.

    It is the current time: the same backup may be restored several times, each time into another history.
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
    """Create a directory with this name, or with a number added: two restores may begin in the same second."""
    for number in itertools.count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            candidate.mkdir(mode=0o700)
            return candidate
    raise AssertionError
