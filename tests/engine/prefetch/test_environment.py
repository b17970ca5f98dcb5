"""A server that is started with mqueue's environment, in a process of its own: databases, Redis and log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis

from tests.support import postgres
from tests.support.redis import OwnRedis
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
PASSWORD = "p@ss/w:rd"
#: What a run on other stores sets, and what would win over mqueue's variables.
OURS = {"PENSTOCK_STORES": "", "PENSTOCK_REDIS": ""}


@pytest.fixture
async def databases() -> AsyncIterator[list[str]]:
    urls = [await postgres.make_database() for _ in range(2)]
    yield urls
    for url in urls:
        await postgres.drop_database(url)


async def test_the_environment_of_mqueue_is_honoured(tmp_path: Path, databases: list[str]) -> None:
    with OwnRedis() as one, OwnRedis() as two:
        for redis in (one, two):
            with redis.client() as link:
                link.config_set("requirepass", PASSWORD)
        env = OURS | {
            "DATABASE_URLS": ",".join(f"{url}{'&' if '?' in url else '?'}sslmode=disable" for url in databases),
            "REDIS_ADDRS": f"127.0.0.1:{one.port},127.0.0.1:{two.port}",
            "REDIS_PASSWORD": PASSWORD,
            "WAL_DIR": str(tmp_path / "wal"),
            "NAMESPACE_QUOTAS": "default:1000",
        }
        with ServerProcess(tmp_path / "data", env=env) as server, server.client() as client:
            topics = [f"topic-{number}" for number in range(8)]
            for topic in topics:
                client.put(f"/queues/{topic}/mode", json={"mode": "buffered"}).raise_for_status()
            reply = client.post("/enqueue", json=[{"namespace": "default", "topic": topic} for topic in topics])
            assert len(reply.json()) == len(topics), reply.text
            lines = client.get("/prometheus").text.splitlines()
            for number in range(2):
                for kind in ("postgres", "redis"):
                    assert f'mqueue_shard_health{{shard="{number}",type="{kind}"}} 1.0' in lines
            for redis in (one, two):  # each serves a shard
                with Redis(port=redis.port, password=PASSWORD) as link:
                    assert "penstock" in {each["name"] for each in link.client_list()}
        assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == ["wal-0", "wal-1"]
        assert not (tmp_path / "data" / "penstock.db").exists()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"WAL_DIR": "/tmp/wal"}, "unset it: a file keeps its log beside it"),
        ({"DATABASE_URLS": "db1:5432"}, "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE"),
        ({"REDIS_ADDRS": "redis:6379", "REDIS_CLUSTER_MODE": "true"}, "Redis Cluster is not supported"),
        ({"EPOCHQ_FSYNC": "always"}, "EPOCHQ_FSYNC is not a setting"),
        ({"HTTP_SOCKET_PATH": "/run/queue.sock"}, "there are no Unix sockets"),
    ],
)
def test_what_cannot_be_honoured_stops_the_start_and_says_what_to_use(
    tmp_path: Path, env: dict[str, str], words: str
) -> None:
    server = ServerProcess(tmp_path / "data", env=OURS | env)
    with pytest.raises(AssertionError, match="the server did not start"):
        server.start()
    assert words in server.log()
