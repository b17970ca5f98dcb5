"""Where the server listens: names, families, addresses that are taken or shared."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from penstock.config import Config
from tests.support.ports import free_port
from tests.support.server import ServerProcess
from tests.support.tcp import frame

if TYPE_CHECKING:
    from pathlib import Path


def serve(data: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(data), "--tcp", "off", "--resp", "off", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_names_and_both_families_work(tmp_path: Path, host: str) -> None:
    port, metrics = free_port(), free_port()
    tcp = free_port()
    args = ("--http", f"{host}:{port}", "--metrics", f"{host}:{metrics}", "--tcp", f"{host}:{tcp}")
    with serve(tmp_path, *args) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Penstock listens on http://{host}:{port}\n"
        assert httpx2.get(f"http://{host}:{port}/ping").json()["ok"] is True
        assert "penstock_" in httpx2.get(f"http://{host}:{metrics}/metrics").text
        with socket.create_connection((host.strip("[]"), tcp)) as connection:
            connection.sendall(frame({"cmd": "Ping"}))
            assert b"pong" in connection.recv(1_000)
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


def test_a_port_that_is_taken_stops_the_server_only_if_it_was_asked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serve(
            tmp_path, "--http", f"127.0.0.1:{free_port()}", "--metrics", "off", "--tcp", f"127.0.0.1:{port}"
        ) as process:
            _, said = process.communicate(timeout=30)
        assert process.returncode == 2
        assert f"Cannot listen on 127.0.0.1:{port}" in said
        assert "--tcp" in said


def test_a_default_port_that_is_taken_is_warned_of_and_the_server_goes_on(tmp_path: Path) -> None:
    """Another program, an older queue server perhaps, has the port that nobody asked for."""
    default = Config().tcp
    assert default is not None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # if somebody has it already, it is taken all the same
            stack.enter_context(socket.create_server(default))
        port = free_port()
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path), "--http", f"127.0.0.1:{port}"]
        env = {name: value for name, value in os.environ.items() if name not in ("TCP_PORT", "PENSTOCK_TCP", "HOST")}
        process = stack.enter_context(
            subprocess.Popen(
                [*command, "--metrics", "off", "--resp", "off"],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"Penstock listens on http://127.0.0.1:{port}\n"
        health = httpx2.get(f"http://127.0.0.1:{port}/health").json()
        assert (health["status"], health["connections"]["tcp"]) == ("healthy", 0)
        process.terminate()
        greeting, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "TCP" not in greeting
    (warning,) = (json.loads(line) for line in said.splitlines() if "a listener is not started" in line)
    assert (warning["level"], warning["listener"]) == ("warning", "tcp")
    assert warning["reason"] == (
        f"Cannot listen on {default}: Address already in use. Stop the program that uses it, or choose "
        "another address with --tcp."
    )


def test_the_greeting_says_where_our_own_protocols_listen(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        assert server.process is not None
        assert server.process.stdout is not None
        said = [server.process.stdout.readline() for _ in range(5)]
        assert f"  TCP      127.0.0.1:{server.tcp_port}\n" in said
        assert f"  RESP     127.0.0.1:{server.resp_port}\n" in said


def test_the_greeting_says_where_the_metrics_are_and_how_to_do_without(tmp_path: Path) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--metrics", f"127.0.0.1:{port}") as server:
        assert server.process is not None
        assert server.process.stdout is not None
        said = [server.process.stdout.readline() for _ in range(6)]
        assert f"           http://127.0.0.1:{port}/metrics  (off with --metrics off)\n" in said
        assert "penstock_" in httpx2.get(f"http://127.0.0.1:{port}/metrics").text


@pytest.mark.parametrize("args", [(), ("serve",)])
def test_nothing_is_offered_that_is_not_there(args: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "penstock", *args, "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    assert "four" not in said
