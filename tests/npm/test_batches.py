"""The batches door from JavaScript, whose numbers cannot hold its ids: Node's own fetch against a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import npm
from tests.support.resp import unique

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

SCRIPT = Path(__file__).parent / "batches" / "consumer.mjs"


def test_a_consumer_that_reads_ids_with_json_parse(server: ServerProcess) -> None:
    topic = unique()
    command = [npm.node(), str(SCRIPT), server.url, topic]
    done = subprocess.run(command, env=npm.environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["same"]
    assert said["rounded"], "no message has the id that JavaScript makes of another one's"
    refused = said["ackOfRounded"]
    assert refused["status"] == 404
    assert "send id_text" in refused["body"]
    mixed = said["mixed"]
    assert mixed["status"] == 200
    assert len(mixed["body"]) == 1, "the good ones were acknowledged"
    assert "send id_text" in mixed["body"][0]["error"]
    assert [said[name]["status"] for name in ("ack", "nack", "again", "last")] == [200, 200, 404, 200]
    with server.client() as client:
        counts = client.get(f"/queues/{topic}/counts").json()["counts"]
    assert {name: count for name, count in counts.items() if count} == {"delayed": 1}, "the one that was given back"
