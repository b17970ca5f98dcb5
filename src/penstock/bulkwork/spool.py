"""The spool: files that wait for being fetched. It is bounded, and cleaned by age and at the start.

Each server has a directory of its own in it, which it holds a lock on as long as it lives. So whoever starts can tell which
directories were left behind, also where several servers share a machine.

The spool holds payloads of all namespaces, and may be in a directory that all users of the machine can write to. So it belongs
to the user of the server, nobody else may use it, and no symbolic link is followed on the way to a file.
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
    """Files of one server, in a directory that is made when it is first needed. They may take up ``bytes_max`` together.

    ``share``: how many may be writing at the same time; each may use up to its part of what is free.
    """

    def __init__(self, base: Path, bytes_max: int, *, share: int = 1) -> None:
        self._base = base
        self._bytes_max = bytes_max
        self._share = share
        self._own: Path | None = None
        self._lock = -1
        self.used = 0  #: bytes of files, and bytes that are promised to those who write

    @property
    def is_tight(self) -> bool:
        """Tell whether more than half of it is used."""
        return self.used * 2 > self._bytes_max

    def clean(self) -> None:
        """Remove what servers have left behind that are gone. Raises ConfigInvalid if other users may use the spool."""
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
        """Return a new, empty directory for some files. Raises StorageFailed if the disk does not have it."""
        try:
            if self._own is None:
                with contextlib.suppress(FileExistsError):
                    self._base.mkdir(mode=0o700, parents=True)
                if reason := why_not_private(self._base):  # what is put there could be read, or replaced
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
        """Promise some bytes to who writes, for as long as that takes; what was written is then counted by ``keep``."""
        free = (self._bytes_max - self.used) // self._share
        if free <= 0:
            raise SpoolFull("The spool is full of files that wait for being fetched. Delete snapshots, or retry later.")
        self.used += free
        try:
            yield free
        finally:
            self.used -= free

    def keep(self, size: int) -> None:
        """Count files."""
        self.used += size

    async def remove(self, directory: Path, size: int) -> None:
        """Remove a directory, and count its files no longer. Who is being sent one of them still gets all of it."""
        self.used -= size
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(directory, ignore_errors=True))

    def close(self) -> None:
        """Remove everything."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock)
            self._own = None
            with contextlib.suppress(OSError):  # somebody else may have something in it
                self._base.rmdir()


def shared_place() -> Path:
    """Return where the spool of a server is that has no directory for its data: in the directory for temporary files.

    Every user can write there. Where another user has taken the name, a directory with a random name is made and used: no
    user can keep the server of another one from starting.
    """
    base = Path(tempfile.gettempdir()) / f"penstock-spool-{os.geteuid()}"
    reason = why_not_private(base) if os.path.lexists(base) else ""
    if not reason:
        return base
    own = Path(tempfile.mkdtemp(prefix=f"{base.name}-"))
    log.warning(
        "the spool is in a directory of its own, which only a proper stop removes", directory=str(own), reason=reason
    )
    return own


def _try_lock(path: Path) -> int | None:
    """Take a lock, if nobody has it. A directory without one is just being made, or was never finished."""
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
