"""The parts of the store that deal with the file system itself: who may use a directory, and what to do when it is full."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.errors import ConfigInvalid, StoreLocked
from penstock.core.limits import MEBIBYTE

#: Given back to the file system when it is full, so that acknowledgements have room to go on.
BALLAST_BYTES_MAX: Final = 64 * MEBIBYTE
#: Never reserve more than this share of what is free.
BALLAST_SHARE: Final = 4


class Tenancy(msgspec.Struct, omit_defaults=True):
    """What the lock file says about the process that used the directory last."""

    pid: int = 0
    boot_id: str = ""  #: which start of the machine it ran under
    used: bool = False  #: there was data in the directory
    clean: bool = True  #: all of it was in the main file

    @property
    def fell(self) -> bool:
        """Tell whether the machine went down under it, so that what was not on disk is gone."""
        return self.used and not self.clean and self.boot_id != boot_id()


class DirectoryLock:
    """Makes sure that one process at a time uses a data directory. The kernel frees it, however the process ends."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "penstock.lock"
        self._fd = -1
        self.previous = Tenancy()

    def acquire(self) -> None:
        """Take the lock, or raise StoreLocked."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        text = os.read(self._fd, 4096)
        with contextlib.suppress(msgspec.DecodeError):
            self.previous = msgspec.json.decode(text, type=Tenancy)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            self._fd = -1
            raise StoreLocked(
                f"Another process (pid {self.previous.pid}) uses the data directory {self._path.parent}. "
                "Stop it first, or choose another directory with --data."
            ) from None
        self.note(used=self.previous.used, clean=self.previous.clean)

    def note(self, *, used: bool, clean: bool) -> None:
        """Write down what the next process should know: that there is data, and that all of it is in the main file."""
        text = msgspec.json.encode(Tenancy(os.getpid(), boot_id(), used=used, clean=clean)).ljust(120)
        # A full disk must not keep anybody from starting or stopping.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, text, 0)
            os.fsync(self._fd)

    def release(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Ballast:
    """A file that holds some space, to be given back when there is none left."""

    def __init__(self, directory: Path, bytes_max: int = BALLAST_BYTES_MAX) -> None:
        self._path = directory / "ballast"
        self._bytes_max = bytes_max
        self.bytes = 0

    def hold(self) -> bool:
        """Reserve the space, if any is wanted; False if the disk has too little left for that."""
        if self._bytes_max == 0:
            return True
        free = _free_bytes(self._path.parent)
        size = min(self._bytes_max, (free + self._held()) // BALLAST_SHARE)
        if size < min(self._bytes_max, MEBIBYTE):
            return False
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(fd, size)
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError:
            self.release()
            return False
        self.bytes = size
        return True

    def release(self) -> None:
        """Give the space back."""
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)

    def room_again(self) -> bool:
        """Tell whether the disk has enough room for the ballast and some work besides."""
        return _free_bytes(self._path.parent) >= 2 * max(self.bytes, MEBIBYTE)

    def _held(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0


def prepare_directory(directory: Path) -> None:
    """Create a data directory, or explain why that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigInvalid(
            f"The data directory {directory} cannot be used: {error.strerror}. Choose another with --data."
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigInvalid(f"The data directory {directory} is not writable. Choose another with --data.")


def sync_directory(directory: Path) -> None:
    """Make the names of newly created files survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def boot_id() -> str:
    """Return what tells this start of the machine from earlier ones; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _free_bytes(directory: Path) -> int:
    usage = os.statvfs(directory)
    return usage.f_bavail * usage.f_frsize
