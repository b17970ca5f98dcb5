"""Starts and stops what is measured and what measures, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Penstock:
    """A server under measurement. ``more``: further flags; ``settings``: further settings, by their variables.

    ``module``: what is run, if it is not the server itself.
    """

    def __init__(
        self, data: Path, durability: str, *more: str, settings: Mapping[str, str] | None = None, module: str = "penstock"
    ) -> None:
        self.module = module
        self.data = data
        self.durability = durability
        self.more = more
        self.settings = dict(settings or {})
        self.port = free_port()
        self.resp_port = free_port()

    def start(self) -> float:
        """Start it and return how many seconds it took to be ready."""
        started = time.perf_counter()
        command = [
            sys.executable, "-m", self.module, "serve", "--data", str(self.data), "--http", f"127.0.0.1:{self.port}",
            "--resp", f"127.0.0.1:{self.resp_port}", "--tcp", "off", "--metrics", "off", "--durability", self.durability,
            "--log-level", "error", *self.more,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | self.settings)
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise SystemExit("the server did not start")
        return time.perf_counter() - started

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as response:
            return json.loads(response.read())

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), dict(headers or {})
        )
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())

    def rss_mb(self) -> float:
        """Return the memory it takes, as the system counts it."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * 4096 / 2**20

    def load(self, script: str, *, connections: int = 32, seconds: float = 2.0, **options: Any) -> dict[str, float]:
        return load(self.port, script, connections=connections, seconds=seconds, **options)

    def http2(self, script: str, *, streams: int, seconds: float = 2.0, **options: Any) -> dict[str, float]:
        return load(self.port, script, client="bench.http2", streams=streams, seconds=seconds, **options)

    def resp(self, script: str, pipes: tuple[int, int], *, seconds: float = 2.0, **options: Any) -> dict[str, float]:
        """Measure over the Redis protocol; ``pipes`` are connections, and commands sent together on each."""
        connections, pipeline = pipes
        options |= {"connections": connections, "pipeline": pipeline, "seconds": seconds}
        return load(self.resp_port, script, client="bench.resp", **options)


def load(port: int, script: str, *, client: str = "bench.load", **options: Any) -> dict[str, float]:
    """Run the load in a process of its own; ``client`` is the module that speaks the protocol."""
    done = subprocess.run(
        [sys.executable, "-m", client, json.dumps({"port": port, "script": script, **options})],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    measured: dict[str, float] = json.loads(done.stdout)
    if measured["errors"]:
        raise SystemExit(f"{script}: {measured['errors']:.0f} requests failed")
    return measured


@contextmanager
def penstock(durability: str) -> Iterator[Penstock]:
    """Run a server on a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        server = Penstock(Path(directory) / "data", durability)
        with running(server):
            yield server


@contextmanager
def running(server: Penstock) -> Iterator[float]:
    """Run a server; the value is how many seconds it took to be ready."""
    ready = server.start()
    try:
        yield ready
    finally:
        server.stop()


@contextmanager
def baseline() -> Iterator[int]:
    """Run the empty handler; the value is its port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.baseline", str(port)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()
