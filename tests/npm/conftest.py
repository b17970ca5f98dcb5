"""bunqueue's own server and clients, in the versions of package.json, run by Bun."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import httpx2
import pytest

from tests.support import npm
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

SCRIPTS = Path(__file__).parent / "bunqueue"
#: The package of each version, as package.json calls it.
PACKAGES = {"2.9": "bunqueue", "2.7": "bunqueue-2.7"}
START_TIMEOUT_S = 60
SCRIPT_TIMEOUT_S = 240


class Address(NamedTuple):
    """Where a server listens on this machine."""

    tcp_port: int
    http_port: int


class OriginalServer:
    """bunqueue's own server, on a file of its own."""

    def __init__(self, version: str, data: Path) -> None:
        self.address = Address(free_port(), free_port())
        self._main = npm.modules() / PACKAGES[version] / "dist" / "main.js"
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._data.mkdir(parents=True)
        tcp_port, http_port = self.address
        env = npm.environment(
            HOST="127.0.0.1", TCP_PORT=str(tcp_port), HTTP_PORT=str(http_port), DATA_PATH=str(self._data / "queue.db")
        )
        env.pop("AUTH_TOKENS", None)
        with (self._data / "log").open("w") as log:
            command = [npm.bun(), "--no-install", str(self._main)]
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=self._data)
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            assert self._process.poll() is None, (self._data / "log").read_text(encoding="utf-8")
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"http://127.0.0.1:{http_port}/health", timeout=5, trust_env=False).status_code == 200:
                    return self
            time.sleep(0.01)
        raise AssertionError((self._data / "log").read_text(encoding="utf-8"))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


Calls = dict[str, Any]


def start_script(name: str, version: str, address: Address, calls: Path) -> subprocess.Popen[str]:
    """Start a script with the client of a version, against a server; it writes what its calls answered to a file."""
    home = npm.modules() / PACKAGES[version]
    env = npm.environment(
        BUNQUEUE_HOME=str(home),
        BUNQUEUE_CALLS=str(calls),
        TEST_TCP_PORT=str(address.tcp_port),
        TEST_HTTP_PORT=str(address.http_port),
    )
    for mine in ("BQ_TOKEN", "BUNQUEUE_TOKEN", "BUNQUEUE_EMBEDDED", "BUNQUEUE_MODE"):
        env.pop(mine, None)
    return subprocess.Popen(
        [npm.bun(), "--no-install", str(SCRIPTS / f"{name}.js")],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=calls.parent,
    )


def read_calls(process: subprocess.Popen[str], calls: Path) -> Calls:
    """Return what the calls of a script answered, by their labels, in order."""
    try:
        output, _ = process.communicate(timeout=SCRIPT_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return dict(json.loads(calls.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A server of our own for the scripts, which use queues of fixed names."""
    with ServerProcess(tmp_path_factory.mktemp("penstock") / "data") as running:
        yield Address(running.tcp_port, running.port)
