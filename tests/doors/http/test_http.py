"""HTTP itself: bodies that were cut off, odd ids in paths, hang-ups, heads, upgrades, large replies."""

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import pytest

from penstock.core import limits
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.doors.api import Api

CHUNKED = "Transfer-Encoding: chunked"


@contextmanager
def connection(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        yield sock


def send(sock: socket.socket, path: str, header: str, body: bytes) -> None:
    sock.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode() + body)


def reply_of(sock: socket.socket) -> tuple[int, Any]:
    """Read a reply to the end of the connection."""
    text = b""
    while chunk := sock.recv(65_536):
        text += chunk
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (CHUNKED, b""),
        (CHUNKED, b"2\r\n{}\r\n"),
        (CHUNKED, b"2\r\n{}\r\nzz\r\n"),
        (CHUNKED, b'20\r\n{"grace":864'),
        ("Content-Length: 20", b""),
        ("Content-Length: 20", b"{}"),
    ],
)
@pytest.mark.parametrize("action", ["clean", "dlq/retry", "retry-completed", "jobs"])
def test_a_body_that_was_cut_off_is_never_taken_for_a_shorter_one(
    server: ServerProcess, api: Api, action: str, header: str, body: bytes
) -> None:
    dead, completed, waiting = api.dead(), api.completed(), api.push(1)
    with connection(server) as sock:
        send(sock, f"/queues/{api.queue}/{action}", header, body)
        sock.shutdown(socket.SHUT_WR)  # nothing more will come, but the reply can be read
        assert reply_of(sock) == (400, {"ok": False, "error": "The request body is incomplete"})
    assert [api.state(each) for each in (waiting, dead, completed)] == ["waiting", "failed", "completed"]
    assert api.ok("GET", "{q}/count")["count"] == 1


@pytest.mark.parametrize("verb", ["ack", "fail"])
def test_a_word_of_a_worker_that_was_cut_off_does_not_count(server: ServerProcess, api: Api, verb: str) -> None:
    job_id = api.active()
    with connection(server) as sock:
        send(sock, f"/jobs/{job_id}/{verb}", CHUNKED, b"")
        sock.shutdown(socket.SHUT_WR)
        assert reply_of(sock)[0] == 400
    assert api.state(job_id) == "active"


def test_whole_bodies_in_chunks_are_taken(server: ServerProcess, api: Api) -> None:
    with connection(server) as sock:
        header = f"{CHUNKED}\r\nConnection: close"
        send(sock, f"/queues/{api.queue}/jobs", header, b'5\r\n{"dat\r\n6\r\na": 7}\r\n0\r\n\r\n')
        assert reply_of(sock)[0] == 200
    assert api.pull()["data"] == 7


@pytest.mark.parametrize(
    "name",
    [
        "invoice/2026/7",
        "/",
        "a//b",
        "custom",
        "ack-batch",
        "heartbeat-batch",
        "release-batch",
        "stop-waiting",
        "held-batch",
        "extend-locks",
        "a b",
        "é?#%",
        "x/ack",
    ],
)
def test_whatever_a_producer_calls_a_job_it_can_be_worked_on(api: Api, name: str) -> None:
    name = (
        f"{name}"
        if name in ("custom", "ack-batch", "heartbeat-batch", "release-batch", "stop-waiting", "held-batch", "extend-locks")
        else f"{api.queue}{name}"
    )
    path = f"/jobs/{quote(name, safe='')}"
    if api.call("GET", path).status_code == 200:
        api.ok("DELETE", path)
    assert api.push(1, jobId=name) == name
    job_id, token = api.take()
    assert job_id == name
    api.ok("POST", f"{path}/progress", {"progress": 10, "token": token})
    api.ok("POST", f"{path}/ack", {"token": token, "result": 5})
    assert api.ok("GET", path)["job"]["state"] == "completed"
    assert api.ok("GET", f"/jobs/custom/{quote(name, safe='')}")["job"]["id"] == name
    api.ok("POST", "{q}/clean", {"state": "completed"})


def test_a_head_is_what_a_get_would_have(api: Api) -> None:
    for path in ("/health", "/queues", "/"):
        head = api.call("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")


