"""The page of the topics door and its examples: every command of the page is run, every example in one command."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2

from tests.docs.generate import ROOT
from tests.support.server import ServerProcess, free_port

if TYPE_CHECKING:
    from pathlib import Path


def example(name: str, *args: str, fine: bool = True) -> str:
    """Run an example and return what it printed; ``fine``: whether it should end well."""
    command = [sys.executable, str(ROOT / "examples" / "topics" / f"{name}.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) is fine, done.stderr
    return done.stdout if fine else done.stderr


def left(server: ServerProcess, topic: str) -> int:
    counts: dict[str, int] = httpx2.get(f"{server.url}/queues/{topic}/counts").json()["counts"]
    return sum(counts.values())


def test_echo(server: ServerProcess) -> None:
    assert example("echo", "one", "zwölf", "", "--url", server.url) == "one\nzwölf\n\n"
    assert left(server, "echo") == 0


def test_echo_over_tls(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--dev-cert") as server:
        trusted = ["--cacert", str(server.data / "dev-cert.pem")]
        assert example("echo", "--url", f"https://localhost:{server.port}", *trusted) == "hello\nworld\n"


def test_workers_that_fail_lose_nothing(server: ServerProcess) -> None:
    said = example("workers", "--workers", "3", "--messages", "12", "--url", server.url).splitlines()
    assert said[-1] == "12 of 12 done, 3 workers died, 2 messages given back"
    assert sorted(re.findall(r"died of (\d+)", "\n".join(said))) == ["1", "11", "6"]
    assert left(server, "workers") == 0


def test_backoff(server: ServerProcess) -> None:
    said = example("backoff", "--rounds", "1", "--url", server.url).splitlines()
    assert said[0] == "try 1 failed, again in 1 s"
    came = re.fullmatch(r"came back after ([0-9.]+) s", said[1])
    assert came is not None
    assert float(came[1]) >= 1
    assert said[2:] == ["try 2 succeeded"]
    assert left(server, "backoff") == 0


def test_without_a_server_they_say_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for name in ("echo", "workers", "backoff"):
        said = example(name, "--url", url, fine=False)
        assert said.startswith(f"There is no server at {url}"), said
        assert said.endswith("Start one with: penstock serve\n")
