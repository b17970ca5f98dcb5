"""Backups of a file store: a committed point in a separate directory, with a manifest of its contents.

::

    BACKUP/penstock.db      the file, complete without a log
    BACKUP/manifest.json    see ``Manifest``; written last

    BACKUP/shard-N/         of several shards, each has these two files

A separate process takes a backup. It reads the file, which SQLite allows several processes to do. It needs no server, and
delays none. The backup gets its name when it is complete and was checked; before that its name is ``BACKUP.partial``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from penstock import __version__
from penstock.core.errors import BackupInvalid, ConfigInvalid, StorageFailed
from penstock.core.limits import MEBIBYTE
from penstock.core.sharding import Layout
from penstock.store.data_directory import sync_directory
from penstock.store.sqlite import files, restore_plan, rows, schema, snapshot, sync_mark, wal_check

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import Clock

FILE_NAME: Final = "penstock.db"
MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 1
#: The backup of a shard is in a directory of this name and its number.
_PART: Final = "shard-"
_READ_BYTES: Final = 4 * MEBIBYTE
#: How often a mark that changes while it is read is read again.
_LOOKS: Final = 5
_COUNTED: Final = ("jobs", "payloads", "queues", "crons", "webhooks", "api_keys", "quarantine")

Progress = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and its total."""


class Contents(msgspec.Struct, frozen=True):
    """The contents of a file."""

    identity: str  #: of the store; empty: created before stores had an identity
    epoch: int
    journal_next: int  #: number of the next event: all events below it are in the backup
    journal_at: int  #: wall clock of the newest event, ms; 0: no event
    schema: int
    rows: dict[str, int]  #: by table
    damaged: int  #: jobs whose checksum does not match: they were already damaged in the store


class Manifest(msgspec.Struct, frozen=True):
    """What a backup must contain."""

    format: int
    penstock: str  #: version that created it
    taken_at: int  #: wall clock, ms
    bytes: int
    sha256: str
    contents: Contents


def take_all(
    directories: Sequence[Path], target: Path, clock: Clock, progresses: Sequence[Progress], *, accept_loss: bool = False
) -> list[Manifest]:
    """Back up the stores of all shards into a new directory ``target``: all of them or none. See ``take``.

    Each shard has its own point in time, which is correct as long as no queue moves between shards. So it fails during a
    rebalance, or if one has started meanwhile. Raises ConfigInvalid then, and what ``take`` raises.
    """
    if len(directories) == 1:
        return [take(directories[0], target, clock, progresses[0], accept_loss=accept_loss)]
    _check_target(target)
    partial = _partial_of(target)
    parts = [partial / f"{_PART}{number}" for number in range(len(directories))]
    try:
        partial.mkdir(parents=True, mode=0o700)
        try:
            manifests = [
                take(directory, part, clock, progress, accept_loss=accept_loss)
                for directory, part, progress in zip(directories, parts, progresses, strict=True)
            ]
            _check_settled([layout_of(part) for part in parts])
            _give_name(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageFailed(f"The backup into {target} failed: {error}. Nothing was kept; try again.") from error
    return manifests


def _check_settled(layouts: Sequence[Layout | None]) -> None:
    """Refuse copies between which queues may have moved: such a queue is in two of them, or in none. Raises ConfigInvalid."""
    known = [each for each in layouts if each is not None]
    if any(each.target is not None for each in known) or len({(each.epoch, each.shards) for each in known}) > 1:
        raise ConfigInvalid(
            "Queues are being moved between the shards (penstock shards rebalance), and the copies of two shards are not of "
            "the same moment. Back up again when penstock shards status says that it is done. Nothing was kept."
        )


def parts_of(backup: Path) -> list[Path]:
    """Return the directories of the backups of all shards, in their order; the directory itself for a backup of one store.

    Raises BackupInvalid if some are missing, or if one belongs to another shard than the one in its name.
    """
    found = {path.name.removeprefix(_PART): path for path in backup.glob(f"{_PART}*")}
    if not found or (backup / MANIFEST_NAME).exists():
        return [backup]
    parts = []
    needed = len(found)
    for number in range(len(found)):
        part = found.get(str(number))
        if part is None:
            raise BackupInvalid(f"{backup} is not complete: {_PART}{number} is missing. Use another backup.")
        layout = layout_of(part)
        if layout is not None:
            needed = max(needed, layout.needed)
            if layout.shard != number:
                raise BackupInvalid(
                    f"{part} is of shard {layout.shard}, not of shard {number}: directories were renamed or mixed up."
                )
        parts.append(part)
    if needed > len(parts):
        raise BackupInvalid(f"{backup} is not complete: it has {len(parts)} of {needed} shards. Use another backup.")
    return parts


def layout_of(part: Path) -> Layout | None:
    """Return the layout in a backup; None if its store has none. Raises BackupInvalid."""
    path = part / FILE_NAME
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOMUTEX)
        try:
            columns = [name for _, name, *_ in db.execute("pragma table_info(layout)")]
            wanted = [name for name in Layout._fields if name in columns]
            if not wanted:
                return None
            row = next(iter(db.execute(f"select {', '.join(wanted)} from layout")), None)  # noqa: S608, our own names
            return None if row is None else Layout(**dict(zip(wanted, row, strict=True)))
        finally:
            db.close()
    except apsw.Error as error:
        raise BackupInvalid(f"{path} cannot be read: {error}. Use another backup.") from error


