"""A server that is killed keeps what was set of the groups of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000


def pulled(c: TcpClient, count: int) -> list[str]:
    """Pull one by one; return the groups of the jobs that came."""
    jobs = [c.ok("PULL", queue=c.queue, detach=True, lockTtl=HOUR_MS)["job"] for _ in range(count)]
    return [job["groupId"] for job in jobs if job is not None]


def test_pause_rate_and_concurrency_of_groups_survive_a_kill(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    with TcpClient(server.tcp_port, "kept") as c:
        c.ok("PauseGroup", queue=c.queue, groupId="paused")
        c.ok("SetGroupConcurrency", queue=c.queue, groupId="wide", concurrency=2)
        c.ok("SetGroupConcurrency", queue=c.queue, groupId="slow", concurrency=9)
        c.ok("SetGroupRateLimit", queue=c.queue, groupId="slow", max=2, duration=HOUR_MS)
        c.push(groupId="slow")
        assert pulled(c, 2) == ["slow"]
    server.kill()
    with server, TcpClient(server.tcp_port, "kept") as c:
        assert c.ok("IsGroupPaused", queue=c.queue, groupId="paused")["data"] == {"paused": True}
        assert c.ok("GetGroupConcurrency", queue=c.queue, groupId="wide")["data"] == {"concurrency": 2}
        limit = c.ok("GetGroupRateLimit", queue=c.queue, groupId="slow")["data"]["limit"]
        assert limit == {"max": 2, "duration": HOUR_MS}
        assert 0 < c.ok("GetGroupRateLimitTtl", queue=c.queue, groupId="slow")["data"]["ttl"] <= HOUR_MS
        for group in ("paused", "slow", "wide", "plain"):
            for _ in range(3):
                c.push(groupId=group)
        assert pulled(c, 9) == ["slow", "wide", "wide", "plain"], "one of the rate was taken before the kill"
        c.ok("ResumeGroup", queue=c.queue, groupId="paused")
        assert pulled(c, 9) == ["paused"]


def test_what_a_worker_asks_for_all_groups_holds_over_a_kill(tmp_path: Path) -> None:
    group = {"concurrency": 3, "limit": {"max": 2, "duration": HOUR_MS}}
    server = ServerProcess(tmp_path / "data").start()
    with TcpClient(server.tcp_port, "asked") as c:
        for name in ("a", "b"):
            c.ok("PUSHB", queue=c.queue, jobs=[{"data": number, "groupId": name} for number in range(5)])
        pull = {"queue": c.queue, "group": group, "detach": True, "lockTtl": HOUR_MS}
        assert c.ok("PULL", **pull)["job"]["groupId"] == "a"
        assert [job["groupId"] for job in c.ok("PULLB", count=9, **pull)["jobs"]] == ["a", "b"]
        assert c.ok("GetGroupRateLimit", queue=c.queue, groupId="a")["data"] == {"limit": None}, "it is the worker's"
    server.kill()
    with server, TcpClient(server.tcp_port, "asked") as c:
        assert 0 < c.ok("GetGroupRateLimitTtl", queue=c.queue, groupId="a")["data"]["ttl"] <= HOUR_MS
        assert pulled(c, 3) == ["b"], "also for a worker that asks for nothing"
        for wrong in ({"concurrency": 0}, {"limit": {"max": 1}}, {"limit": {"max": 0, "duration": 1}}, {"affinity": 1}, [1]):
            assert "group" in c.refused("PULL", queue=c.queue, group=wrong)
            assert "group" in c.refused("PULLB", queue=c.queue, count=1, group=wrong)
