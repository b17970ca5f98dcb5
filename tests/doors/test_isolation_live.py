"""What goes on in one namespace is not heard of in another; lists show nothing of it, and neither do figures of the server."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.doors.listen import WAIT_S, ear, stream
from tests.doors.neighbours import OWNER, STRANGER, neighbours, plain, text_of
from tests.support.curl import CurlStream, needs_curl
from tests.support.ports import free_port
from tests.support.receiver import Receiver
from tests.support.resp import RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

    from tests.doors.listen import Ear, StreamEar
    from tests.doors.neighbours import World

pytestmark = pytest.mark.anyio

#: A queue of this name is in both namespaces.
LIVE = "zebra-live"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with neighbours(tmp_path_factory.mktemp("live") / "data") as made:
        yield made


def shown(key: str, namespace: str) -> dict[str, str]:
    return {"X-Api-Key": key, "X-Namespace": namespace}


def live(world: World) -> None:
    """Have everything happen in alpha that is told, and wait until its owner has been told of it."""
    with ear(world.server, "*", additional_headers=shown(world.owner_key, OWNER)) as owner:
        queue = f"/queues/{LIVE}"

        def push(**more: Any) -> str:
            made: str = world.ask("POST", f"{queue}/jobs", {"data": "velvet", **more})["id"]
            world.hide(made)
            return made

        def pull() -> str:
            taken: str = world.ask("GET", f"{queue}/jobs")["job"]["id"]
            return taken

        push()
        done = pull()
        world.ask("POST", f"/jobs/{done}/progress", {"progress": 50, "message": "velvet"})
        world.ask("POST", f"/jobs/{done}/ack", {"result": "velvet"})
        push(maxAttempts=1)
        world.ask("POST", f"/jobs/{pull()}/fail", {"error": "velvet"})
        world.ask("POST", f"{queue}/dlq/retry")
        world.ask("PUT", f"/jobs/{push(delay=60_000)}/priority", {"priority": 4})
        world.ask("PUT", f"{queue}/stall-config", {"stallInterval": 30_000})
        world.ask("PUT", f"{queue}/rate-limit", {"limit": 1_000_000})
        world.ask("POST", f"{queue}/pause")
        world.ask("POST", f"{queue}/resume")
        world.ask("POST", "/workers", {"name": "velvet", "queues": [LIVE], "workerId": "velvet-live"})
        world.ask("DELETE", "/workers/velvet-live")
        hook = {"url": "http://127.0.0.1:9/velvet", "events": ["pushed"], "queue": "zebra-none"}
        world.ask("DELETE", f"/webhooks/{world.ask('POST', '/webhooks', hook)['data']['webhookId']}")
        cron = {"name": "velvet-cron", "queue": LIVE, "data": "velvet", "schedule": "0 0 1 1 *", "immediately": True}
        world.ask("POST", "/crons", cron)
        world.ask("DELETE", "/crons/velvet-cron")
        world.ask("POST", f"/namespaces/{OWNER}/queues/{LIVE}/messages", {"body": "velvet"})
        world.ask("POST", f"/publish/{LIVE}", content=b"velvet")
        world.ask("POST", f"{queue}/drain")
        owner.until("queue:drained", queue=LIVE)
        kinds = {each["event"].partition(":")[0] for each in owner.skipped}
        assert kinds >= {"job", "queue", "dlq", "cron", "worker", "webhook", "ratelimit", "config"}


def stream_until(listening: StreamEar, job: str) -> list[str]:
    """Return all an event stream tells, up to the job that its own namespace was given."""
    told: list[str] = []
    while True:
        told.append(text_of(listening.message()))
        if job in told[-1]:
            return told


def socket_until(listening: Ear, job: str) -> list[str]:
    """Return all a WebSocket tells, up to the job that its own namespace was given."""
    told = [json.dumps(each) for each in listening.skipped]
    while True:
        told.append(json.dumps(listening.receive()))
        if job in told[-1]:
            return told


@pytest.mark.parametrize("key", ["everything", "produce", "consume"])
def test_events_are_told_in_their_namespace_only(world: World, key: str) -> None:
    mine = shown(world.keys[key], STRANGER)
    with ExitStack() as stack:
        client = stack.enter_context(world.server.client())
        streams = [
            stack.enter_context(stream(client, path, headers={**mine, **more}, params=query))
            for path in ("/events", f"/events/queues/{LIVE}")
            for query in ({}, {"format": "typed"})
            for more in ({}, {"Last-Event-ID": "0"})
        ]
        sockets = [
            stack.enter_context(ear(world.server, *events, path=path, additional_headers=mine))
            for path in ("/ws", f"/ws/queues/{LIVE}")
            for events in ((), ("*",))
        ]
        abroad = stack.enter_context(ear(world.server, additional_headers=shown(world.keys[key], OWNER)))
        refused = abroad.ask("Subscribe", events=["*"])
        assert "has no permission for this in the namespace" in refused["error"]
        live(world)
        job = client.post(f"/queues/{LIVE}/jobs", json={"data": 1}, headers=shown(world.keys["everything"], STRANGER)).json()
        for each in streams:
            for told in stream_until(each, job["id"]):
                world.look_through("an event stream", told)
        for ear_of_mine in sockets:
            for told in socket_until(ear_of_mine, job["id"]):
                world.look_through("a WebSocket", told)
        assert abroad.ask("Ping")["ok"]
        assert abroad.skipped == [], "who may not look is told nothing"


@pytest.mark.slow
def test_figures_of_all_namespaces_are_told_to_who_may_look_at_all(world: World) -> None:
    mine = shown(world.keys["everything"], STRANGER)
    with (
        world.server.client() as client,
        ear(world.server, "*", additional_headers=mine) as socket,
        stream(client, headers=mine, params={"format": "typed"}) as listening,
        ear(world.server, "stats:snapshot", additional_headers={"X-Api-Key": "root-key"}) as operator,
    ):
        assert operator.until("stats:snapshot")["waiting"] > 0
        job = client.post(f"/queues/{LIVE}/jobs", json={"data": 1}, headers=mine).json()["id"]
        for told in (*socket_until(socket, job), *stream_until(listening, job)):
            assert "totalPushed" not in told


def test_messages_are_pushed_in_their_namespace_only(world: World) -> None:
    server, key = world.server, world.keys["everything"]
    path = f"/namespaces/{{}}/queues/{LIVE}"
    answers = []
    for namespace in (OWNER, "omega"):
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(f"ws://127.0.0.1:{server.port}{path.format(namespace)}/ws", additional_headers={"X-Api-Key": key}),
        ):
            pass
        answers.append((refused.value.response.status_code, plain((refused.value.response.body or b"").decode())))
    assert answers[0] == answers[1]
    assert answers[0][0] == 403
    with server.client(headers=shown(key, STRANGER)) as client:
        assert client.post(f"/queues/{LIVE}/drain").status_code == 200
    with (
        server.client(headers=shown(key, STRANGER)) as client,
        connect(
            f"ws://127.0.0.1:{server.port}{path.format(STRANGER)}/ws", additional_headers={"X-Api-Key": key}
        ) as consumer,
        RespClient(server.resp_port) as subscriber,
    ):
        subscriber.ok("AUTH", STRANGER, key)
        subscriber.send("SUBSCRIBE", f"{LIVE}-topic")
        for receipt in world.names.receipts:
            consumer.send(json.dumps({"type": "ack", "receipt_handle": receipt}))
            assert "unknown or expired receipt handle" in json.loads(consumer.recv(timeout=WAIT_S))["error"]
        world.ask("POST", f"/publish/{LIVE}-topic", content=b"velvet")
        live(world)
        assert client.post(f"{path.format(STRANGER)}/messages", json={"body": "bWluZQ=="}).status_code == 201
        assert client.post(f"/publish/{LIVE}-topic", content=b"mine").status_code == 201
        assert json.loads(consumer.recv(timeout=WAIT_S))["body"] == "bWluZQ=="
        assert subscriber.read() == b"mine"


@needs_curl
def test_topics_are_subscribed_to_in_their_namespace_only(world: World) -> None:
    world.ask("POST", "/publish/zebra-curl", content=b"velvet")
    key = world.keys["everything"]
    with world.server.client(headers=shown(key, STRANGER)) as client:
        assert client.post("/publish/zebra-curl", content=b"mine").status_code == 201
    headers = ("-H", f"X-Api-Key: {key}", "-H", f"X-Namespace: {STRANGER}")
    with CurlStream(f"{world.server.url}/subscribe/zebra-curl", *headers) as subscriber:
        assert subscriber.get("INIT") == b"mine"


async def test_webhooks_are_told_of_their_namespace_only(world: World) -> None:
    async with (
        Receiver() as receiver,
        world.server.async_client(headers=shown(world.keys["everything"], STRANGER)) as client,
    ):
        events = ["pushed", "started", "completed", "failed", "progress", "stalled"]
        for queue in ({}, {"queue": LIVE}):
            added = await client.post("/webhooks", json={"url": receiver.url, "events": events, **queue})
            assert added.status_code == 200, added.text
        live(world)
        await client.post(f"/queues/{LIVE}/jobs", json={"data": 1})
        for request in await receiver.until(2):
            world.look_through("a webhook", request.body.decode())
            assert request.json["event"] == "job.pushed"


async def test_messages_are_posted_in_their_namespace_only(world: World) -> None:
    queue = "/namespaces/{}/queues/zebra-posted"
    async with Receiver() as receiver, world.server.async_client(headers={"X-Api-Key": world.keys["everything"]}) as client:
        added = await client.post(f"{queue.format(STRANGER)}/subscriptions", json={"url": receiver.url})
        assert added.status_code == 201, added.text
        world.ask("POST", f"{queue.format(OWNER)}/messages", {"body": "velvet"})
        assert (await client.post(f"{queue.format(STRANGER)}/messages", json={"body": "mine"})).status_code == 201
        (request,) = await receiver.until(1)
        world.look_through("a subscription", request.body.decode())


# Lists and figures.


def test_lists_show_what_is_in_their_namespace(world: World) -> None:
    made = world.make_key("gamma", "admin")
    key, port = made["secret"], world.server.port
    with world.server.client(headers=shown(key, "gamma")) as client:

        def get(path: str, *, at: int = port) -> Any:
            reply = client.get(f"http://127.0.0.1:{at}{path}")
            assert reply.status_code == 200, f"{path}: {reply.text}"
            assert not [each for each in ("zebra", OWNER, STRANGER) if each in reply.text], reply.text
            world.look_through(path, reply.text)
            return reply.json()

        assert client.post("/queues/mine/jobs", json={"data": 1}).status_code == 200
        assert get("/namespaces")["namespaces"] == [], "it is used at another door only"
        assert client.post("/namespaces", json={"name": "gamma"}).status_code == 201
        assert get("/queues")["queues"] == ["mine"]
        assert get("/crons")["crons"] == []
        assert get("/webhooks")["data"]["webhooks"] == []
        assert get("/workers")["data"] == {"workers": [], "stats": {"total": 0, "active": 0}}
        assert get("/topics?namespace=gamma") == ["mine"]
        assert get("/namespaces/gamma/queues") == {"queues": ["gamma/mine"]}
        for at in (port, world.ports["messages"]):
            assert [each["name"] for each in get("/namespaces", at=at)["namespaces"]] == ["gamma"]
            assert [each["key"] for each in get("/api/stats", at=at)["queues"]] == ["gamma/mine"]
            summary = get("/api/stats/summary", at=at)
            assert (summary["total_queues"], summary["namespaces"], summary["total_depth"]) == (1, 1, 1)
        assert get("/health", at=world.ports["messages"])["queues"] == 1
        assert [each["id"] for each in get("/keys")["keys"]] == [made["key"]["id"]]
        assert get("/health").keys() == {"ok", "status", "uptime", "version", "memory", "reason"}
    with TcpClient(world.server.tcp_port) as tcp, RespClient(world.server.resp_port) as resp:
        tcp.ok("Auth", token=key, namespace="gamma")
        assert tcp.ok("ListQueues")["queues"] == ["mine"]
        assert tcp.ok("CronList")["crons"] == []
        assert tcp.ok("ListWebhooks")["data"]["webhooks"] == []
        assert tcp.ok("ListWorkers")["data"]["workers"] == []
        resp.ok("AUTH", "gamma", key)
        assert resp.ok("TOPICS") == b"[mine]"
        assert b"clients" not in resp.ok("INFO"), "how many there are is of all namespaces"


METRICS = (("http", "/prometheus"), ("metrics", "/metrics"), ("metrics", "/prometheus"), ("messages", "/metrics"))


def statuses(client: httpx2.Client, ports: dict[str, int], key: str | None) -> set[int]:
    """Return what all places where metrics are found answer to who shows a key, or none."""
    found = set()
    for listener, path in METRICS:
        reply = client.get(f"http://127.0.0.1:{ports[listener]}{path}", headers={} if key is None else {"X-Api-Key": key})
        assert (reply.status_code == 200) is ("zebra" in reply.text), reply.text
        found.add(reply.status_code)
    return found


def test_metrics_are_for_who_may_look_at_everything_once_there_are_keys(world: World) -> None:
    with world.server.client() as client:
        assert statuses(client, world.ports, None) == {401}
        for key in (*world.keys.values(), world.owner_key):
            assert statuses(client, world.ports, key) == {403}
        for key in ("root-key", world.make_key("*", "consume")["secret"]):
            assert statuses(client, world.ports, key) == {200}
        # There was a key before, so figures are not for everybody; who may look at everything has them at /stats.
        assert "queues" not in client.get("/health").json()
        assert client.get("/stats", headers={"X-Api-Key": "root-key"}).json()["stats"]["waiting"] > 0


@pytest.mark.parametrize(
    ("env", "before", "after"),
    # EpochQ's own listener asks for the key of its configuration, as the original does.
    [({}, {200, 401}, {401}), ({"METRICS_AUTH": "no"}, {200}, {200}), ({"METRICS_AUTH": "yes"}, {401}, {401})],
)
def test_metrics_are_for_everybody_until_there_are_keys_unless_said_otherwise(
    tmp_path: Path, env: dict[str, str], before: set[int], after: set[int]
) -> None:
    ports = {name: free_port() for name in ("metrics", "messages")}
    flags = [word for name, port in ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
    root = {"X-Api-Key": "root-key"}
    with ServerProcess(tmp_path / "data", *flags, env={"EPOCHQ_AUTH_API_KEY": "root-key", **env}) as running:
        ports["http"] = running.port
        with running.client() as client:
            assert client.post("/queues/zebra/jobs", json={"data": 1}, headers=root).status_code == 200
            assert client.get("/health").json()["queues"]["waiting"] == 1
            assert statuses(client, ports, None) == before
            assert client.post("/keys", json={"namespaces": ["a"], "roles": ["admin"]}, headers=root).status_code == 200
            assert statuses(client, ports, None) == after
            assert "queues" not in client.get("/health").json()


# Last: what alpha's owner had in hand is still in hand.


def test_leases_and_receipts_are_still_good(world: World) -> None:
    state = world.state()
    active = next(each for each in world.names.jobs if state[each]["job"].get("progress") == 40)
    with world.server.client(headers=shown(world.keys["everything"], STRANGER)) as client:
        for receipt in world.names.receipts:
            assert client.delete(f"/messages/{receipt}").status_code == 410
    for receipt in world.names.receipts:
        world.ask("DELETE", f"/messages/{receipt}")
    world.ask("POST", f"/jobs/{active}/ack", {"token": world.names.token})
