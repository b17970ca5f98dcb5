"""The parts of the store that deal with the file system itself: who may use a directory, and what to do when it is full."""

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

#: Given back to the file system when it is full, so that acknowledgements have room to go on.
BALLAST_BYTES_MAX: Final = 64 * MEBIBYTE
#: A reserve is at most this share of what is free. After the disk was full, this share of the reserve must be free besides.
BALLAST_SHARE: Final = 4
#: In how many parts it is given back: other programs that fill the disk can take no more than the parts given back so far.
BALLAST_PARTS: Final = 32
#: The smallest part: room for opening the files, or for an acknowledgement.
BALLAST_PART_BYTES_MIN: Final = MEBIBYTE // 4
#: What ``st_blocks`` counts.
BLOCK_BYTES: Final = 512


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
    """A file that holds disk space in reserve. Parts of it are given back, one at a time, when the disk is full.

    The length of the file is how much is to be held, its blocks are how much is: both survive a restart. ``bytes_max``: most to
    hold; 0 turns the reserve off.
    """

    def __init__(self, directory: Path, bytes_max: int = BALLAST_BYTES_MAX) -> None:
        self._path = directory / "ballast"
        self._bytes_max = bytes_max
        self.bytes = 0  #: held now
        self.goal = 0  #: to be held; below ``bytes_max`` on a disk that had little room from the beginning

    @property
    def is_wanted(self) -> bool:
        """Tell whether there is to be a reserve."""
        return self._bytes_max > 0

    @property
    def is_whole(self) -> bool:
        """Tell whether the reserve is as large as the settings allow."""
        return self.bytes >= self._bytes_max

    def find(self) -> None:
        """Look at what an earlier process has left."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        self.goal = min(found.st_size, self._bytes_max)
        self.bytes = min(found.st_blocks * BLOCK_BYTES, self.goal)

    def hold(self) -> bool:
        """Hold as much as there is room for, and never less than before. False: that is less than the goal.

        One part is left free to work with.
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

    def give_back(self) -> bool:
        """Give a part of the space back to the file system; False if none is left."""
        if self.bytes == 0:
            return False
        self.bytes = max(0, self.bytes - self._part)
        self._resize_to_goal()
        return True

    def has_room(self) -> bool:
        """Tell whether the disk has room for acknowledgements, though perhaps for nothing more."""
        return self._free() >= BALLAST_PART_BYTES_MIN

    def has_room_for_jobs(self) -> bool:
        """Tell whether the disk has so much room that new jobs can be taken again."""
        return self._free() >= max(self.goal // BALLAST_SHARE, MEBIBYTE)

    @property
    def _part(self) -> int:
        return max(self.goal // BALLAST_PARTS, BALLAST_PART_BYTES_MIN)

    def _free(self) -> int:
        return free_bytes(self._path.parent)

    def _resize_to_goal(self) -> None:
        """Keep what is held, and the length that says what is to be held: the rest of the file takes up no space."""
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
    """Create a data directory, or explain why that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigInvalid(
            f"The data directory {directory} cannot be used: {error.strerror}. Choose another with --data."
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigInvalid(f"The data directory {directory} is not writable. Choose another with --data.")


def why_not_private(directory: Path) -> str:
    """Return why files of this process are not safe in a directory, with the remedy; empty if it is this user's alone.

    A symbolic link is never followed: another user may have put it there, in a directory that several users share.
    """
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"{directory} is a symbolic link. Remove it; to use another disk, mount that disk there."
    if not stat.S_ISDIR(found.st_mode):
        return f"{directory} is not a directory. Remove it."
    if found.st_uid != os.geteuid():
        return (
            f"{directory} belongs to another user (uid {found.st_uid}). Remove it, or run: chown {os.geteuid()} {directory}"
        )
    if found.st_mode & 0o077:
        return f"Other users may use {directory} (mode {stat.S_IMODE(found.st_mode):04o}). Run: chmod 700 {directory}"
    return ""


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


def free_bytes(directory: Path) -> int:
    """Return how much a directory's file system has left for us."""
    usage = os.statvfs(directory)
    return usage.f_bavail * usage.f_frsize
