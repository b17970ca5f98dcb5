"""The wall clock is set while the server is stopped: leases do not notice. A real server in a real process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

HOUR_MS = 3_600_000
SHIFTED = ("-m", "tests.support.shifted_server")


def server_at(directory: Path, shift_ms: int) -> ServerProcess:
    return ServerProcess(directory / "data", env={"SHIFT_MS": str(shift_ms)}, launcher=SHIFTED)


def push(client: httpx2.Client, data: str) -> None:
    client.post("/queues/mail/jobs", json={"data": data}).raise_for_status()


def pull(client: httpx2.Client, *, lease_ms: int = 60_000, wait_ms: int = 0) -> Any:
    reply = client.get("/queues/mail/jobs", params={"lockTtl": lease_ms, "timeout": wait_ms}).raise_for_status()
    return reply.json()


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("shift_ms", [-HOUR_MS, HOUR_MS])
def test_setting_the_clock_while_the_server_is_stopped_moves_no_lease(tmp_path: Path, shift_ms: int, kill: bool) -> None:
    with server_at(tmp_path, 0) as server, server.client() as client:
        push(client, "long")
        push(client, "short")
        long = pull(client, lease_ms=10 * 60_000)
        short = pull(client, lease_ms=1_000)
        assert (long["job"]["data"], short["job"]["data"]) == ("long", "short")
        if kill:
            server.kill()
    with server_at(tmp_path, shift_ms) as server, server.client() as client:
        # The lease of a second ends, also if the clock is an hour behind; the one of ten minutes does not if it is ahead.
        back = pull(client, lease_ms=1_000, wait_ms=25_000)
        assert back["job"]["id"] == short["job"]["id"]
        assert pull(client)["job"] is None
        client.post(f"/jobs/{long['job']['id']}/ack", json={"token": long["token"]}).raise_for_status()