def test_a_head_takes_no_job(api: Api) -> None:
    job_id = api.push(1)
    api.call("POST", "/enqueue", json=[{"namespace": "default", "topic": f"{api.queue}-topic"}])
    for path in ("{q}/jobs", "{q}/jobs?timeout=1000&owner=w", f"/dequeue?namespace=default&topic={api.queue}-topic"):
        head = api.call("HEAD", path)
        assert (head.status_code, head.content) == (405, b"")
        assert (head.headers["allow"], head.headers["penstock-error"]) == ("GET", "method_not_allowed")
    assert (api.counts()["waiting"], api.counts()["active"]) == (1, 0)
    assert api.pull()["id"] == job_id
    assert len(api.call("GET", f"/dequeue?namespace=default&topic={api.queue}-topic").json()) == 1


def test_the_front_page_is_the_reference(api: Api) -> None:
    page = api.call("GET", "/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "Push a job" in page.text


def test_an_upgrade_to_something_else_takes_no_job(server: ServerProcess, api: Api) -> None:
    job_id = api.push(1)
    with connection(server) as sock:
        sock.sendall(
            f"GET /queues/{api.queue}/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert sock.recv(1_000).startswith(b"HTTP/1.1 4")
    assert api.state(job_id) == "waiting"


def test_who_hangs_up_while_waiting_for_an_end_is_forgotten(server: ServerProcess, api: Api) -> None:
    job_id = api.push(1)

    def waiting() -> int:
        lines = api.call("GET", "/prometheus").text.splitlines()
        return int(float(next(line for line in lines if line.startswith("penstock_waiting_for_ends ")).split()[1]))

    for _ in range(5):
        with connection(server) as sock:
            send(sock, f"/jobs/{job_id}/wait", "Content-Length: 18", b'{"timeout":600000}')
            while waiting() == 0:
                time.sleep(0.01)
    while waiting() > 0:
        time.sleep(0.01)


def test_a_pull_is_bounded_in_bytes(api: Api) -> None:
    large = "x" * (limits.claim_batch_bytes_max // 4)
    for _ in range(5):
        api.push(large)
    assert len(api.ok("POST", "{q}/jobs/pull-batch", {"count": 100})["jobs"]) in (4, 5)
    assert api.ok("GET", "{q}/counts")["counts"]["waiting"] <= 1


def test_a_page_that_is_too_large_says_how_many_would_fit(api: Api) -> None:
    for _ in range(7):
        api.push("x" * (10 * limits.MEBIBYTE - 2))
    assert api.refused("GET", "{q}/jobs/list") == (
        400,
        "These 10000 jobs are larger than 64 MiB. Request fewer: the first 6 would fit.",
    )
    assert len(api.ok("GET", "{q}/jobs/list", params={"limit": 6})["jobs"]) == 6
    api.ok("POST", "{q}/obliterate")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"offset": "99999999999999999999"}, "offset must be at most 1000000000000000"),
        ({"offset": "9223372036854775807"}, "offset must be at most 1000000000000000"),
        ({"limit": "10001"}, "limit must be at most 10000"),
        ({"limit": "1_0"}, "limit must be a number"),
    ],
)
def test_a_page_out_of_range_is_refused(api: Api, query: dict[str, str], error: str) -> None:
    assert api.refused("GET", "{q}/jobs/list", params=query) == (400, error)


def test_new_data_and_results_have_the_limit_of_a_push(api: Api) -> None:
    too_large = "x" * (limits.payload_bytes_max - 1)
    job_id = api.push(1)
    assert api.refused("PUT", f"/jobs/{job_id}/data", {"data": too_large}) == (400, "Job data too large (max 10MB)")
    api.take()
    assert api.refused("POST", f"/jobs/{job_id}/ack", {"result": too_large}) == (400, "Job result too large (max 10MB)")
    assert api.state(job_id) == "active"


def test_two_lines_of_forwarded_addresses_are_one_list(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", env={"RATE_LIMIT_MAX_REQUESTS": "3"}) as server,
        httpx2.Client(base_url=server.url) as client,
    ):
        lines = [("X-Forwarded-For", f"6.6.6.{number}") for number in range(5)]
        statuses = [client.get("/ping", headers=[line, ("X-Forwarded-For", "9.9.9.9")]).status_code for line in lines]
    assert statuses == [200, 200, 200, 429, 429]
