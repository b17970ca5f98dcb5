"""File system tasks of a store: the lock of its directory, and the reserve for a full disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.errors import ConfigInvalid, StoreLocked
from penstock.core.limits import MEBIBYTE

#: Released to the file system when it is full, so that acknowledgements have room.
BALLAST_BYTES_MAX: Final = 64 * MEBIBYTE
#: A reserve is at most this share of the free space. After the disk was full, this share of the reserve must be free in
#: addition.
BALLAST_SHARE: Final = 4
#: Number of parts in which it is released: other programs that fill the disk can use only the parts released so far.
BALLAST_PARTS: Final = 32
#: The smallest part: room for opening the files, or for an acknowledgement.
BALLAST_PART_BYTES_MIN: Final = MEBIBYTE // 4
#: The unit of ``st_blocks``.
BLOCK_BYTES: Final = 512


class LockFileState(msgspec.Struct, omit_defaults=True):
    """The contents of the lock file: the state that the last process left in the directory."""

    pid: int = 0
    boot_id: str = ""  #: the start of the machine under which it ran
    used: bool = False  #: there was data in the directory
    clean: bool = True  #: all data was in the main file

    @property
    def machine_restarted(self) -> bool:
        """Whether the machine went down during its run, so that unsynced data is lost."""
        return self.used and not self.clean and self.boot_id != boot_id()


class DirectoryLock:
    """Lets only one process at a time use a data directory. The kernel releases it when the process ends, in any way."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "penstock.lock"
        self._fd = -1
        self.previous = LockFileState()

    def acquire(self) -> None:
        """Take the lock, or raise StoreLocked."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        text = os.read(self._fd, 4096)
        with contextlib.suppress(msgspec.DecodeError):
            self.previous = msgspec.json.decode(text, type=LockFileState)
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
        """Write the state for the next process: that there is data, and that all of it is in the main file."""
        text = msgspec.json.encode(LockFileState(os.getpid(), boot_id(), used=used, clean=clean)).ljust(120)
        # A full disk must not prevent a start or a stop.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, text, 0)
            os.fsync(self._fd)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskReserve:
    """A file that reserves disk space. Its parts are released, one at a time, when the disk is full.

    The length of the file is the wanted size of the reserve, its blocks are the actual size: both survive a restart.
    ``bytes_max``: maximum size; 0 turns the reserve off.
    """

    def __init__(self, directory: Path, bytes_max: int = BALLAST_BYTES_MAX) -> None:
        self._path = directory / "ballast"
        self._bytes_max = bytes_max
        self.bytes = 0  #: current size
        self.goal = 0  #: wanted size; below ``bytes_max`` on a disk that had little room at the first start

    @property
    def is_wanted(self) -> bool:
        """Whether there should be a reserve."""
        return self._bytes_max > 0

    @property
    def is_whole(self) -> bool:
        """Whether the reserve is as large as the settings allow."""
        return self.bytes >= self._bytes_max

    def find(self) -> None:
        """Read the reserve of an earlier process."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        self.goal = min(found.st_size, self._bytes_max)
        self.bytes = min(found.st_blocks * BLOCK_BYTES, self.goal)

    def hold(self) -> bool:
        """Reserve as much as there is room for, and never less than before. Returns False if that is less than the goal.

        One part of the space is left free for other writes.
        """
        if not self.is_wanted:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            return True
        free = self._free()
        goal = min(self._bytes_max, max(self.goal, (free + self.bytes) // BALLAST_SHARE))
        if goal < min(self._bytes_max, MEBIBYTE):
            return False
        self.goal = goal
        size = min(goal, max(self.bytes, self.bytes + free - self._part))
        if size > self.bytes:
            try:
                self._resize(goal)
                self._allocate(size)
            except OSError:
                self._resize_to_goal()
                return False
            self.bytes = size
        return self.bytes >= goal

    def release_part(self) -> bool:
        """Release a part of the space to the file system; return False if none is left."""
        if self.bytes == 0:
            return False
        self.bytes = max(0, self.bytes - self._part)
        self._resize_to_goal()
        return True

    def has_room(self) -> bool:
        """Return whether the disk has room for acknowledgements, but possibly not for more."""
        return self._free() >= BALLAST_PART_BYTES_MIN

    def has_room_for_jobs(self) -> bool:
        """Return whether the disk has enough room to accept new jobs again."""
        return self._free() >= max(self.goal // BALLAST_SHARE, MEBIBYTE)

    @property
    def _part(self) -> int:
        return max(self.goal // BALLAST_PARTS, BALLAST_PART_BYTES_MIN)

    def _free(self) -> int:
        return free_bytes(self._path.parent)

    def _resize_to_goal(self) -> None:
        """Keep the reserved blocks, and the length with the wanted size: the rest of the file takes up no space."""
        with contextlib.suppress(OSError):
            self._resize(self.bytes)
            self._resize(self.goal)

    def _resize(self, size: int) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def _allocate(self, size: int) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)


def prepare_directory(directory: Path) -> None:
    """Create a data directory. The error explains why that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigInvalid(
            f"The data directory {directory} cannot be used: {error.strerror}. Choose another with --data."
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigInvalid(f"The data directory {directory} is not writable. Choose another with --data.")


def why_not_private(directory: Path) -> str:
    """Return why files of this process are not safe in a directory, with the remedy; empty if only this user has access.

    A symbolic link is never followed: another user may have created it, in a directory that several users share.
    """
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"{directory} is a symbolic link. Remove it; to use another disk, mount that disk there."
    if not stat.S_ISDIR(found.st_mode):
        return f"{directory} is not a directory. Remove it."
    if found.st_uid != os.geteuid():
        return (
            f"{directory} is owned by another user (uid {found.st_uid}). Remove it, or run: chown {os.geteuid()} {directory}"
        )
    if found.st_mode & 0o077:
        return f"Other users may use {directory} (mode {stat.S_IMODE(found.st_mode):04o}). Run: chmod 700 {directory}"
    return ""


def sync_directory(directory: Path) -> None:
    """Make the names of new files survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def boot_id() -> str:
    """Return the identity of this start of the machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def free_bytes(directory: Path) -> int:
    """Return how much free space a directory's file system has for this process."""
    usage = os.statvfs(directory)
    return usage.f_bavail * usage.f_frsize
