"""The pages of the doors: their commands run as they are printed, and what they show is what is sent and answered."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import runs
from tests.docs.shapes import fits
from tests.docs.shell import Terminal
from tests.support import npm
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of these pages' own: their queues have the names that people use."""
    with ServerProcess(tmp_path_factory.mktemp("pages") / "data") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client() as opened:
        yield opened


def replies(said: str) -> list[Any]:
    return [json.loads(line) for line in said.splitlines() if line]


@runs("docs/flows.md", "sh")
def test_flows(blocks: list[str], server: ServerProcess, client: httpx2.Client, tmp_path: Path) -> None:
    (reply,) = replies(Terminal(tmp_path, server.port).run(blocks[0]))
    report = f"/jobs/{reply['id']}"
    assert client.get(f"{report}/state").json()["state"] == "waiting-children"
    for answer in (1, 2):
        job = client.get("/queues/fetch/jobs").json()
        client.post(f"/jobs/{job['job']['id']}/ack", json={"token": job["token"], "result": answer})
    assert client.get(f"{report}/state").json()["state"] == "waiting"
    assert sorted(client.get(f"{report}/children").json()["values"].values()) == [1, 2]


@runs("docs/crons.md", "json")
def test_crons(blocks: list[str], client: httpx2.Client) -> None:
    cron = client.post("/crons", content=blocks[0]).json()["cron"]
    assert (cron["name"], cron["schedule"], cron["timezone"]) == ("daily-cleanup", "0 2 * * *", "America/New_York")


@runs("docs/batches-door.md", "json")
def test_batches(blocks: list[str], client: httpx2.Client) -> None:
    message, refused = map(json.loads, blocks)
    (number,) = client.post("/enqueue", json=[message]).json()
    assert client.post("/enqueue", json=[message]).json() == [number], "the same key is the same message"
    assert message["topic"] in client.get("/topics", params={"namespace": message["namespace"]}).json()
    (unknown,) = refused
    place = {"namespace": "default", "topic": "leads"}
    assert client.post("/nack", json=[{"id": unknown["id"], **place}]).json() == refused


@runs("docs/batches-door.md", "js")
def test_batches_from_javascript(blocks: list[str], server: ServerProcess) -> None:
    command = [npm.node(), "--input-type=module", "-e", blocks[0]]
    env = npm.environment(SERVER=server.url)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("2 0\n", "")


@runs("docs/messages-door.md", "sh")
def test_messages(blocks: list[str], server: ServerProcess, client: httpx2.Client, tmp_path: Path) -> None:
    now, later, taken = replies(Terminal(tmp_path, server.port).run(blocks[0]))
    (message,) = taken["messages"]
    assert (message["id"], message["body"], message["attempt"]) == (now["id"], "eyJhbW91bnQiOjQyfQ==", 1)
    assert later["id"] != now["id"]
    assert client.delete(f"/messages/{message['receipt_handle']}").status_code == 204
    (stats,) = [each for each in client.get("/api/stats").json()["queues"] if each["key"] == "payments/invoices"]
    assert (stats["scheduled"], stats["depth"]) == (1, 0)


@runs("docs/webhooks.md", "sh")
def test_webhooks_are_registered(blocks: list[str], server: ServerProcess, client: httpx2.Client, tmp_path: Path) -> None:
    (reply,) = replies(Terminal(tmp_path, server.port).run(blocks[0]))
    assert fits(reply, {"ok": True, "data": {"webhookId": "", "url": "", "events": [], "createdAt": 0}})
    (webhook,) = client.get("/webhooks").json()["data"]["webhooks"]
    assert (webhook["id"], webhook["queue"]) == (reply["data"]["webhookId"], "emails")
