"""What one tenant, or a client without a token, can take of a server: never so much that others get nothing."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from penstock.core import limits
from tests.security.measure import rss_mb
from tests.support.issuer import SECRET, token
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

QUEUES_MAX = 300
#: Shares are small, so that few requests are enough to use them up: 2 percent of 1,000 connections are 20.
PERCENT = 2
#: Where an attacker connects from; other clients have 127.0.0.1.
ATTACKER = "127.0.0.9"


@pytest.fixture(scope="module")
def messages_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, messages_port: int) -> Iterator[ServerProcess]:
    env = {
        "JWT_SECRET": SECRET,
        "PENSTOCK_NAMESPACE_SHARE": str(PERCENT),
        "PENSTOCK_NAMESPACE_QUEUES_MAX": str(QUEUES_MAX),
        "PENSTOCK_MESSAGES": f"127.0.0.1:{messages_port}",
    }
    with ServerProcess(tmp_path_factory.mktemp("tenants") / "data", env=env) as running:
        yield running


def shown(namespace: str, *words: str) -> dict[str, str]:
    scopes = [f"{namespace}:{word}" for word in words or ("admin",)]
    return {"Authorization": f"Bearer {token(scopes=scopes)}", "X-Namespace": namespace}


@pytest.fixture
def evil(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client(headers=shown("evil")) as client:
        yield client


@pytest.fixture
def good(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client(headers=shown("good")) as client:
        yield client


def share(most: int) -> int:
    """Return how many of a pool a namespace gets that is alone."""
    return -(-most * PERCENT // 100)


def refused(answer: httpx2.Response, what: str) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.headers["penstock-error"] == "namespace_limit"
    assert answer.headers["retry-after"]
    assert what in answer.text
    assert "namespace" in answer.text


# What is stored.


def test_webhooks(evil: httpx2.Client, good: httpx2.Client) -> None:
    def add(client: httpx2.Client) -> httpx2.Response:
        return client.post("/webhooks", json={"url": "https://example.com/", "events": ["job.pushed"]})

    for _ in range(share(limits.webhooks_max)):
        assert add(evil).status_code == 200
    refused(add(evil), "of the 200 webhooks")
    assert add(good).status_code == 200


def test_push_subscriptions(evil: httpx2.Client, good: httpx2.Client) -> None:
    def add(client: httpx2.Client, namespace: str) -> httpx2.Response:
        return client.post(f"/namespaces/{namespace}/queues/pushed/subscriptions", json={"url": "https://example.com/"})

    for _ in range(share(limits.subscriptions_max)):
        assert add(evil, "evil").status_code == 201
    assert add(evil, "evil").status_code == 429
    assert add(good, "good").status_code == 201


def test_crons(evil: httpx2.Client, good: httpx2.Client) -> None:
    def add(client: httpx2.Client, number: int) -> httpx2.Response:
        return client.post("/crons", json={"name": f"c{number}", "queue": "ticks", "schedule": "0 0 1 1 *", "data": 1})

    for number in range(share(limits.crons_max)):
        assert add(evil, number).status_code == 200
    refused(add(evil, -1), "of the 10000 crons")
    assert add(evil, 0).status_code == 200  # one that is there is replaced
    assert add(good, 0).status_code == 200


def test_workers(evil: httpx2.Client, good: httpx2.Client) -> None:
    def add(client: httpx2.Client, number: int) -> httpx2.Response:
        return client.post("/workers", json={"name": "w", "queues": ["q"], "workerId": f"w{number}"})

    for number in range(share(limits.workers_max)):
        assert add(evil, number).status_code == 200
    refused(add(evil, -1), "of the 10000 workers")
    assert add(evil, 0).status_code == 200
    assert add(good, 0).status_code == 200


def test_consumer_groups(evil: httpx2.Client, good: httpx2.Client) -> None:
    def claim(client: httpx2.Client, number: int) -> httpx2.Response:
        return client.post(f"/bulk/groups/g{number}/claim", json={"epoch": 1, "queues": ["none"], "max": 1})

    for number in range(share(limits.groups_max)):
        assert claim(evil, number).status_code == 200
    refused(claim(evil, -1), "of the 1000 consumer groups")
    assert claim(good, 0).status_code == 200


def test_queues(server: ServerProcess, good: httpx2.Client) -> None:
    """A key that may only produce made a million queues, and a gigabyte of memory of them."""
    with server.client(headers=shown("maker", "produce")) as maker:
        before = rss_mb(server.pid)
        made, refusals = 0, 0
        for number in range(6 * QUEUES_MAX):  # the limit is for each store, and there may be several
            answer = maker.post(f"/queues/q{number}/jobs", json={"data": 1})
            if answer.status_code == 200:
                made, refusals = made + 1, 0
                continue
            refused(answer, f"has {QUEUES_MAX} queues")
            refusals += 1
            if refusals == 30:
                break
        assert refusals == 30
        assert made % QUEUES_MAX == 0
        assert maker.post("/queues/q0/jobs", json={"data": 1}).status_code == 200  # those that are there go on
        items = [{"namespace": "maker", "topic": f"t{number}", "payload": "eA=="} for number in range(100)]
        refused(maker.post("/enqueue", json=items), "queues")
        assert rss_mb(server.pid) - before < 100
    assert good.post("/queues/mine/jobs", json={"data": 1}).status_code == 200


# Connections.


def handshake(server: ServerProcess, headers: dict[str, str], path: str = "/ws", port: int = 0) -> Any:
    return connect(f"ws://127.0.0.1:{port or server.port}{path}", additional_headers=headers, open_timeout=20, proxy=None)


def websocket_refused(server: ServerProcess, headers: dict[str, str], path: str = "/ws", port: int = 0) -> None:
    with pytest.raises(InvalidStatus) as error:
        handshake(server, headers, path, port)
    assert error.value.response.status_code == 429
    assert error.value.response.headers["penstock-error"] == "namespace_limit"


def test_websockets(server: ServerProcess) -> None:
    with ExitStack() as links:
        for _ in range(share(limits.websockets_max)):
            links.enter_context(handshake(server, shown("evil")))
        websocket_refused(server, shown("evil"))
        # Another namespace in the handshake changes nothing: the token has no right there.
        websocket_refused(server, shown("evil") | {"X-Namespace": "good"})
        with handshake(server, shown("good")) as link:
            link.send('{"cmd":"Ping","reqId":1}')
            assert '"ok":true' in link.recv(20)


def test_websockets_that_show_their_token_later(server: ServerProcess) -> None:
    def auth(namespace: str) -> str:
        shown_token = shown(namespace)["Authorization"].removeprefix("Bearer ")
        return msgspec.json.encode({"cmd": "Auth", "token": shown_token, "namespace": namespace}).decode()

    with ExitStack() as links:
        answers: list[str] = []
        for _ in range(share(limits.websockets_max) + 1):
            link = links.enter_context(handshake(server, {}))
            link.send(auth("late"))
            answers.append(link.recv(20))
        assert ['"ok":true' in each for each in answers] == [True] * share(limits.websockets_max) + [False]
        assert "namespace_limit" in answers[-1]
        with handshake(server, {}) as link:
            link.send(auth("good"))
            assert '"ok":true' in link.recv(20)


def test_websockets_of_consumers(
    server: ServerProcess, messages_port: int, evil: httpx2.Client, good: httpx2.Client
) -> None:
    path = "/namespaces/{}/queues/sockets/ws"
    for client, namespace in ((evil, "evil"), (good, "good")):
        client.post(f"/namespaces/{namespace}/queues/sockets/messages", json={"body": "x"})
    with ExitStack() as links:
        for _ in range(share(limits.push_sockets_max)):
            links.enter_context(handshake(server, shown("evil"), path.format("evil"), messages_port))
        websocket_refused(server, shown("evil"), path.format("evil"), messages_port)
        with handshake(server, shown("good"), path.format("good"), messages_port) as link:
            assert '"type":"message"' in link.recv(20)


def test_event_streams(server: ServerProcess) -> None:
    with ExitStack() as streams:
        for _ in range(share(limits.event_streams_max)):
            client = streams.enter_context(server.client(headers=shown("evil")))
            assert streams.enter_context(client.stream("GET", "/events")).status_code == 200
        with server.client(headers=shown("evil")) as client:
            refused(client.get("/events"), "of the 1000 event streams")
        with server.client(headers=shown("good")) as client, client.stream("GET", "/events") as stream:
            assert stream.status_code == 200
            assert "connected" in next(stream.iter_text())


def frame(command: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode(command)
    return len(body).to_bytes(4, "big") + body


def tcp_answer(link: socket.socket) -> dict[str, Any]:
    stream = link.makefile("rb")
    size = int.from_bytes(stream.read(4), "big")
    answer: dict[str, Any] = msgspec.msgpack.decode(stream.read(size))
    return answer


def dial(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))


def tcp_auth(server: ServerProcess, namespace: str, links: ExitStack, source: str = "127.0.0.1") -> dict[str, Any]:
    link = links.enter_context(dial(server.tcp_port, source))
    shown_token = shown(namespace)["Authorization"].removeprefix("Bearer ")
    link.sendall(frame({"cmd": "Auth", "token": shown_token, "namespace": namespace}))
    return tcp_answer(link)


def resp_auth(server: ServerProcess, namespace: str, links: ExitStack, source: str = "127.0.0.1") -> bytes:
    link = links.enter_context(dial(server.resp_port, source))
    shown_token = shown(namespace)["Authorization"].removeprefix("Bearer ")
    link.sendall(f"AUTH {namespace} {shown_token}\r\n".encode())
    return link.makefile("rb").readline()


def test_tcp_connections_of_a_tenant(server: ServerProcess) -> None:
    with ExitStack() as links:
        for _ in range(share(limits.tcp_connections_max)):
            assert tcp_auth(server, "evil", links)["ok"]
        answer = tcp_auth(server, "evil", links)
        assert (answer["ok"], answer["code"]) == (False, "namespace_limit")
        assert tcp_auth(server, "good", links)["ok"]


def test_resp_connections_of_a_tenant(server: ServerProcess) -> None:
    with ExitStack() as links:
        for _ in range(share(limits.resp_connections_max)):
            assert resp_auth(server, "evil", links) == b"+OK\r\n"
        assert resp_auth(server, "evil", links).startswith(b"-NAMESPACE_LIMIT ")
        assert resp_auth(server, "good", links) == b"+OK\r\n"


@pytest.mark.parametrize("door", ["tcp", "resp"])
def test_connections_without_a_token(server: ServerProcess, door: str) -> None:
    """They have a pool of their own, of which one address gets half; the oldest make room for new ones."""
    port = {"tcp": server.tcp_port, "resp": server.resp_port}[door]
    with ExitStack() as links:
        strangers = [links.enter_context(dial(port, ATTACKER)) for _ in range(limits.listener_strangers_max // 2 + 50)]
        for source in ("127.0.0.1", ATTACKER):
            if door == "tcp":
                assert tcp_auth(server, "good", links, source)["ok"]
            else:
                assert resp_auth(server, "good", links, source) == b"+OK\r\n"
        oldest = strangers[0]
        assert b"Too many connections without a token" in oldest.makefile("rb").read()


#: Small pools, so that few connections fill them.
POOLS = {
    "tcp_connections_max": 60,
    "resp_connections_max": 60,
    "websockets_max": 60,
    "listener_strangers_max": 30,
    "strangers_max": 30,
    "strangers_address_max": 15,
}
WEBSOCKET = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("door", ["tcp", "resp", "websocket"])
def test_as_many_strangers_as_there_may_be_connections_lock_nobody_out(tmp_path: Path, door: str) -> None:
    env = {"JWT_SECRET": SECRET, "LIMITS": json.dumps(POOLS)}
    launcher = ("-m", "tests.support.limits_server")
    with ServerProcess(tmp_path / "data", env=env, launcher=launcher) as running, ExitStack() as links:
        port = {"tcp": running.tcp_port, "resp": running.resp_port, "websocket": running.port}[door]
        for _ in range(2 * POOLS["websockets_max"]):
            stranger = links.enter_context(dial(port, ATTACKER))
            stranger.sendall(WEBSOCKET if door == "websocket" else b"")
        if door == "tcp":
            assert tcp_auth(running, "good", links)["ok"]
        elif door == "resp":
            assert resp_auth(running, "good", links) == b"+OK\r\n"
        else:
            with running.client() as client:  # it comes after the strangers
                assert client.get("/health").status_code == 200
            with handshake(running, shown("good")) as link:
                link.send('{"cmd":"Ping","reqId":1}')
                assert '"ok":true' in link.recv(20)


def test_an_open_server_has_no_shares(tmp_path: Path) -> None:
    env = {"PENSTOCK_NAMESPACE_SHARE": "1", "PENSTOCK_NAMESPACE_QUEUES_MAX": "1"}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client() as client, ExitStack() as links:
        for number in range(limits.webhooks_max):
            hook = {"url": "https://example.com/", "events": ["job.pushed"]}
            assert client.post("/webhooks", json=hook).status_code == 200
            assert client.post(f"/queues/q{number}/jobs", json={"data": 1}).status_code == 200
        for _ in range(limits.listener_strangers_max // 50):
            links.enter_context(handshake(running, {}))
