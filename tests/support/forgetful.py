"""A disk that fails, and forgets what it had not written yet."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ForgetfulDisk:
    """Give ``fdatasync`` to a store in ``directory``. While ``broken``, it fails; what came since it last worked can be lost.

    While ``gate`` is closed, it takes its time.
    """

    def __init__(self, directory: Path) -> None:
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()
        self._log = directory / "penstock.db-wal"
        self._safe_bytes = 0

    def fdatasync(self, fd: int) -> None:
        self.gate.wait()
        if self.broken:
            raise OSError(5, "Input/output error")
        size = os.fstat(fd).st_size
        os.fdatasync(fd)
        self._safe_bytes = size

    def forget(self) -> None:
        """Lose what was written to the log since the last sync, as systems do that drop what they could not write."""
        with self._log.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(self._safe_bytes)
            file.write(bytes(end - self._safe_bytes))
