"""``make cluster``: the tour it prints works word by word, and nothing is left of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.generate import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here"),
]
LAST_LINE = re.compile(r"^curl .*/health$")
TIMEOUT_S = 60


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "deploy" / "cluster.py"), *args],
        env={"PATH": os.environ["PATH"], "AUTH_TOKENS": "of-the-shell", "PENSTOCK_STORES": "postgresql://of-the-shell"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


@contextmanager
def cluster(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a cluster and read its tour."""
    process = start(*args)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if LAST_LINE.match(line):
                break
        assert process.poll() is None, "".join(lines)
        yield process, "".join(lines)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)


def run(commands: list[str]) -> list[Any]:
    done = subprocess.run(["bash", "-c", "\n".join(commands)], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def processes_that_mention(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if text in words:
            found.append(words)
    return found


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda sent: sent.name)
def test_the_tour_runs_word_by_word_and_nothing_is_left(sent: signal.Signals) -> None:
    with cluster("--port", "0") as (process, tour):
        home = tour.split("logs      ")[1].split("/server-*.log")[0]
        shards = re.findall(r"shard (\d) +(\S+) +pid (\d+)", tour)
        assert len(shards) == 2
        assert len(processes_that_mention(home)) >= 4  # two servers, two databases, and what those start
        commands = [line for line in tour.splitlines() if line and not line.startswith("#")]
        assert [line.split()[0] for line in commands] == [
            "curl", "curl", "curl", "kill", "curl", "curl", "kill", "curl", "curl", "kill", "curl", "curl", "curl",
        ]  # fmt: skip

        pushed, pulled = run(commands[:2])
        assert pulled["job"]["id"] == pushed["id"]
        metrics = subprocess.run(["bash", "-c", commands[2]], capture_output=True, text=True, check=True).stdout.splitlines()
        assert metrics[0].startswith("bunqueue_jobs_active ")
        assert metrics[1:] == ['penstock_shard_up{shard="0"} 1.0', 'penstock_shard_up{shard="1"} 1.0']

        pushed, pulled = run(commands[3:6])  # without Redis
        assert pulled["job"]["id"] == pushed["id"]
        pushed, pulled = run(commands[6:9])
        assert pulled["job"]["id"] == pushed["id"]
        assert process.stdout is not None
        said = process.stdout.readline() + process.stdout.readline()  # the first one is empty
        assert "server 1 was ended by SIGKILL" in said

        refused, pushed, health = run(commands[9:])
        assert refused["ok"] is False
        assert pushed["ok"] is True
        assert health["status"] == "degraded"
        assert "shard 1" in health["reason"]
        metrics = subprocess.run(["bash", "-c", commands[2]], capture_output=True, text=True, check=True).stdout.splitlines()
        assert metrics[1:] == ['penstock_shard_up{shard="0"} 1.0', 'penstock_shard_up{shard="1"} 0.0']

        process.send_signal(sent)
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, said
        assert "stopped" in said
        assert not Path(home).exists()
        assert processes_that_mention(home) == []


def test_a_port_that_is_taken_is_told_and_nothing_is_left() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert f"Server 1 did not start on http://127.0.0.1:{port}" in said
    assert "--port PORT" in said
    assert processes_that_mention(f"127.0.0.1:{port}") == []


def test_a_signal_during_the_start_stops_it() -> None:
    process = start("--port", "0")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("# starting")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its children hear it too
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    assert "curl" not in said
    assert said.endswith("# stopped; nothing is left\n")
