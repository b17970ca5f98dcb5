"""A tenant is one client, however many users with tokens it has: what they hold together leaves room for others."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.security.test_tenants import frame
from tests.support.issuer import SECRET, token
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2


MB = 1024 * 1024
#: Small limits, so that few requests are enough to use them up: of each, one namespace gets half.
LIMITS = {
    "bodies_bytes_max": 4 * MB,
    "bodies_share_bytes_max": 2 * MB,
    "frames_bytes_max": 4 * MB,
    "frames_share_bytes_max": 2 * MB,
    "answers_connection_bytes_max": 2 * MB,
    "answers_client_bytes_max": 2 * MB,
    "answers_bytes_max": 6 * MB,
    "answer_stall_ms_max": 3_000,
    "answer_stall_crowded_ms_max": 3_000,
}
USERS = 6


@pytest.fixture(scope="module")
def batches() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, batches: int) -> Iterator[ServerProcess]:
    env = {"JWT_SECRET": SECRET, "LIMITS": json.dumps(LIMITS), "PENSTOCK_BATCHES": f"127.0.0.1:{batches}"}
    data = tmp_path_factory.mktemp("holders") / "data"
    with ServerProcess(data, env=env, launcher=("-m", "tests.support.limits_server")) as running:
        yield running


def shown(namespace: str, user: int = 0) -> dict[str, str]:
    """Return the headers of one of the users of a tenant."""
    made = token(scopes=[f"{namespace}:admin"], sub=f"{namespace}-{user}")
    return {"Authorization": f"Bearer {made}", "X-Namespace": namespace}


@pytest.fixture
def evil(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client(headers=shown("evil")) as client:
        yield client


@pytest.fixture
def good(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client(headers=shown("good")) as client:
        yield client


def body(namespace: str, user: int, path: str, size: int) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in shown(namespace, user).items())
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {size}\r\n\r\n"
    return head.encode() + b'[{"data":"' + b"x" * (size - 20)


@pytest.mark.parametrize("path", ["/queues/q/jobs", "/enqueue"])
def test_bodies_that_do_not_end(server: ServerProcess, good: httpx2.Client, batches: int, path: str) -> None:
    """Bodies of several users of one tenant took all memory for bodies. The body of ``/enqueue`` names its namespace."""
    port = batches if path == "/enqueue" else server.port
    with ExitStack() as stack:
        waiting = []
        for user in range(USERS):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(ConnectionError):  # it is refused before it has sent everything
                link.sendall(body("evil", user, path, MB))
            waiting.append(link)
        while len(waiting) > 2:  # two have room; the others are refused
            ended = select.select(waiting, [], [], 20)[0]
            assert ended, f"{len(waiting)} bodies are held"
            waiting = [link for link in waiting if link not in ended]
        for _ in range(3):
            assert good.post("/queues/q/jobs", json={"data": "x" * MB}).status_code == 200


def test_frames_that_do_not_end(server: ServerProcess) -> None:
    """The same over TCP. And a tenant does not have the share of those whose address it has."""

    def dial(namespace: str, user: int, stack: ExitStack) -> tuple[socket.socket, Any]:
        link = stack.enter_context(socket.create_connection(("127.0.0.1", server.tcp_port), 30, (f"127.0.0.{user + 1}", 0)))
        replies = stack.enter_context(link.makefile("rb"))
        shown_token = shown(namespace, user)["Authorization"].removeprefix("Bearer ")
        link.sendall(frame({"cmd": "Auth", "token": shown_token, "namespace": namespace}))
        assert b"ok" in replies.read(struct.unpack(">I", replies.read(4))[0])
        return link, replies

    with ExitStack() as stack:
        for user in range(USERS):
            link, _ = dial("evil", user, stack)
            link.sendall(struct.pack(">I", 2 * MB) + b"\x81" + b"x" * (MB - 100_000))
        for user in range(2):
            link, replies = dial("good", user, stack)
            link.sendall(frame({"cmd": "PUSH", "queue": "q", "data": "x" * MB}))
            reply = replies.read(struct.unpack(">I", replies.read(4))[0])
            assert b"too_many" not in reply
            assert b"id" in reply


def test_answers_that_are_not_read(server: ServerProcess, good: httpx2.Client, evil: httpx2.Client) -> None:
    """Answers that several users of a tenant do not read took all memory for answers."""
    for client in (evil, good):
        for _ in range(2):
            client.post("/queues/listed/jobs", json={"data": "x" * (MB // 2)}).raise_for_status()
    asked = "".join(f"{name}: {{{name}}}\r\n" for name in shown("evil"))
    line = "GET /queues/listed/jobs/list HTTP/1.1\r\nHost: localhost\r\n"
    with ExitStack() as stack:
        for user in range(USERS):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            link.connect(("127.0.0.1", server.port))
            link.sendall((line + asked.format(**shown("evil", user)) + "\r\n").encode() * 3)
        with server.client(headers={"Authorization": f"Bearer {token()}"}) as root:
            unread = 0.0
            for _ in range(20):
                lines = root.get("/prometheus").text.splitlines()
                found = [float(each.split()[1]) for each in lines if each.startswith("penstock_http_unread_bytes ")]
                unread = max(unread, *found)
        assert unread <= 2 * LIMITS["answers_client_bytes_max"] + MB
        assert len(good.get("/queues/listed/jobs/list").content) > MB
