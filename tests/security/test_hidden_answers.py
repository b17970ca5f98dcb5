"""Clients that hide over HTTP/2 which answers they have not read: with replies to PING frames, and with small answers."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from penstock.core import limits
from tests.security.measure import MB, Bystander, settled
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60
CONNECTIONS = 2
#: Requests for the document on each connection: so many streams may be open.
REQUESTS = limits.http2_streams_max - 10
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"penstock"
#: Limits of the server: unread bytes of one connection, and of one client.
OF_CONNECTION, OF_CLIENT = MB, 2 * MB


def start(tmp_path: Path, **more: int) -> ServerProcess:
    values = {"answers_connection_bytes_max": OF_CONNECTION, "answers_client_bytes_max": OF_CLIENT} | more
    launcher = ("-m", "tests.support.limits_server")
    return ServerProcess(tmp_path / "data", env={"LIMITS": json.dumps(values)}, launcher=launcher)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with start(tmp_path) as running:
        with running.client() as client:
            assert len(client.get("/openapi.json").content) > 100_000
        yield running


class Client:
    """One HTTP/2 connection that may leave large answers unread. ``window``: of each stream."""

    def __init__(self, port: int, window: int) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.http.initiate_connection()
        self.http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    def ask(self, path: str, times: int = 1) -> None:
        head = [(":method", "GET"), (":path", path), (":authority", "localhost"), (":scheme", "http")]
        for _ in range(times):
            self.http.send_headers(self.http.get_next_available_stream_id(), head, end_stream=True)
        self.link.sendall(self.http.data_to_send())

    def answered(self, streams: int) -> None:
        """Take what comes until so many more streams have ended."""
        while streams:
            events = self.http.receive_data(self.link.recv(1 << 20))
            for event in events:
                if isinstance(event, h2.events.DataReceived):
                    self.http.increment_flow_control_window(event.flow_controlled_length)  # of the connection alone
                streams -= isinstance(event, h2.events.StreamEnded)
            self.link.sendall(self.http.data_to_send())

    def flood(self, data: bytes, times: int) -> bool:
        """Send the same again and again, and drop what comes back; False if the connection is cut."""
        left = memoryview(data * times)
        self.link.setblocking(False)
        poll = select.poll()
        poll.register(self.link, select.POLLIN | select.POLLOUT)
        try:
            while left:
                for _, events in poll.poll(10_000):
                    if events & (select.POLLERR | select.POLLHUP):
                        return False
                    if events & select.POLLIN:
                        part = self.link.recv(1 << 20)
                        if not part:
                            return False
                    if events & select.POLLOUT:
                        left = left[self.link.send(left[: 1 << 18]) :]
        except OSError:
            return False
        return True


def test_answers_that_replies_to_pings_hide_are_bounded(server: ServerProcess) -> None:
    with server.client() as client:
        size = len(client.get("/openapi.json").content)
    asked = CONNECTIONS * REQUESTS * size
    with ExitStack() as stack, Bystander(server) as other:
        clients = [Client(server.port, 0) for _ in range(CONNECTIONS)]
        for each in clients:
            stack.callback(each.link.close)
            each.ask("/openapi.json", REQUESTS)
        times = 2 * REQUESTS * size // 17_000
        threads = [threading.Thread(target=each.flood, args=(PING * 1_000, times)) for each in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settled(server)
    assert other.grown_mb * MB < asked / 4
    assert (other.statuses, other.failures) == ({200}, [])


def test_a_client_that_only_takes_replies_to_pings_is_cut_off(tmp_path: Path) -> None:
    with start(tmp_path, answer_stall_ms_max=500) as server:
        client = Client(server.port, 0)
        with client.link:
            client.ask("/openapi.json", 4)
            # However slow the server is: the flood ends when the connection is cut.
            until = time.monotonic() + PATIENCE_S
            while client.flood(PING * 1_000, 100):
                assert time.monotonic() < until, "the connection was not cut"


def test_answers_that_small_ones_hide_are_bounded(server: ServerProcess) -> None:
    with server.client() as client:
        size = len(client.get("/openapi.json").content)
        job = client.post("/queues/q/jobs", json={"data": "x" * 3_000}).json()["id"]
    asked = 45 * size
    attacker = Client(server.port, limits.answer_counted_bytes)
    with attacker.link, Bystander(server) as other:
        attacker.ask("/openapi.json", 45)
        for _ in range(2 * asked // 3_000 // 50):
            attacker.ask(f"/jobs/{job}", 50)
            attacker.answered(50)
    assert other.grown_mb * MB < asked / 2
    assert (other.statuses, other.failures) == ({200}, [])


def test_a_client_that_reads_and_sends_much_gets_all_answers(tmp_path: Path) -> None:
    """Large bodies, long heads, and large answers on one connection, which is never without an answer under way."""
    with start(tmp_path, answer_stall_ms_max=5_000) as server:
        asyncio.run(ask_for_much(server))


async def ask_for_much(server: ServerProcess) -> None:
    body = b'{"data":"%s"}' % (b"x" * 3 * MB)
    async with server.async_client(http1=False, http2=True, headers={"x-trace": "x" * 2_000}) as client:
        assert (await client.get("/ping")).http_version == "HTTP/2"
        asked = [client.get("/openapi.json") for _ in range(30)]
        asked += [client.post("/queues/q/jobs", content=body) for _ in range(3)]
        asked += [client.get("/ping") for _ in range(200)]
        asked += [client.get("/openapi.json") for _ in range(30)]
        for answer in asyncio.as_completed(asked):
            assert (await answer).status_code == 200
