"""What an attack costs: the memory of a server, the time its event loop is held, and what other clients get meanwhile."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx2

if TYPE_CHECKING:
    from types import TracebackType

    from tests.support.server import ServerProcess

MB = 1024 * 1024
#: A pause between two questions, so that the bystander itself is no load.
_BETWEEN_S = 0.01


def rss_mb(pid: int) -> float:
    """Return the memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


def cpu_s(pid: int) -> float:
    """Return the time that a process has computed, in seconds. It does not depend on what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settled(server: ServerProcess) -> float:
    """Return how long the server computes until it is done with what was left, in seconds: until a round costs little."""
    began = cpu_s(server.pid)
    with server.client() as client:
        for _ in range(1_000):
            before = cpu_s(server.pid)
            for _ in range(20):
                assert client.get("/health").status_code == 200
            if cpu_s(server.pid) - before <= 0.1:
                return cpu_s(server.pid) - began
    raise AssertionError("the server did not come to rest")


class Bystander:
    """Another client, in a thread of its own: asks ``path`` again and again, and keeps how long each answer took.

    Use it as a context manager around an attack. It also keeps the largest memory of the server that it saw.
    """

    def __init__(self, server: ServerProcess, path: str = "/health", headers: dict[str, str] | None = None) -> None:
        self._server = server
        self._path = path
        self._headers = headers or {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.seconds: list[float] = []
        self.statuses: set[int] = set()
        self.failures: list[str] = []
        self.rss_before_mb = rss_mb(server.pid)
        self.rss_most_mb = self.rss_before_mb

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(60)

    @property
    def slowest_s(self) -> float:
        """Return the longest time that one answer took, in seconds."""
        return max(self.seconds, default=0.0)

    @property
    def grown_mb(self) -> float:
        """Return how much larger the server was than at the beginning, in MiB, at its largest."""
        return self.rss_most_mb - self.rss_before_mb

    def _ask(self) -> None:
        is_tls = "--cert" in self._server.args
        url = self._server.url.replace("http:", "https:") if is_tls else self._server.url
        with httpx2.Client(base_url=url, timeout=30, trust_env=False, headers=self._headers, verify=not is_tls) as client:
            while not self._over.is_set():
                began = time.perf_counter()
                try:
                    self.statuses.add(client.get(self._path).status_code)
                except httpx2.HTTPError as error:
                    self.failures.append(repr(error))
                self.seconds.append(time.perf_counter() - began)
                self.rss_most_mb = max(self.rss_most_mb, rss_mb(self._server.pid))
                self._over.wait(_BETWEEN_S)
