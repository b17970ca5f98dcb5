"""``--log-level debug`` logs each request and each command; other levels do not."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from tests.doors.api import Api
from tests.support.resp import RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("log") / "data", "--log-level", "debug") as running:
        yield running


def lines(server: ServerProcess, **wanted: Any) -> list[dict[str, Any]]:
    """Return the lines of the log that have all of these, once there is one."""
    while True:
        all_of_them = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
        found = [line for line in all_of_them if wanted.items() <= line.items()]
        if found:
            return found
        time.sleep(0.01)


def test_requests_over_http(talkative: ServerProcess) -> None:
    with talkative.client() as http:
        api = Api(http, "logged")
        api.push("private")
        api.pull()
        assert http.get("/jobs/nothing?token=hidden").status_code == 404
        assert http.options("/queues").status_code == 204
        http.head("/health")
    (pushed,) = lines(talkative, event="request", method="POST", path="/queues/logged/jobs")
    assert (pushed["status"], pushed["client"], pushed["level"]) == (200, "127.0.0.1", "debug")
    assert pushed["ms"] > 0
    (missing,) = lines(talkative, event="request", path="/jobs/nothing")
    assert missing["status"] == 404
    (options,) = lines(talkative, event="request", method="OPTIONS")
    assert options["status"] == 204
    assert lines(talkative, event="request", method="HEAD", path="/health", status=200)
    assert "private" not in talkative.log()
    assert "hidden" not in talkative.log()


def test_streams_are_logged_when_they_begin_and_when_they_end(talkative: ServerProcess) -> None:
    with talkative.client() as http, http.stream("POST", "/subscribe/logged-topic", content=b'"NOPE"') as stream:
        assert stream.read() == b'{"error":"unrecognised command received"}\n'
    assert lines(talkative, event="stream begins", path="/subscribe/logged-topic", status=200)
    assert lines(talkative, event="request", path="/subscribe/logged-topic", status=200)
    with connect(f"ws://127.0.0.1:{talkative.port}/ws") as socket:
        socket.send('{"cmd": "Ping", "reqId": "1"}')
        socket.recv()
    assert lines(talkative, event="request", method="WEBSOCKET", path="/ws")


def test_commands(talkative: ServerProcess) -> None:
    with RespClient(talkative.resp_port, "logged-resp") as client:
        client.ok("AUTH", "default", "a-secret-token")
        client.publish("a-secret-message")
        client.ok("RECEIVE", client.topic)
        client.ok("ACK")
        client.publish("x")
        assert client.subscribe() == b"x"
        client.call("NACK")
    with TcpClient(talkative.tcp_port, "logged-tcp") as tcp:
        tcp.push("another-secret")
    for name in ("PUBLISH", "RECEIVE", "SUBSCRIBE"):
        assert lines(talkative, event="command", name=name, of="logged-resp")[0]["client"] == "127.0.0.1"
    assert lines(talkative, event="command", name="ACK")
    assert lines(talkative, event="command", name="NACK")
    assert lines(talkative, event="command", name="AUTH")
    assert lines(talkative, event="command", name="PUSH", of="logged-tcp")
    assert "secret" not in talkative.log()


def test_other_levels_log_no_requests(server: ServerProcess) -> None:
    with server.client() as http, RespClient(server.resp_port) as client:
        http.get("/health")
        client.ok("PING")
    assert '"request"' not in server.log()
    assert '"command"' not in server.log()
