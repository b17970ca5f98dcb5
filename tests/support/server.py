"""A real server in a real process, for tests that talk to it over real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import httpx2

from tests.support import forks, stores
from tests.support.described import DescribedClient
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

START_TIMEOUT_S = 60
PENSTOCK = ("-m", "penstock")
#: Variables of the developer's own shell that would change what the server does.
_CLEARED = (
    "AUTH_TOKENS", "HTTP_PORT", "TCP_PORT", "HOST", "DATA_PATH", "CORS_ALLOW_ORIGIN", "RATE_LIMIT_MAX_REQUESTS", "LOG_FORMAT",
    "WEBHOOK_ALLOWED_HOSTS", "PENSTOCK_STORES", "JWT_SECRET", "JWT_KEY_FILE", "JWT_JWKS", "NAMESPACE_QUOTAS", "TLS_CERT_FILE",
    "TLS_KEY_FILE", "PENSTOCK_AUTH_API_KEY", "EPOCHQ_AUTH_API_KEY", "EPOCHQUEUE_AUTH_API_KEY", "PENSTOCK_AUTH_REQUIRED",
    "PENSTOCK_PUSH_ALLOWED_HOSTS", "PENSTOCK_LAKE",
)  # fmt: skip


def serve_command(data: Path) -> list[str]:
    """Return the command of a server on a directory that needs no port of its own but one."""
    options = [
        "--data",
        str(data),
        "--tcp",
        "off",
        "--resp",
        "off",
        "--http",
        f"127.0.0.1:{free_port()}",
        "--metrics",
        "off",
    ]
    return [sys.executable, "-m", "penstock", "serve", *options]


class ServerProcess:
    """Starts ``penstock serve`` on a data directory. Use it as a context manager, or call ``start`` and ``stop``."""

    def __init__(
        self,
        data: Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        launcher: Sequence[str] = PENSTOCK,
        port: int | None = None,
        tcp_port: int | None = None,
        resp_port: int | None = None,
    ) -> None:
        self.data = data
        self.args = args
        self.env = {name: value for name, value in os.environ.items() if name not in _CLEARED}
        if launcher == PENSTOCK:  # the others do things to a file
            self.env |= stores.environment(data)
        self.env |= dict(env or {})
        self.launcher = launcher
        self.port = port or free_port()
        self.tcp_port = tcp_port or free_port()
        self.resp_port = resp_port or free_port()
        self.process: subprocess.Popen[str] | forks.Fork | None = None
        self.log_path = data.parent / f"{data.name}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> Self:
        """Start it and wait until it says that it listens."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        args = [
            "serve", "--data", str(self.data), "--http", f"127.0.0.1:{self.port}",
            "--tcp", f"127.0.0.1:{self.tcp_port}", "--resp", f"127.0.0.1:{self.resp_port}", "--metrics", "off", *self.args,
        ]  # fmt: skip
        with self.log_path.open("a") as log:
            self.process = forks.fork(args, self.env, log.fileno()) if self.launcher == PENSTOCK else None
            if self.process is None:
                command = [sys.executable, *self.launcher, *args]
                self.process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process.stdout.close()
            raise AssertionError(f"the server did not start: {self.log()}")
        return self

    def stop(self, timeout: float = 60) -> int:
        """Ask it to stop and return its exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def kill(self) -> None:
        """Kill it as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    def client(self, **more: Any) -> httpx2.Client:
        client = DescribedClient(base_url=self.url, timeout=30, trust_env=False, **more)
        client.main_port = self.port
        return client

    def async_client(self, **more: Any) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx2.AsyncClient(base_url=self.url, timeout=60, trust_env=False, limits=limits, **more)
