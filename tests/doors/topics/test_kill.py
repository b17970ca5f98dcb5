"""A server that is killed while its subscribers hold messages: all of them come back, in front, and to one holder each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support import stores
from tests.support.curl import CurlStream, needs_curl
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

pytestmark = needs_curl
SUBSCRIBERS = 20
#: Short, but longer than a busy machine keeps a server from renewing.
LEASE = {"PENSTOCK_TOPICS_LEASE_MS": "6000"}


def publish(client: httpx2.Client, *messages: bytes) -> None:
    for message in messages:
        assert client.post("/publish/held", content=message).status_code == 201


def subscribe(server: ServerProcess, count: int) -> list[CurlStream]:
    streams = [CurlStream(f"{server.url}/subscribe/held") for _ in range(count)]
    for stream in streams:
        stream.say("INIT")
    return streams


def settled(client: httpx2.Client, **counts: int) -> None:
    while not client.get("/queues/held/counts").json()["counts"].items() >= counts.items():
        time.sleep(0.01)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%02d" % number for number in range(first, last)]


def test_all_come_back_in_front_and_none_twice(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", env=LEASE).start()
    with server.client() as client:
        publish(client, *numbers(0, 30))
        holders = subscribe(server, SUBSCRIBERS)
        assert sorted(stream.message() for stream in holders) == numbers(0, SUBSCRIBERS)
        server.kill()
    with server, server.client() as client:
        settled(client, active=0, waiting=30)
        publish(client, b"new")
        holders = subscribe(server, SUBSCRIBERS)
        held = [stream.message() for stream in holders]
        assert sorted(held) == numbers(0, SUBSCRIBERS), "in front of the others, each to one"
        settled(client, active=SUBSCRIBERS, waiting=11)
        last = CurlStream(f"{server.url}/subscribe/held")
        got = [last.get("INIT"), *(last.get("ACK") for _ in range(10))]
        assert got == [*numbers(SUBSCRIBERS, 30), b"new"]
        for stream in holders:
            stream.say("ACK")
        last.say("ACK")
        settled(client, active=0, waiting=0, delayed=0)


def test_they_come_back_in_their_order(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", env=LEASE).start()
    with server.client() as client:
        publish(client, *numbers(0, 30))
        for stream in subscribe(server, SUBSCRIBERS):
            stream.message()
        server.kill()
    with server, server.client() as client:
        settled(client, active=0, waiting=30)
        reader = CurlStream(f"{server.url}/subscribe/held")
        assert [reader.get("INIT"), *(reader.get("ACK") for _ in range(29))] == numbers(0, 30)


def test_whoever_is_connected_keeps_its_message_however_long_it_takes(tmp_path: Path) -> None:
    env = {"PENSTOCK_TOPICS_LEASE_MS": "1500"}
    with ServerProcess(tmp_path / "data", env=env) as server, server.client() as client:
        publish(client, b"1", b"2", b"3")
        (holder,) = subscribe(server, 1)
        assert holder.message() == b"1"
        clock = CurlStream(f"{server.url}/subscribe/held")
        assert clock.get("INIT") == b"2"
        assert clock.get("DACK 6") == b"3"
        assert clock.get("ACK") == b"2", "six seconds, four leases, later"
        clock.say("ACK")
        settled(client, active=1, waiting=0)
        holder.say("ACK")
        settled(client, active=0, waiting=0)
        publish(client, b"4")
        assert clock.message() == b"4", "the first one was nobody else's"


@pytest.mark.skipif(stores.chosen() == "sqlite", reason="a file has one server")
def test_the_subscribers_of_another_server_keep_theirs(tmp_path: Path) -> None:
    one = ServerProcess(tmp_path / "one", env=LEASE).start()
    shared = {name: value for name, value in one.env.items() if name.startswith("PENSTOCK_")}
    with ServerProcess(tmp_path / "two", env=shared) as two, two.client() as client:
        publish(client, *numbers(0, 30))
        here, there = subscribe(two, SUBSCRIBERS // 2), subscribe(one, SUBSCRIBERS // 2)
        kept, lost = [stream.message() for stream in here], [stream.message() for stream in there]
        assert sorted(kept + lost) == numbers(0, SUBSCRIBERS)
        one.kill()
        settled(client, active=SUBSCRIBERS // 2)
        again = [stream.message() for stream in subscribe(two, SUBSCRIBERS // 2)]
        assert sorted(again) == sorted(lost)
        assert [stream.get("NACK") for stream in here] == kept