def take(directory: Path, target: Path, clock: Clock, progress: Progress, *, accept_loss: bool = False) -> Manifest:
    """Back up the store of a data directory into a new directory ``target``, while servers run.

    Raises ConfigInvalid (no store there, or a target that is in use), StoreIncompatible (another program's, newer, or behind
    its mark unless ``accept_loss``), StorageFull (no room), BackupInvalid (the copied data is damaged), StorageFailed.
    """
    restore_plan.check_none(directory)
    path = directory / FILE_NAME
    if not path.exists() or not path.stat().st_size:
        raise ConfigInvalid(f"There is no store in {directory}. Name its directory with --data. Nothing was written.")
    files.check_file(path, directory / f"{FILE_NAME}-wal")
    _check_target(target)
    partial = _partial_of(target)
    try:
        partial.mkdir(parents=True, mode=0o700)
        try:
            manifest = _take(directory, partial, clock, progress, accept_loss=accept_loss)
            _give_name(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (apsw.Error, OSError) as error:
        raise StorageFailed(
            f"The backup of {directory} into {target} failed: {error}. Nothing was kept; try again."
        ) from error
    return manifest


def _check_target(target: Path) -> None:
    if not target.name or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ConfigInvalid(f"{target} exists already. Name a new directory for each backup. Nothing was written.")
    partial = _partial_of(target)
    if partial.exists():
        raise ConfigInvalid(
            f"{partial} exists already: another backup is being written, or one was interrupted. "
            "If none is running, remove it. Nothing was written."
        )


def _partial_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _give_name(partial: Path, target: Path) -> None:
    if target.exists():
        target.rmdir()
    partial.rename(target)
    sync_directory(target.parent)


def _take(directory: Path, partial: Path, clock: Clock, progress: Progress, *, accept_loss: bool) -> Manifest:
    had_log = (directory / f"{FILE_NAME}-wal").exists()
    source = _open_source(directory)
    try:
        _check_mark(source, directory, accept_loss=accept_loss)
        taken_at = clock.now_ms()
        snapshot.copy(source, partial / FILE_NAME, lambda done, total: progress("copied", done, total))
    finally:
        _close_source(source, directory, had_log=had_log)
    manifest = Manifest(
        FORMAT, __version__, taken_at, *_digest(partial / FILE_NAME, progress), inspect(partial / FILE_NAME, progress)
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    fd = os.open(partial / MANIFEST_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(partial)
    return manifest


def _open_source(directory: Path) -> apsw.Connection:
    """Open a file that a server may be using. Nothing is written to it; SQLite records there that it is being read."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
    db = apsw.Connection(str(directory / FILE_NAME), flags=flags)
    db.set_busy_timeout(10_000)
    db.pragma("query_only", True)
    return db


def _close_source(db: apsw.Connection, directory: Path, *, had_log: bool) -> None:
    """Close the file. If its server has stopped meanwhile or before, its log stays as it is for the next one.

    An empty log stays, too: a server that finds no log after a crash treats it as lost.
    """
    log_path = directory / f"{FILE_NAME}-wal"
    if log_path.exists() and (had_log or log_path.stat().st_size):
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.close()


def _check_mark(db: apsw.Connection, directory: Path, *, accept_loss: bool) -> None:
    """Refuse a store that has lost data. The mark is read first: everything up to its position was committed by then."""
    log_path = directory / f"{FILE_NAME}-wal"
    for _ in range(_LOOKS):
        before = sync_mark.read(directory)
        size = log_path.stat().st_size if log_path.exists() else None
        salts = sync_mark.salts_of(log_path)
        list(db.execute("select count(*) from sqlite_schema"))  # makes SQLite read the log
        found = sync_mark.read_log_state(db, size, salts, wal_check.replayed_frames(db))
        if sync_mark.what_is_missing(before, found) is None:
            return
        if sync_mark.read(directory) == before and sync_mark.salts_of(log_path) == salts:
            break
    sync_mark.check(directory, before, found, accept_loss=accept_loss)


def verify(backup: Path, progress: Progress) -> Manifest:
    """Read all of a backup and compare it with its manifest. Raises BackupInvalid if anything does not match."""
    manifest = read_manifest(backup)
    path = backup / FILE_NAME
    if not path.is_file():
        raise BackupInvalid(f"{path} is missing. Use another backup.")
    size, digest = _digest(path, progress)
    if (size, digest) != (manifest.bytes, manifest.sha256):
        raise BackupInvalid(
            f"{path} differs from the backup: it has {size:,} bytes and SHA-256 {digest[:16]}…, its manifest has "
            f"{manifest.bytes:,} and {manifest.sha256[:16]}…. It was damaged or changed. Use another backup, or copy this one "
            "again."
        )
    found = inspect(path, progress)
    if found != manifest.contents:
        raise BackupInvalid(f"{path} does not match its manifest: {found}, not {manifest.contents}. Use another backup.")
    return manifest


def read_manifest(backup: Path) -> Manifest:
    """Read the manifest of a backup. Raises BackupInvalid."""
    path = backup / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise BackupInvalid(f"{backup} is not a backup: {MANIFEST_NAME} cannot be read ({error.strerror}).") from None
    except msgspec.DecodeError as error:
        raise BackupInvalid(f"{path} is damaged ({error}), or of a newer Penstock. Use another backup.") from None
    if manifest.format != FORMAT:
        raise BackupInvalid(
            f"{path} has format {manifest.format}, and this Penstock reads format {FORMAT}. Upgrade Penstock."
        )
    return manifest


def inspect(path: Path, progress: Progress) -> Contents:
    """Check a file that no other process uses, including the checksum of each job, and count its rows. Raises BackupInvalid."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOMUTEX)
    try:
        progress("checked", 0, 1)
        said = [text for (text,) in db.execute("pragma integrity_check(5)")]
        if said != ["ok"]:
            raise BackupInvalid(f"{path} is damaged: {'; '.join(said)}")
        if int(db.pragma("application_id")) != schema.APPLICATION_ID:
            raise files.not_ours(path)
        tables = {name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")}
        counts = {name: int(db.execute(f"select count(*) from {name}").get) for name in _COUNTED if name in tables}  # noqa: S608
        found = sync_mark.read_log_state(db, None, sync_mark.NO_SALTS, 0)
        epoch = int(db.execute("select epoch from history").get) if "history" in tables else 0
        version = int(db.pragma("user_version"))
        damaged = _damaged(db, counts["jobs"], progress) if version == schema.SCHEMA_VERSION else 0
        at = found.position
        return Contents(found.identity, epoch, at.journal_next, at.at_ms, version, counts, damaged)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise BackupInvalid(f"{path} is damaged: {error}") from error
    finally:
        db.close()


def _damaged(db: apsw.Connection, jobs: int, progress: Progress) -> int:
    """Count the jobs whose rows or payloads do not match their checksums."""
    damaged = done = 0
    statement = f"select {rows.HEAD}, {rows.BODY} from jobs j left join payloads p on p.id = j.id"  # noqa: S608
    cursor = db.execute(statement)
    while True:
        try:
            row = next(cursor, None)
        except UnicodeDecodeError:  # invalid text
            damaged += 1
            continue
        if row is None:
            break
        damaged += not rows.is_sound(row)
        done += 1
        if done % 10_000 == 0:
            progress("checked", done, jobs)
    progress("checked", 1, 1)
    return damaged


def _digest(path: Path, progress: Progress) -> tuple[int, str]:
    digest, size, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            size += len(block)
            progress("hashed", size, total)
    return size, digest.hexdigest()


def copy_checked(source: Path, target: Path, manifest: Manifest, progress: Progress) -> None:
    """Copy a file of a backup and compare the written file with the manifest. Raises BackupInvalid, OSError."""
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    digest, done = hashlib.sha256(), 0
    with os.fdopen(fd, "wb") as written, source.open("rb") as file:
        while block := file.read(_READ_BYTES):
            written.write(block)
            digest.update(block)
            done += len(block)
            progress("copied", done, manifest.bytes)
        written.flush()
        os.fsync(written.fileno())
    if digest.hexdigest() != manifest.sha256:
        raise BackupInvalid(f"{source} changed while it was copied. Nothing was restored.")
