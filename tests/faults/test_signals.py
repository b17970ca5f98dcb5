"""Graceful life: stop when asked, finish what is in flight, never hang, and never need a second thought."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import h2.connection
import httpx2
import pytest

from tests.doors.api import Api
from tests.support.ports import free_port
from tests.support.server import ServerProcess, serve_command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_stop_under_load_answers_what_was_accepted_and_loses_nothing(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    acknowledged: list[str] = []
    broken: list[Exception] = []
    enough = asyncio.Event()

    async def produce() -> None:
        async with server.async_client() as client:
            while True:
                try:
                    response = await client.post("/queues/q/jobs", json={"data": 1})
                except httpx2.ConnectError:
                    return
                except httpx2.TransportError as error:
                    broken.append(error)
                    return
                if response.status_code == 503:
                    return
                assert response.status_code == 200
                acknowledged.append(response.json()["id"])
                if len(acknowledged) > 300:
                    enough.set()

    async def poll() -> int:
        async with server.async_client() as client:
            response = await client.get("/queues/empty/jobs", params={"timeout": 60_000})
            assert response.json() == {"ok": True, "job": None}
            return response.status_code

    producers = [asyncio.create_task(produce()) for _ in range(8)]
    polling = asyncio.create_task(poll())
    await enough.wait()
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*producers)
    assert await polling == 200  # a waiting caller is sent home, not cut off
    code = await asyncio.to_thread(server.process.wait, 10)
    assert code == 0
    server.stop()
    with server, server.client() as client:
        assert Api(client, "q").counts()["waiting"] >= len(acknowledged)
    # A connection that was idle when the server closed it may find out only when it is used again.
    assert all(isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError) for error in broken)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_idle_server_stops_at_once_and_cleanly(tmp_path: Path, name: str) -> None:
    server = ServerProcess(tmp_path / "data").start()
    assert server.process is not None
    server.process.send_signal(getattr(signal, name))
    assert server.process.wait(10) == 0
    server.stop()
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "penstock.db",
        "penstock.lock",
        "penstock.mark",
        "ballast",
    }


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    assert server.process is not None
    with socket.create_connection(("127.0.0.1", server.port)) as stuck:  # a request that never ends
        stuck.sendall(b"POST /queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        with server.client() as client:
            client.get("/ping")
        server.process.send_signal(signal.SIGTERM)
        while '"stopping"' not in server.log():
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 1
    server.stop()


def _http2(*, length: int | None) -> bytes:
    """Return a request over HTTP/2 whose body does not end."""
    link = h2.connection.H2Connection()
    link.initiate_connection()
    headers = [(":method", "POST"), (":path", "/queues/q/jobs"), (":scheme", "http"), (":authority", "localhost")]
    link.send_headers(1, [*headers, *([("content-length", str(length))] if length else [])])
    link.send_data(1, b"{")
    return link.data_to_send()


@pytest.mark.parametrize(
    "half",
    [
        b"POST /queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"POST /queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        _http2(length=100),
    ],
    ids=["length", "chunked", "head", "http2"],
)
def test_requests_that_are_half_sent_do_not_hold_up_a_stop(tmp_path: Path, half: bytes) -> None:
    env = {"SHUTDOWN_TIMEOUT_MS": "600000"}
    server = ServerProcess(tmp_path / "data", env=env).start()
    assert server.process is not None
    with socket.create_connection(("127.0.0.1", server.port)) as stuck:
        stuck.sendall(half)
        with server.client() as client:
            client.get("/ping")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert b" 200 " not in stuck.recv(65_536)
    server.stop()


def test_logs_are_json_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        pass
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert [line["event"] for line in lines] == ["ready", "stopping", "stopped"]
    assert all(line["level"] == "info" and line["timestamp"].endswith("Z") for line in lines)


def test_logs_are_plain_when_asked(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--log-format", "plain") as server:
        pass
    assert "ready" in server.log()
    assert not server.log().startswith("{")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--http", "nonsense"], "http (from --http) is 'nonsense': expected HOST:PORT"),
        (["--http", "127.0.0.1:99999"], "expected HOST:PORT"),
        (["--http", "off"], "expected HOST:PORT, for example"),
        (["--http", "0.0.0.0:6790"], "would give access to everyone who can reach this machine"),
        (["--durability", "sometimes"], "expected one of: always, interval, never"),
        (["--config", "/does/not/exist.yaml"], "cannot be read: No such file or directory"),
        (["--data", "/dev/null/x"], "cannot be used: Not a directory"),
    ],
)
def test_a_bad_command_line_is_explained(tmp_path: Path, args: list[str], error: str) -> None:
    command = [*serve_command(tmp_path / "data"), *args]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert error in run.stderr
    assert "Traceback" not in run.stderr


def test_a_port_in_use_is_explained(tmp_path: Path, server: ServerProcess) -> None:
    command = [
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--tcp",
        "off",
        "--resp",
        "off",
        "--http",
        f"127.0.0.1:{server.port}",
        "--metrics",
        "off",
    ]
    run = subprocess.run([sys.executable, "-m", "penstock", *command], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{server.port}: Address already in use" in run.stderr


def test_a_metrics_listener_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--metrics", f"127.0.0.1:{port}"), httpx2.Client(trust_env=False) as client:
        response = client.get(f"http://127.0.0.1:{port}/metrics")
        assert "bunqueue_jobs_waiting" in response.text
        assert client.get(f"http://127.0.0.1:{port}/stats").status_code == 404
