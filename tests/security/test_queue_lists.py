"""One tenant with thousands of queues: lists of queues are made in steps, and cost other tenants nothing.

It is measured in processor time (``ticked``): it does not matter what else the machine does.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import msgspec
import pytest
from websockets.sync.client import connect

from tests.security.measure import cpu_s, settled
from tests.security.ticked import TickedServer
from tests.support.issuer import SECRET, token
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

#: Of the processor time of a list, the part that one step of the event loop may have.
PART_MAX = 0.5
#: How often a list is asked for: several times, so that one list made in one step would be seen. See ``part``.
ASKED = 8
#: Of the processor time of a request in a server without queues, how often a tenant without queues may need that.
COST_MAX = 2.0
QUEUES = 40_000
LISTS = (
    "/api/stats",
    "/api/stats/summary",
    "/queues",
    "/queues/summary",
    "/namespaces/many/queues",
    "/topics?namespace=many",
)
#: The lists that any tenant may ask for.
OPEN_LISTS = ("/api/stats?limit=1", "/api/stats/summary", "/queues", "/queues/summary", "/namespaces")


def shown(namespace: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(scopes=[f'{namespace}:admin'])}", "X-Namespace": namespace}


class Ticked(TickedServer):
    """What the tests here ask of it."""

    def command(self, name: str) -> dict[str, object]:
        """Return the reply to the last of two commands over TCP: the first one shows a token."""
        shows = {"cmd": "Auth", "token": token(scopes=["many:admin"]), "namespace": "many"}
        with socket.create_connection(("127.0.0.1", self.tcp_port), timeout=60) as link, link.makefile("rb") as replies:
            for fields in (shows, {"cmd": name}):
                frame = msgspec.msgpack.encode(fields)
                link.sendall(struct.pack(">I", len(frame)) + frame)
                (size,) = struct.unpack(">I", replies.read(4))
                reply: dict[str, object] = msgspec.msgpack.decode(replies.read(size))
                assert reply["ok"], reply
        return reply

    def message(self, name: str) -> dict[str, object]:
        """Return the reply to a command over WebSocket."""
        url = f"ws://127.0.0.1:{self.port}/ws"
        with connect(url, additional_headers=shown("many"), max_size=None, proxy=None) as link:
            link.send(msgspec.json.encode({"cmd": name, "reqId": "1"}).decode())
            for received in link:
                reply: dict[str, object] = msgspec.json.decode(received)
                if reply.get("reqId") == "1":
                    assert reply["ok"], reply
                    return reply
        raise AssertionError("the connection ended")

    def topics(self) -> bytes:
        """Return the reply to TOPICS."""
        with socket.create_connection(("127.0.0.1", self.resp_port), timeout=60) as link, link.makefile("rb") as replies:
            link.sendall(b"AUTH many %b\r\nTOPICS\r\n" % token(scopes=["many:admin"]).encode())
            assert replies.readline() == b"+OK\r\n"
            return replies.readline()

    def part(self, ask: Callable[[], object]) -> float:
        """Return the part of one list's processor time that its longest step has."""

        def asked() -> None:
            for _ in range(ASKED):
                ask()

        with self.client(headers=shown("none")) as client:  # while two tenants are active, steps are short
            got(client, "/queues")
        return ASKED * self.longest_part(asked)


@pytest.fixture(scope="module")
def messages_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, messages_port: int) -> Iterator[Ticked]:
    running = Ticked(tmp_path_factory.mktemp("queues"))
    running.env |= {"JWT_SECRET": SECRET, "PENSTOCK_MESSAGES": f"127.0.0.1:{messages_port}"}
    with running:
        yield running


@pytest.fixture(scope="module")
def costs(server: Ticked) -> dict[str, float]:
    """Return the processor time of lists before there are queues."""
    return {path: cost(server, path) for path in OPEN_LISTS}


@pytest.fixture(scope="module")
def many(server: Ticked, costs: dict[str, float]) -> int:
    """Return how many queues the namespace ``many`` has."""
    assert costs
    with server.client(headers=shown("many")) as client:
        for start in range(0, QUEUES, 10_000):
            items = [
                {"namespace": "many", "topic": f"queue-{number * 7_919 % QUEUES}", "payload": "e30="}
                for number in range(start, start + 10_000)
            ]
            answer = client.post("/enqueue", json=items)
            assert answer.is_success, answer.text
    return QUEUES


def cost(server: Ticked, path: str) -> float:
    """Return the processor time of many lists of a tenant without queues."""
    settled(server)
    before = cpu_s(server.pid)
    with server.client(headers=shown("none")) as client:
        for _ in range(300):
            assert client.get(path).status_code == 200
    return cpu_s(server.pid) - before


def got(client: httpx2.Client, path: str) -> object:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", LISTS)
def test_a_list_of_queues_is_made_in_steps(server: Ticked, many: int, path: str) -> None:
    with server.client(headers=shown("many")) as client:
        assert str(many)[:2] in str(got(client, path))
        assert server.part(lambda: got(client, path)) < PART_MAX


def test_a_list_of_queues_over_tcp_is_made_in_steps(server: Ticked, many: int) -> None:
    assert len(server.command("ListQueues")["queues"]) == many  # type: ignore[arg-type]
    assert server.part(lambda: server.command("ListQueues")) < PART_MAX


def test_a_list_of_queues_over_websocket_is_made_in_steps(server: Ticked, many: int) -> None:
    assert len(server.message("ListQueues")["queues"]) == many  # type: ignore[arg-type]
    assert server.part(lambda: server.message("ListQueues")) < PART_MAX


def test_topics_over_resp_are_listed_in_steps(server: Ticked, many: int) -> None:
    assert server.topics().count(b" ") == many - 1
    assert server.part(server.topics) < PART_MAX


def test_the_health_check_of_the_messages_door_counts_in_steps(server: Ticked, many: int, messages_port: int) -> None:
    with server.client(headers=shown("many")) as client:
        url = f"http://127.0.0.1:{messages_port}/health"
        assert str(many) in str(got(client, url))
        settled(server)
        before = cpu_s(server.pid)
        for _ in range(ASKED):
            got(client, "/queues/summary")
        summary_s = (cpu_s(server.pid) - before) / ASKED
        server.longest[1] = 0.0
        got(client, url)
        settled(server)
        assert server.longest[1] < PART_MAX * summary_s  # the count is so little work that it has few steps


@pytest.mark.parametrize("path", OPEN_LISTS)
def test_queues_of_others_cost_nothing(server: Ticked, costs: dict[str, float], many: int, path: str) -> None:
    assert many
    assert cost(server, path) < COST_MAX * costs[path] + 0.1
