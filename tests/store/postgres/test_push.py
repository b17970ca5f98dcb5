"""Two servers, one subscription: one of them pushes, each message once; when it is killed, the other goes on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.doors.messages.test_messages import Queue
from tests.support.receiver import OK, Receiver, until
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LEADS = "this server leads now"


async def test_one_pushes_and_the_other_takes_over(tmp_path: Path, shard: str) -> None:
    env = {"PENSTOCK_STORES": shard, "PENSTOCK_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
    servers = [ServerProcess(tmp_path / name, env=env).start() for name in ("one", "two")]
    async with Receiver(OK) as receiver:
        try:
            await until(lambda: any(LEADS in server.log() for server in servers))
            leader, other = sorted(servers, key=lambda server: LEADS not in server.log())
            with other.client() as client:
                queue = Queue(client)
                queue.ok("POST", f"{queue.path}/subscriptions", 201, json={"url": receiver.url})
                ids = {queue.publish() for _ in range(30)}
                await receiver.until(30)
                await until(lambda: queue.stats()["in_flight"] == 0)
                leader.kill()
                ids |= {queue.publish() for _ in range(30)}
                await receiver.until(60)
                await until(lambda: queue.stats()["in_flight"] == 0)
            got = Counter(each.json["id"] for each in receiver.requests)
            assert got == Counter(ids), "each once"
            assert LEADS in other.log()
        finally:
            for server in servers:
                server.stop()
