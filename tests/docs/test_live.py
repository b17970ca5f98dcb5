"""What pages show of events, WebSockets and webhooks is what is sent."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from websockets.sync.client import connect

from tests.docs.blocks import runs
from tests.docs.shapes import fits
from tests.docs.shell import put
from tests.support import npm
from tests.support.receiver import Received, Receiver, status
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may call this machine."""
    env = {"WEBHOOK_ALLOWED_HOSTS": "127.0.0.1", "PENSTOCK_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
    with ServerProcess(tmp_path_factory.mktemp("live") / "data", env=env) as running:
        yield running


@runs("docs/events.md", "js")
def test_events_in_javascript(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    """Node has the EventSource of browsers, if it is asked for it."""
    program = put(blocks[0], {"http://localhost:6790": server.url})
    # It says when it listens, so that nothing happens before.
    (tmp_path / "events.js").write_text(f"{program}\nevents.addEventListener('open', () => console.log('open'));\n")
    command = [npm.node(), "--experimental-eventsource", "events.js"]
    with subprocess.Popen(command, cwd=tmp_path, env=npm.environment(), stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "open\n"
            pushed = httpx2.post(f"{server.url}/queues/emails/jobs", json={"data": 1}).json()["id"]
            assert node.stdout.readline() == f"[pushed] emails {pushed}\n"
        finally:
            node.kill()


@runs("docs/events.md", "json")
def test_subscribing_over_a_websocket(blocks: list[str], server: ServerProcess) -> None:
    command, reply = blocks[0].splitlines()
    with connect(f"ws://127.0.0.1:{server.port}/ws") as socket:
        socket.send(command)
        for frame in socket:
            if "reqId" in (said := json.loads(frame)):
                break
    assert said == json.loads(reply)


@runs("docs/messages-door-push.md", "json")
def test_a_consumer_over_a_websocket(blocks: list[str], server: ServerProcess) -> None:
    shown, (ack, nack, error) = json.loads(blocks[0]), map(json.loads, blocks[1].splitlines())
    place = f"/namespaces/{shown['namespace']}/queues/{shown['queue']}"
    httpx2.post(f"{server.url}{place}/messages", json={"body": shown["body"]}).raise_for_status()
    with connect(f"ws://127.0.0.1:{server.port}{place}/ws") as socket:
        for word, attempt in ((nack, 1), (ack, 2)):
            message = json.loads(socket.recv())
            assert (set(message), message["body"], message["attempt"]) == (set(shown), shown["body"], attempt)
            receipt = message["receipt_handle"]
            socket.send(json.dumps(word | {"receipt_handle": receipt}))
        socket.send(json.dumps(ack | {"receipt_handle": receipt}))
        text = error["error"].replace(error["receipt_handle"], receipt)
        assert json.loads(socket.recv()) == error | {"receipt_handle": receipt, "error": text}


def shown_in(block: str) -> tuple[str, dict[str, str], Any]:
    """Return the path, the headers and the JSON of a request that a page shows."""
    head, _, body = block.partition("\n\n")
    first, *lines = head.splitlines()
    return first.split()[1], dict(line.split(": ", 1) for line in lines), json.loads(body)


def check(received: Received, block: str) -> None:
    path, headers, body = shown_in(block)
    assert received.line.split()[:2] == ["POST", path]
    sent = {name.lower(): value for name, value in received.headers.items()}
    assert {name.lower() for name in headers} <= set(sent)
    assert {name for name in sent if name.startswith("x-")} == {name.lower() for name in headers if name.startswith("X-")}
    assert fits(received.json, body)
    assert set(received.json) == set(body)


@runs("docs/webhooks.md", "http", "python")
async def test_a_webhook(blocks: list[str], server: ServerProcess) -> None:
    delivery, verify = blocks
    async with Receiver(status(200)) as receiver, server.async_client() as client:
        url = f"http://127.0.0.1:{receiver.port}{shown_in(delivery)[0]}"
        hook = {"url": url, "events": ["completed"], "queue": "hooked", "secret": "whsec_abc123"}
        (await client.post("/webhooks", json=hook)).raise_for_status()
        await client.post("/queues/hooked/jobs", json={"data": 1})
        job = (await client.get("/queues/hooked/jobs")).json()
        await client.post(f"/jobs/{job['job']['id']}/ack", json={"token": job["token"], "result": {"sent": True}})
        (received,) = await receiver.until(1)
    check(received, delivery)
    names: dict[str, Any] = {}
    exec(verify, names)
    signature = received.headers["x-webhook-signature"]
    assert names["is_genuine"]("whsec_abc123", received.body, signature)
    assert not names["is_genuine"]("another", received.body, signature)


@runs("docs/messages-door-push.md", "http", "python")
async def test_a_message_that_is_pushed(blocks: list[str], server: ServerProcess) -> None:
    delivery, verify = blocks
    shown = shown_in(delivery)[2]
    place = f"/namespaces/{shown['namespace']}/queues/pushed"
    async with Receiver(status(200)) as receiver, server.async_client() as client:
        url = f"http://127.0.0.1:{receiver.port}{shown_in(delivery)[0]}"
        (await client.post(f"{place}/subscriptions", json={"url": url, "secret": "s3cret"})).raise_for_status()
        (await client.post(f"{place}/messages", json={"body": shown["body"]})).raise_for_status()
        (received,) = await receiver.until(1)
    check(received, delivery)
    headers = httpx2.Headers(received.headers)
    exec(verify, {"secret": "s3cret", "request": SimpleNamespace(body=received.body, headers=headers)})
    with pytest.raises(AssertionError):
        exec(verify, {"secret": "another", "request": SimpleNamespace(body=received.body, headers=headers)})
