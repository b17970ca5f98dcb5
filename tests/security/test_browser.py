"""Web pages in the browser of a user: what they can have it send must change nothing, and must tell them nothing.

A browser can be made to send requests to this machine by every page that it shows. It adds Origin and Sec-Fetch-Site, which a
page cannot change; a name of the attacker may have been pointed at this machine (DNS rebinding), and then Host has that name.
"""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVIL = "https://evil.example"
CORS = "access-control-allow-origin"


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("metrics", "batches", "topics", "messages")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Iterator[ServerProcess]:
    """A server as it is by default, open, with all its listeners."""
    flags = [text for name, port in ports.items() for text in (f"--{name}", f"127.0.0.1:{port}")]
    with ServerProcess(tmp_path_factory.mktemp("open") / "data", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("asks") / "data", env={"AUTH_TOKENS": "secret-token-of-a-test"}) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client() as opened:
        yield opened


def waiting(client: httpx2.Client, queue: str) -> int:
    found: int = client.get(f"/queues/{queue}/counts").json()["counts"]["waiting"]
    return found


def raw(port: int, head: str, body: bytes = b"") -> bytes:
    """Send a request as it is, and return all of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        answer = b""
        while chunk := link.recv(65_536):
            answer += chunk
        return answer


def status(port: int, head: str) -> int:
    return int(raw(port, head + "\nConnection: close").split(b" ", 2)[1])


# What a page of another site can have a browser send.

FOREIGN: list[dict[str, str]] = [
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
    {"Origin": EVIL},  # older browsers
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},  # a frame in a sandbox
    {"Origin": "null"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},  # another server of this machine
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://localhost.evil.example:{port}"},
    {"Origin": "http://evil.example:{port}"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_site_neither_reads_nor_writes(
    server: ServerProcess, client: httpx2.Client, headers: dict[str, str]
) -> None:
    client.post("/queues/prey/jobs", json={"data": 1})
    before = waiting(client, "prey")
    sent = {name: value.format(port=server.port) for name, value in headers.items()} | {"Host": f"localhost:{server.port}"}
    for method, path, kind in (
        ("GET", "/queues/prey/jobs", None),  # takes a job
        ("GET", "/stats", None),
        ("GET", "/events", None),
        ("HEAD", "/stats", None),
        ("OPTIONS", "/queues/prey/jobs", None),
        ("POST", "/queues/prey/obliterate", "text/plain"),
        ("POST", "/queues/prey/jobs", "application/json"),
        ("POST", "/webhooks", "text/plain"),
        ("DELETE", "/queues/prey", None),
        ("GET", "/no-such-route", None),
    ):
        more = {} if kind is None else {"Content-Type": kind}
        answer = client.request(method, path, headers=sent | more, content=b'{"data":2}' if kind else None)
        assert answer.status_code == 403, (method, path)
        assert answer.headers["penstock-error"] == "origin_refused"
        assert CORS not in answer.headers
    assert waiting(client, "prey") == before


def test_the_same_on_the_listeners_of_the_doors(server: ServerProcess, ports: dict[str, int]) -> None:
    with server.client() as client:
        for name, path in (
            ("metrics", "/metrics"),
            ("batches", "/dlq"),
            ("topics", "/subscribe/t"),
            ("messages", "/namespaces"),
        ):
            method = "POST" if name == "topics" else "GET"
            url = f"http://127.0.0.1:{ports[name]}{path}"
            answer = client.request(method, url, headers={"Origin": EVIL, "Sec-Fetch-Site": "cross-site"})
            assert (answer.status_code, CORS in answer.headers) == (403, False), name
            assert client.request("GET", url, headers={"Host": "evil.example"}).status_code == 403, name


def test_an_open_server_sends_no_cors_header(client: httpx2.Client) -> None:
    for method, path in (("GET", "/health"), ("GET", "/nope"), ("OPTIONS", "/queues/q/jobs"), ("GET", "/prometheus")):
        assert not [name for name in client.request(method, path).headers if name.startswith("access-control-")], path


def test_a_link_to_the_reference_can_be_followed(client: httpx2.Client) -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/docs", headers=followed).status_code == 200
    assert client.get("/docs", headers=followed | {"Sec-Fetch-Dest": "iframe"}).status_code == 403


# Names: whoever points a name of their own at this machine is of the same origin, for the browser.


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "localhost.evil.example", "evil.localhost.example:{port}",
        "localhost@evil.example",
        "127.0.0.1.evil.example", "10.1.2.3:{port}", "[2001:db8::1]", "", ":{port}", "localhost:{port}:80",
        "localhost,evil.example",
        "evil.example.", "xn--e1afmkfd.example", "\xfcmlaut.example", "0x7f.1", "[::1", "evil.example#localhost", "a" * 5_000,
    ],
)  # fmt: skip
def test_another_name_is_refused(server: ServerProcess, host: str) -> None:
    name = host.format(port=server.port)
    answer = raw(server.port, f"GET /stats HTTP/1.1\nHost: {name}\nConnection: close")
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"penstock-error: host_refused" in answer
    assert b"allowed_hosts" in answer
    assert len(answer) < 2_000


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:{port}", "LocalHost:{port}", "localhost.:{port}", "127.0.0.1:{port}", "127.9.8.7",
        "[::1]:{port}",
        "[::ffff:127.0.0.1]", "app.localhost:{port}", "localhost:1",
    ],
)  # fmt: skip
def test_names_of_this_machine_are_not(server: ServerProcess, host: str) -> None:
    assert status(server.port, f"GET /stats HTTP/1.1\nHost: {host.format(port=server.port)}") == 200


def test_every_place_that_names_a_host_counts(server: ServerProcess) -> None:
    assert status(server.port, "GET /stats HTTP/1.0") == 200  # no browser leaves it out
    assert status(server.port, "GET /stats HTTP/1.1\nHost: localhost\nHost: evil.example") == 403
    assert status(server.port, "GET /stats HTTP/1.1\nHost: evil.example\nHost: localhost") == 403
    assert status(server.port, "GET http://evil.example/stats HTTP/1.1\nHost: localhost") == 403
    assert status(server.port, "GET http://localhost/stats HTTP/1.1\nHost: evil.example") == 403
    # A page of a name that was pointed here can add this header, and the browser itself seems to be a trusted proxy.
    assert status(server.port, "GET /stats HTTP/1.1\nHost: evil.example\nX-Forwarded-Host: localhost") == 403
    assert status(server.port, "GET /stats HTTP/1.1\nHost: localhost\nX-Forwarded-Host: evil.example") == 403


@pytest.mark.parametrize(("authority", "expected"), [("localhost", 200), ("evil.example", 403)])
def test_the_authority_of_http_2_counts(server: ServerProcess, authority: str, expected: int) -> None:
    with httpx2.Client(http1=False, http2=True, trust_env=False, timeout=20) as client:
        answer = client.get(f"{server.url}/stats", headers={"Host": authority})
    assert (answer.http_version, answer.status_code) == ("HTTP/2", expected)


def test_names_can_be_configured(tmp_path: Path) -> None:
    env = {"PENSTOCK_ALLOWED_HOSTS": "Queue.corp.example, *.internal.example, 10.1.2.3"}
    with ServerProcess(tmp_path / "data", env=env) as running:
        for host in ("queue.corp.example:8443", "a.internal.example", "10.1.2.3", "localhost"):
            assert status(running.port, f"GET /stats HTTP/1.1\nHost: {host}") == 200, host
        for host in ("corp.example", "internal.example", "x.queue.corp.example", "10.1.2.4", "evilinternal.example"):
            assert status(running.port, f"GET /stats HTTP/1.1\nHost: {host}") == 403, host
        # Behind a proxy that ends TLS, with its own name in Host or in X-Forwarded-Host.
        page = "\nOrigin: https://queue.corp.example\nSec-Fetch-Site: same-origin"
        assert status(running.port, f"GET /stats HTTP/1.1\nHost: queue.corp.example{page}") == 200
        forwarded = "Host: 127.0.0.1\nX-Forwarded-Host: queue.corp.example"
        assert status(running.port, f"GET /stats HTTP/1.1\n{forwarded}{page}") == 200
        assert status(running.port, f"GET /stats HTTP/1.1\nHost: 127.0.0.1{page}") == 403
        assert "add it to allowed_hosts" in running.log()


# What a page of the server's own may do, and what programs may.


def test_a_page_of_the_server_itself_works(server: ServerProcess, client: httpx2.Client) -> None:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert client.get("/stats", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert client.get("/stats", headers={"Sec-Fetch-Site": "none"}).status_code == 200  # typed by the user
    assert client.get("/stats", headers=own).status_code == 200
    assert client.post("/queues/own/jobs", headers=own, json={"data": 1}).status_code == 200
    assert client.delete("/queues/own", headers=own).status_code != 403


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain;charset=UTF-8",
        "Application/X-WWW-form-urlencoded",
        "multipart/form-data; boundary=x",
    ],
)
def test_a_form_cannot_change_anything(server: ServerProcess, client: httpx2.Client, kind: str | None) -> None:
    own = {"Origin": server.url} | ({} if kind is None else {"Content-Type": kind})
    refused = client.post("/queues/form/jobs", headers=own, content=b'{"data":1}')
    assert (refused.status_code, "Penstock-Request" in refused.json()["error"]) == (403, True)
    assert (
        client.post("/queues/form/jobs", headers=own | {"Penstock-Request": "1"}, content=b'{"data":1}').status_code == 200
    )


def test_curl_is_as_easy_as_before(server: ServerProcess) -> None:
    body = b'{"data":1}'
    head = (
        f"POST /queues/curl/jobs HTTP/1.1\nHost: localhost:{server.port}\nContent-Length: {len(body)}\nConnection: close\n"
    )
    for kind in ("Content-Type: application/x-www-form-urlencoded", "Accept: */*"):
        assert raw(server.port, head + kind, body).startswith(b"HTTP/1.1 200")


@contextmanager
def socket_to(server: ServerProcess, path: str, host: str = "", **more: Any) -> Iterator[Any]:
    """Open a WebSocket as a browser does. ``host``: what its Host says, if that is not the address."""
    url = f"ws://{host or f'127.0.0.1:{server.port}'}{path}"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link, connect(url, sock=link, **more) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/ws", "/ws/queues/q", "/namespaces/n/queues/q/ws"])
def test_a_page_of_another_site_opens_no_websocket(server: ServerProcess, client: httpx2.Client, path: str) -> None:
    client.post("/namespaces/n/queues", json={"name": "q"})
    for more in ({"origin": EVIL}, {"origin": "null"}, {"origin": "http://localhost:3000"}, {"host": "evil.example"}):
        with pytest.raises(InvalidStatus) as refused, socket_to(server, path, **more):
            pass
        assert refused.value.response.status_code == 403, more
    rebound = {"host": f"evil.example:{server.port}", "origin": f"http://evil.example:{server.port}"}
    with pytest.raises(InvalidStatus) as refused, socket_to(server, path, **rebound):
        pass
    assert refused.value.response.status_code == 403
    with socket_to(server, path, origin=server.url):
        pass
    with socket_to(server, path):
        pass


def test_the_own_page_opens_a_websocket_whatever_cors_says(tmp_path: Path) -> None:
    env = {"AUTH_TOKENS": "secret-token-of-a-test", "CORS_ALLOW_ORIGIN": "none"}
    with ServerProcess(tmp_path / "data", env=env) as running:
        with socket_to(running, "/ws", origin=running.url) as opened:
            opened.send(json.dumps({"cmd": "Auth", "token": "secret-token-of-a-test"}))
            assert json.loads(opened.recv(timeout=20))["ok"] is True
        with socket_to(running, "/ws", host=f"queue.example:{running.port}", origin=f"http://queue.example:{running.port}"):
            pass
        for origin in (EVIL, "null", "http://127.0.0.1:1"):
            with pytest.raises(InvalidStatus) as refused, socket_to(running, "/ws", origin=origin):
                pass
            assert refused.value.response.status_code == 403


def test_with_tokens_cors_is_as_configured(guarded: ServerProcess) -> None:
    with guarded.client(headers={"Authorization": "Bearer secret-token-of-a-test"}) as client:
        answer = client.get("/stats", headers={"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Host": "queue.example"})
        assert (answer.status_code, answer.headers[CORS]) == (200, "*")
        assert client.options("/stats", headers={"Origin": EVIL}).headers[CORS] == "*"
    with socket_to(guarded, "/ws", origin=EVIL):
        pass


def test_a_page_that_is_named_may_call_an_open_server(tmp_path: Path) -> None:
    page = "http://localhost:3000"
    with ServerProcess(tmp_path / "data", env={"CORS_ALLOW_ORIGIN": page}) as running, running.client() as client:
        headers = {"Origin": page, "Sec-Fetch-Site": "same-site"}
        assert client.options("/queues/q/jobs", headers=headers).headers[CORS] == page
        answer = client.post("/queues/q/jobs", headers=headers, json={"data": 1})
        assert (answer.status_code, answer.headers[CORS]) == (200, page)
        assert client.post("/queues/q/jobs", headers=headers, content=b'{"data":1}').status_code == 403
        assert client.get("/stats", headers={"Origin": EVIL}).status_code == 403
        with socket_to(running, "/ws", origin=page):
            pass


def test_the_first_key_brings_cors_back(tmp_path: Path) -> None:
    """Pages of other sites are let in by a key of theirs, once there is one."""
    with (
        ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": "secret-token-of-a-test"}) as running,
        running.client() as client,
    ):
        token = {"Authorization": "Bearer secret-token-of-a-test"}
        made = client.post("/keys", headers=token, json={"namespaces": ["*"], "roles": ["admin"]}).json()
    with ServerProcess(running.data) as again, again.client() as client:
        headers = {"Origin": EVIL, "Authorization": f"Bearer {made['secret']}"}
        assert client.get("/stats", headers=headers).headers[CORS] == "*"


# Ports that speak something else: a browser can be made to send them HTTP.


@pytest.mark.parametrize("line", ["POST / HTTP/1.1", "GET / HTTP/1.1", "OPTIONS / HTTP/1.1", "PUT / HTTP/1.1"])
def test_the_redis_protocol_does_not_take_a_request_for_commands(
    server: ServerProcess, client: httpx2.Client, line: str
) -> None:
    command = b"PUSH smuggled x\r\n" + b"*3\r\n$4\r\nPUSH\r\n$8\r\nsmuggled\r\n$1\r\nx\r\n"
    head = f"{line}\nHost: localhost:{server.resp_port}\nContent-Length: {len(command)}\nOrigin: {EVIL}"
    raw(server.resp_port, head, command * 3)
    assert waiting(client, "smuggled") == 0


def test_the_redis_protocol_takes_no_commands_from_the_first_bytes_of_tls(
    server: ServerProcess, client: httpx2.Client
) -> None:
    """A page of https can have bytes of its choice in them, such as the ticket of a session."""
    with socket.create_connection(("127.0.0.1", server.resp_port), timeout=30) as link:
        link.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\r\nPUSH ticket 1\r\n")
        link.shutdown(socket.SHUT_WR)
        assert link.recv(4_096) == b""
    assert waiting(client, "ticket") == 0


def test_a_request_that_names_two_pages_is_refused(server: ServerProcess) -> None:
    own = f"Host: localhost:{server.port}\nOrigin: {server.url}"
    answer = raw(server.port, f"GET /queues HTTP/1.1\n{own}\nOrigin: {EVIL}\nConnection: close", b"")
    assert answer.startswith(b"HTTP/1.1 403")


def test_the_tcp_protocol_does_not_take_a_request_for_frames(server: ServerProcess, client: httpx2.Client) -> None:
    frame = msgspec.msgpack.encode({"cmd": "PUSH", "queue": "framed", "data": 1})
    body = (len(frame).to_bytes(4) + frame) * 3
    for line in ("POST / HTTP/1.1", "GET / HTTP/1.1"):
        answer = raw(server.tcp_port, f"{line}\nHost: localhost:{server.tcp_port}\nContent-Length: {len(body)}", body)
        assert b"Frame too large" in answer
    assert waiting(client, "framed") == 0
