"""The pages on PostgreSQL, shards and Redis: their commands run as they are printed, on databases of this machine."""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest

from penstock.store.sqlite.backup import Manifest
from tests.docs.blocks import runs
from tests.docs.shell import Terminal, commands, own_ports, put
from tests.support import postgres
from tests.support.ports import free_port
from tests.support.redis import OwnRedis, OwnSentinel
from tests.support.shards import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def databases() -> Iterator[list[str]]:
    """Addresses of three empty databases."""
    made = [run(postgres.make_database()) for _ in range(3)]
    yield made
    for each in made:
        run(postgres.drop_database(each))


@contextmanager
def served(home: Path, command: str) -> Iterator[tuple[str, Terminal]]:
    """Start a server as a page says, on ports of this test; yield its address, and a terminal that knows it."""
    ports = own_ports()
    port = int(ports["HTTP_PORT"])
    with Terminal(home, port, env=ports).running(command):
        yield f"http://127.0.0.1:{port}", Terminal(home / "other", port)


def works(url: str, **headers: str) -> None:
    pushed = httpx2.post(f"{url}/queues/emails/jobs", json={"data": 1}, headers=headers).json()
    pulled = httpx2.get(f"{url}/queues/emails/jobs", headers=headers).json()
    assert pulled["job"]["id"] == pushed["id"]


@runs("docs/postgres.md", "sh 1")
def test_on_postgresql(blocks: list[str], databases: list[str], tmp_path: Path) -> None:
    """For other machines, too: that needs a token."""
    port = free_port()
    address = {
        "postgresql://penstock:secret@db.example.com/penstock": shlex.quote(databases[0]),
        "0.0.0.0:6790": f"0.0.0.0:{port}",
    }
    with served(tmp_path, put(blocks[0], address).strip()):
        url = f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{url}/queues").status_code == 401
        works(url, Authorization="Bearer secret-token")


@runs("docs/postgres.md", "sh 2")
def test_on_two_shards(blocks: list[str], databases: list[str], tmp_path: Path) -> None:
    addresses = {f"postgresql://db{n}.example.com/penstock": shlex.quote(databases[n]) for n in range(2)}
    with served(tmp_path, put(blocks[0], addresses).strip()) as (url, _):
        works(url)
        assert [each["up"] for each in httpx2.get(f"{url}/shards").json()["shards"]] == [True, True]


@runs("docs/postgres.md", "sh 3")
def test_upgrading(blocks: list[str], databases: list[str], tmp_path: Path) -> None:
    status, sql, up = commands(put(blocks[0], {"postgresql://db.example.com/penstock": shlex.quote(databases[0])}))
    terminal = Terminal(tmp_path)
    terminal.run(up)
    assert terminal.run(status)
    assert "create table" in terminal.run(sql).lower() or "alter table" in terminal.run(sql).lower()


@runs("docs/shards.md", "sh")
def test_growing_and_shrinking(blocks: list[str], databases: list[str], tmp_path: Path) -> None:
    grow, shrink = blocks
    with served(tmp_path / "before", f"penstock serve {stores(databases[:2])}") as (url, _):
        for number in range(20):
            assert httpx2.post(f"{url}/queues/q{number}/jobs", json={"data": number}).status_code == 200
    restart, rebalance = commands(grow)
    addresses = {f"postgresql://db{n}/penstock": shlex.quote(databases[n]) for n in range(3)}
    with served(tmp_path / "grown", put(restart, addresses)) as (url, terminal):
        assert shards(url)[2]["spare"] is True
        terminal.run(put(rebalance, {"http://any-server:6790": url}))
        assert [each["queues"] > 0 for each in shards(url)] == [True, True, True]
        (shrinking,) = commands(shrink)
        terminal.run(put(shrinking, {"http://any-server:6790": url}))
        assert shards(url)[2]["spare"] is True
    with served(tmp_path / "shrunk", f"penstock serve {stores(databases[:2])}") as (url, _):
        assert len(httpx2.get(f"{url}/queues").json()["queues"]) == 20


def stores(addresses: list[str]) -> str:
    return " ".join(f"--store {shlex.quote(each)}" for each in addresses)


def shards(url: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = httpx2.get(f"{url}/shards").json()["shards"]
    return found


@runs("docs/redis.md", "sh 1")
def test_with_redis(blocks: list[str], databases: list[str], tmp_path: Path) -> None:
    plain, watched = commands(put(blocks[0], {"postgresql://db/penstock": shlex.quote(databases[0])}))
    with OwnRedis() as redis, OwnSentinel(redis) as sentinel:
        # Of three Sentinels two are away.
        gone = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        three = f"sentinel://{gone},{urlsplit(sentinel.url).netloc}/main"
        for number, command in enumerate(
            (
                put(
                    plain,
                    {
                        "redis://cache:6379/0": f"{redis.url.rstrip('/')}/0"
                        if urlsplit(redis.url).path in ("", "/")
                        else redis.url
                    },
                ),
                put(watched, {"sentinel://s1:26379,s2:26379,s3:26379/mymaster": three}),
            )
        ):
            with served(tmp_path / str(number), command) as (url, _):
                works(url)
                assert 'penstock_redis_up{shard="0"} 1.0' in httpx2.get(f"{url}/prometheus").text


@runs("docs/redis.md", "sh 2")
def test_a_buffered_queue(blocks: list[str], databases: list[str], tmp_path: Path) -> None:
    with (
        OwnRedis() as redis,
        served(tmp_path, f"penstock serve {stores(databases[:1])} --redis {redis.url}") as (url, terminal),
    ):
        assert json.loads(terminal.run(blocks[0])) == {"ok": True}
        assert httpx2.get(f"{url}/queues/leads/mode").json()["mode"] == "buffered"


@runs("docs/backup.md", "sh")
def test_backing_up_and_restoring(blocks: list[str], tmp_path: Path) -> None:
    with served(tmp_path, "penstock serve --data data") as (url, _):
        assert httpx2.post(f"{url}/queues/emails/jobs", json={"data": 1}).status_code == 200
        Terminal(tmp_path).run(blocks[0])
    with served(tmp_path, "penstock serve --data restored") as (url, _):
        assert httpx2.get(f"{url}/queues/emails/counts").json()["counts"]["waiting"] == 1


@runs("docs/backup.md", "json")
def test_the_manifest_of_a_backup(blocks: list[str]) -> None:
    shown = msgspec.json.decode(blocks[0])
    assert msgspec.to_builtins(msgspec.json.decode(blocks[0], type=Manifest)) == shown
