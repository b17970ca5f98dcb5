"""The spool: files that clients will fetch. It is bounded, and cleaned by age and at the start.

Each server has its own directory there, and holds a lock on it while it runs. So a starting server can find the directories
of dead servers, also when several servers share a machine.

The spool has payloads of all namespaces, and may be in a directory that all users of the machine can write to. So it belongs
to the server's user, no other user may access it, and no symbolic link is followed on the way to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from penstock.core.errors import ConfigInvalid, SpoolFull, StorageFailed
from penstock.core.ids import random_name
from penstock.store.data_directory import why_not_private

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger("penstock.bulk")

_LOCK: Final = "lock"


class Spool:
    """The files of one server, in a directory that is created on first use. They may use ``bytes_max`` together.

    ``share``: the number of concurrent writers; each may use its part of the free bytes.
    """

    def __init__(self, base: Path, bytes_max: int, *, share: int = 1) -> None:
        self._base = base
        self._bytes_max = bytes_max
        self._share = share
        self._own: Path | None = None
        self._lock = -1
        self.used = 0  #: bytes of files, and bytes that are reserved for writers

    @property
    def is_tight(self) -> bool:
        """Return whether more than half of it is used."""
        return self.used * 2 > self._bytes_max

    def clean(self) -> None:
        """Remove the files of dead servers. Raises ConfigInvalid if other users may access the spool."""
        if not os.path.lexists(self._base):
            return
        if reason := why_not_private(self._base):
            raise ConfigInvalid(f"The spool cannot be used. {reason}")
        for directory in self._base.iterdir():
            if directory.is_symlink():
                continue
            lock = _try_lock(directory / _LOCK)
            if lock is not None:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock)

    def directory(self) -> Path:
        """Return a new, empty directory for some files. Raises StorageFailed if the disk fails."""
        try:
            if self._own is None:
                with contextlib.suppress(FileExistsError):
                    self._base.mkdir(mode=0o700, parents=True)
                if reason := why_not_private(self._base):  # other users could read or replace files there
                    raise StorageFailed(f"The spool cannot be used. {reason}")
                own = self._base / f"{random_name():016x}"
                own.mkdir(mode=0o700)
                self._lock = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                self._own = own
            made = self._own / f"{random_name():016x}"
            made.mkdir(mode=0o700)
        except OSError as error:
            raise StorageFailed(f"The spool cannot be written ({error}). Check the directory given by --data.") from error
        return made

    @contextmanager
    def room(self) -> Iterator[int]:
        """Reserve bytes for a writer, during the write. The written bytes are then counted by ``keep``."""
        free = (self._bytes_max - self.used) // self._share
        if free <= 0:
            raise SpoolFull("The spool is full of files that wait for being fetched. Delete snapshots, or retry later.")
        self.used += free
        try:
            yield free
        finally:
            self.used -= free

    def keep(self, size: int) -> None:
        """Count written files."""
        self.used += size

    async def remove(self, directory: Path, size: int) -> None:
        """Remove a directory, and uncount its files. A client that is reading one of them still gets all of it."""
        self.used -= size
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(directory, ignore_errors=True))

    def close(self) -> None:
        """Remove everything."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock)
            self._own = None
            with contextlib.suppress(OSError):  # another process may have files in it
                self._base.rmdir()


def shared_place() -> Path:
    """Return the place of the spool for a server without a data directory: in the directory for temporary files.

    Every user can write there. If another user has taken the name, a directory with a random name is created: no user can
    prevent the server of another one from starting.
    """
    base = Path(tempfile.gettempdir()) / f"penstock-spool-{os.geteuid()}"
    reason = why_not_private(base) if os.path.lexists(base) else ""
    if not reason:
        return base
    own = Path(tempfile.mkdtemp(prefix=f"{base.name}-"))
    log.warning(
        "the spool is in a separate directory, which is removed only by a clean stop", directory=str(own), reason=reason
    )
    return own


def _try_lock(path: Path) -> int | None:
    """Take a lock if it is free. A directory without a lock is being created, or was never completed."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
