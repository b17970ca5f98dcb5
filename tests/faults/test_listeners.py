"""Where the server listens: names, families, addresses that are taken or shared."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.support.server import free_port

if TYPE_CHECKING:
    from pathlib import Path


def serve(data: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(data), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_names_and_both_families_work(tmp_path: Path, host: str) -> None:
    port, metrics = free_port(), free_port()
    with serve(tmp_path, "--http", f"{host}:{port}", "--metrics", f"{host}:{metrics}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Penstock listens on http://{host}:{port}\n"
        assert httpx2.get(f"http://{host}:{port}/ping").json()["ok"] is True
        assert "penstock_" in httpx2.get(f"http://{host}:{metrics}/metrics").text
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("--http", "999.1.1.1:80"), "expected HOST:PORT, for example"),
        (("--http", "no-such-host.invalid:80", "--insecure"), "is not the address of this machine"),
        (("--http", "127.0.0.1:9090"), "Two listeners share the address 127.0.0.1:9090"),
    ],
)
def test_where_nobody_can_listen_is_explained(tmp_path: Path, args: tuple[str, ...], error: str) -> None:
    with serve(tmp_path, *args) as process:
        _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert error in said
    assert "Traceback" not in said
