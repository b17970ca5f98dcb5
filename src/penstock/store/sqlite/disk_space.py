"""Handling of a full disk in the SQLite store: it refuses new jobs, and releases its reserve for all other writes.

The reserve is released in parts, one for each write that found no room. New jobs are accepted again once the whole reserve
is restored and there is more free room. A start finds the reserve in the state in which the last process left it: a disk
that was full then counts as full, unless there is room now.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import apsw
import structlog

from penstock.core.errors import StorageFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.store.contract import StoreStatus
    from penstock.store.data_directory import DiskReserve

log = structlog.get_logger("penstock.store")

_WITHOUT_RESERVE: Final = (
    "Disk is full: new jobs are refused until space is freed. Acknowledgements are tried, but there is no reserve for them "
    "(ballast_bytes is 0). Nothing was stored."
)
_USED_UP: Final = (
    "Disk is full, and the reserve for acknowledgements is used up: nothing can be stored until space is freed. "
    "Nothing was stored."
)


class DiskSpace:
    """Manages the space of one data directory.

    ``status`` is the store's own; ``when_changed`` is called when it becomes full.
    """

    def __init__(self, reserve: DiskReserve, status: StoreStatus, clock: Clock, when_changed: Callable[[], None]) -> None:
        self.reserve = reserve
        self._status = status
        self._clock = clock
        self._when_changed = when_changed

    @property
    def reserve_bytes(self) -> int | None:
        """Return the current size of the reserve; None if there is to be none."""
        return self.reserve.bytes if self.reserve.is_wanted else None

    def means_full(self, error: apsw.Error | OSError) -> bool:
        """Return whether an error means that the disk is full."""
        if isinstance(error, OSError):
            return error.errno == errno.ENOSPC
        # SQLite creates the index of the log without a write call, and has a separate error for that.
        return isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE

    def secure(self) -> None:
        """Restore the reserve after a start.

        If that is not possible, new jobs are refused: they would use up the remaining space.
        """
        held = self.reserve.hold()
        self._update_status()
        if not held:
            self._refuse_jobs()
            if not self.reserve.bytes and not self.reserve.has_room():
                self._used_up()
        elif self._status.reserve_short:
            log.warning(
                "the disk has little space: the reserve for acknowledgements is smaller than ballast_bytes",
                bytes=self.reserve.bytes,
            )

    def refuse(self) -> StorageFull:
        """Record that a write found no room; return the error for it if it cannot be tried again."""
        given = self.reserve.release_part()
        self._update_status()
        if not self._status.full:
            self._refuse_jobs()
        elif not given:
            self._used_up()
        return StorageFull(self._status.refusal, room_made=given)

    def worked(self) -> None:
        """Record that a write succeeded after a failed one."""
        self._status.writable = True
        self._status.error = "disk full"
        self._status.refusal = None if self.reserve.is_wanted else _WITHOUT_RESERVE

    def regain(self) -> bool:
        """Reserve released parts again, or more than at the start; return True if new jobs can be accepted."""
        held = self.reserve.hold()
        self._update_status()
        if held and self.reserve.has_room_for_jobs():
            return True
        if self._status.full and not self._status.writable and self.reserve.has_room():
            self.worked()
        return False

    def _update_status(self) -> None:
        self._status.reserve_bytes = self.reserve_bytes
        self._status.reserve_short = self.reserve.is_wanted and not self.reserve.is_whole

    def _refuse_jobs(self) -> None:
        log.error(
            "disk is full: new jobs are refused, acknowledgements continue as long as there is a reserve; free some space",
            reserve_bytes=self.reserve_bytes,
            of_bytes=self.reserve.goal,
        )
        self._status.full = True
        self._status.error = "disk full"
        self._status.since_ms = self._clock.now_ms()
        self._status.refusal = None if self.reserve.is_wanted else _WITHOUT_RESERVE
        self._when_changed()

    def _used_up(self) -> None:
        if self._status.writable:
            log.error("the reserve for acknowledgements is used up: nothing can be stored until space is freed")
        self._status.writable = False
        self._status.error = "disk full, and the reserve for acknowledgements is used up"
        self._status.refusal = _USED_UP
