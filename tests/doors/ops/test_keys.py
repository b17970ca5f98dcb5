"""API keys over real sockets: what they open and where, who may manage them, and that revoking one is felt at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.core.clock import SystemClock, pause
from penstock.doors.websocket import Closing
from tests.doors.listen import ear, stream
from tests.support import stores
from tests.support.curl import CurlStream, needs_curl
from tests.support.ports import free_port
from tests.support.resp import END, Refused, RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx2

pytestmark = pytest.mark.anyio

ROOT = {"X-Api-Key": "root-key"}
shared = pytest.mark.skipif(stores.chosen() == "sqlite", reason="one file has one server")
alone = pytest.mark.skipif(stores.chosen() != "sqlite", reason="a database lets several in")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("keys")
    with ServerProcess(folder / "data", env={"EPOCHQ_AUTH_API_KEY": "root-key"}) as running:
        yield running


@pytest.fixture
def client(guarded: ServerProcess) -> Iterator[httpx2.Client]:
    with guarded.client() as opened:
        yield opened


def make(client: httpx2.Client, namespaces: list[str], *roles: str, by: dict[str, str] = ROOT, **more: Any) -> Any:
    reply = client.post("/keys", json={"namespaces": namespaces, "roles": list(roles), **more}, headers=by)
    assert reply.status_code == 200, reply.text
    return reply.json()


def shows(made: Any, namespace: str | None = None) -> dict[str, str]:
    return {"X-Api-Key": made["secret"]} | ({} if namespace is None else {"X-Namespace": namespace})


def revoke(client: httpx2.Client, made: Any, by: dict[str, str] = ROOT) -> None:
    assert client.delete(f"/keys/{made['key']['id']}", headers=by).json() == {"ok": True}


def test_a_key_is_made_listed_and_revoked(client: httpx2.Client) -> None:
    made = make(client, ["made"], "produce", "consume", label="Kasse", expiresInMs=60_000)
    key = made["key"]
    assert made["secret"].startswith(key["prefix"] + "_")
    assert (key["namespaces"], key["roles"], key["label"]) == (["made"], ["produce", "consume"], "Kasse")
    assert key["expiresAt"] - key["createdAt"] == 60_000
    listed = client.get("/keys", headers=ROOT).json()["keys"]
    assert key in listed
    assert made["secret"] not in json.dumps(listed)
    revoke(client, made)
    (again,) = (each for each in client.get("/keys", headers=ROOT).json()["keys"] if each["id"] == key["id"])
    assert again["revokedAt"] is not None
    revoke(client, made)
    assert client.delete("/keys/nope", headers=ROOT).status_code == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"namespaces": [], "roles": ["admin"]}, "namespaces must be a list of 1 to 100"),
        ({"namespaces": ["a b"], "roles": ["admin"]}, "invalid characters"),
        ({"namespaces": ["a"], "roles": ["boss"]}, "one or more of: produce, consume, admin"),
        ({"namespaces": ["a"], "roles": ["admin"], "expiresInMs": 10**18}, "must be valid for"),
        ({"namespaces": ["a"], "roles": ["admin"], "label": "a\nb"}, "one line"),
        ({"namespaces": ["a"]}, "roles"),
    ],
)
def test_bad_wishes_are_explained(client: httpx2.Client, body: Any, words: str) -> None:
    reply = client.post("/keys", json=body, headers=ROOT)
    assert reply.status_code == 400
    assert words in reply.json()["error"]


def test_nobody_comes_in_without_a_key(guarded: ServerProcess, client: httpx2.Client) -> None:
    bad: list[dict[str, str]] = [
        {},
        {"X-Api-Key": ""},
        {"X-Api-Key": "root-ke"},
        {"X-Api-Key": "pk_000000000000_" + "0" * 40},
    ]
    for headers in bad:
        for path in ("/queues", "/stats", "/keys", "/nope"):
            reply = client.get(path, headers=headers)
            assert (reply.status_code, reply.json()["error"]) == (401, "Unauthorized")
    with pytest.raises(InvalidStatus) as refused, ear(guarded, additional_headers=bad[-1]):
        pass
    assert refused.value.response.status_code == 401
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("header", ["X-Api-Key", "x-api-key", "Authorization"])
def test_keys_are_shown_in_every_way(guarded: ServerProcess, client: httpx2.Client, header: str) -> None:
    made = make(client, ["ways"], "admin")
    for shown in ("root-key", made["secret"]):
        value = f"Bearer {shown}" if header == "Authorization" else shown
        assert client.get("/queues", headers={header: value, "X-Namespace": "ways"}).status_code == 200
        with TcpClient(guarded.tcp_port) as tcp:
            tcp.ok("Auth", token=shown, namespace="ways")
            tcp.ok("PUSH", queue="q", data=1)
        with ear(guarded, additional_headers={header: value, "X-Namespace": "ways"}) as socket:
            assert socket.ask("Count", queue="q")["ok"] is True
        with ear(guarded) as socket:
            assert socket.ask("Auth", token=shown, namespace="ways")["ok"] is True


def test_roles_say_what_for(guarded: ServerProcess, client: httpx2.Client) -> None:
    keys = {role: shows(make(client, ["roles"], role), "roles") for role in ("produce", "consume", "admin")}
    calls: dict[str, Callable[[dict[str, str]], httpx2.Response]] = {
        "produce": lambda by: client.post("/queues/q/jobs", json={"data": 1}, headers=by),
        "consume": lambda by: client.get("/queues/q/jobs", headers=by),
        "admin": lambda by: client.post("/queues/q/resume", headers=by),
    }
    for role, by in keys.items():
        for needed, call in calls.items():
            assert call(by).status_code == (200 if role in (needed, "admin") else 403), (role, needed)
        assert client.get("/queues/q/counts", headers=by).status_code == 200
    with TcpClient(guarded.tcp_port) as tcp:
        tcp.ok("Auth", token=keys["produce"]["X-Api-Key"], namespace="roles")
        tcp.ok("PUSH", queue="q", data=1)
        assert "scope 'roles:consume'" in tcp.refused("PULL", queue="q")


def test_namespaces_say_where(client: httpx2.Client) -> None:
    here = make(client, ["here", "near"], "admin")
    for namespace in ("here", "near"):
        assert client.get("/queues", headers=shows(here, namespace)).status_code == 200
    for elsewhere in ("far", None, "default"):
        for path in ("/queues", "/jobs/1", "/crons", "/webhooks", "/workers", "/events"):
            assert client.get(path, headers=shows(here, elsewhere)).status_code == 403, path
    for path in ("/stats", "/metrics", "/storage", "/heapstats", "/shards"):
        assert client.get(path, headers=shows(here, "here")).status_code == 403, path
    everywhere = make(client, ["*"], "admin")
    assert client.get("/stats", headers=shows(everywhere)).status_code == 200
    assert client.get("/queues", headers=shows(everywhere, "far")).status_code == 200


def test_who_administers_a_namespace_manages_its_keys_and_no_others(client: httpx2.Client) -> None:
    boss = make(client, ["mine"], "admin")
    mixed, foreign, global_ = (make(client, where, "produce") for where in (["mine", "theirs"], ["theirs"], ["*"]))
    worker = make(client, ["mine"], "produce", "consume", by=shows(boss))
    seen = {each["id"] for each in client.get("/keys", headers=shows(boss)).json()["keys"]}
    assert seen == {boss["key"]["id"], worker["key"]["id"]}
    for other in (mixed, foreign, global_):
        unseen = client.delete(f"/keys/{other['key']['id']}", headers=shows(boss))
        unknown = client.delete("/keys/000000000000", headers=shows(boss))
        assert (unseen.status_code, unseen.json()) == (unknown.status_code, unknown.json()) == (404, unknown.json())
        assert (
            client.get("/queues", headers=shows(other, other["key"]["namespaces"][-1].replace("*", "x"))).status_code == 200
        )
    for where in (["theirs"], ["mine", "theirs"], ["*"]):
        reply = client.post("/keys", json={"namespaces": where, "roles": ["produce"]}, headers=shows(boss))
        assert reply.status_code == 403
    revoke(client, worker, by=shows(boss))
    assert client.get("/keys", headers=shows(worker)).status_code == 401
    helper = make(client, ["mine"], "produce", "consume")
    assert client.get("/keys", headers=shows(helper)).json()["keys"] == []
    body = {"namespaces": ["mine"], "roles": ["produce"]}
    assert client.post("/keys", json=body, headers=shows(helper)).status_code == 403


def test_a_key_that_is_over_is_told_so(client: httpx2.Client) -> None:
    made = make(client, ["over"], "admin", expiresInMs=1)
    while (reply := client.get("/queues", headers=shows(made, "over"))).status_code == 200:
        time.sleep(0.01)
    assert (reply.status_code, reply.json()["error"]) == (401, "The key has expired. Get a new one.")
    made = make(client, ["over"], "admin")
    revoke(client, made)
    reply = client.get("/queues", headers=shows(made, "over"))
    assert (reply.status_code, reply.json()["error"]) == (401, "The key was revoked. Get a new one.")


def test_revoking_ends_what_goes_on(guarded: ServerProcess, client: httpx2.Client) -> None:
    made, kept = make(client, ["ends"], "admin"), make(client, ["ends"], "admin")
    with (
        TcpClient(guarded.tcp_port) as tcp,
        ear(guarded, additional_headers=shows(made, "ends")) as socket,
        ear(guarded) as late,
        ear(guarded, additional_headers=shows(kept, "ends")) as staying,
        stream(client, "/events", headers=shows(made, "ends")) as events,
    ):
        tcp.ok("Auth", token=made["secret"], namespace="ends")
        tcp.ok("PUSH", queue="q", data=1)
        assert late.ask("Auth", token=made["secret"], namespace="ends")["ok"] is True
        assert socket.ask("Ping")["ok"] is True
        revoke(client, made)
        assert tcp.refused("PUSH", queue="q", data=1).startswith("The token has expired")
        for each in (socket, late):
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    each.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == Closing.NOT_ALLOWED
        with pytest.raises(EOFError):
            while True:
                events.message()
        assert staying.ask("Ping")["ok"] is True


@needs_curl
def test_revoking_ends_a_subscription(guarded: ServerProcess, client: httpx2.Client) -> None:
    made = make(client, ["ends"], "consume")
    client.post("/publish/topic", content=b"hello", headers=ROOT | {"X-Namespace": "ends"})
    headers = [f"{name}: {value}" for name, value in shows(made, "ends").items()]
    with CurlStream(f"{guarded.url}/subscribe/topic", *(part for each in headers for part in ("-H", each))) as subscriber:
        subscriber.say("INIT")
        assert subscriber.line() == {"msg": "aGVsbG8="}
        revoke(client, made)
        assert subscriber.rest() == []
    other = shows(make(client, ["ends"], "consume"), "ends")
    assert client.get("/queues/topic/jobs", headers=other).json()["job"]["data"] == "aGVsbG8="


def test_keys_over_the_redis_protocol(guarded: ServerProcess, client: httpx2.Client) -> None:
    made = make(client, ["resp"], "consume")
    client.post("/publish/topic", content=b"hello", headers=ROOT | {"X-Namespace": "resp"})
    with (
        RespClient(guarded.resp_port) as root,
        RespClient(guarded.resp_port) as worker,
        RespClient(guarded.resp_port) as held,
    ):
        assert root.call("AUTH", "root-key") == b"OK"
        for each in (worker, held):
            assert each.call("AUTH", "resp", made["secret"]) == b"OK"
        assert "NOPERM" in worker.refused("PUBLISH", "topic", "x")
        assert held.call("SUBSCRIBE", "topic") == b"hello"
        revoke(client, made)
        assert worker.refused("PING") != ""
        while (said := held.read()) is not END:
            assert isinstance(said, Refused), said
        assert root.call("PING") == b"pong"
        assert "WRONGPASS" in worker.refused("AUTH", "resp", made["secret"])


# How the first key comes to be.


def test_nobody_makes_the_first_key_over_the_network(server: ServerProcess) -> None:
    with server.client() as client:
        reply = client.post("/keys", json={"namespaces": ["*"], "roles": ["admin"]})
        assert reply.status_code == 403
        assert "penstock keys create" in reply.json()["error"]
        assert client.get("/keys").json() == {"ok": True, "keys": []}
        assert client.get("/stats").status_code == 200


def penstock(running: ServerProcess, *args: str, code: int = 0, **env: str) -> str:
    """Run a command with what the server has in its environment."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *args],
        env=running.env | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@contextmanager
def stopped(tmp_path: Path, **env: str) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path / "data", env=env)
    try:
        yield running
    finally:
        running.stop()


def test_the_first_key_is_made_in_the_store_and_the_others_with_it(tmp_path: Path) -> None:
    with stopped(tmp_path, PENSTOCK_AUTH_REQUIRED="yes", PENSTOCK_DATA=str(tmp_path / "data")) as running:
        text = penstock(running, "keys", "create", "--namespace", "*", "--role", "admin", "--label", "first").strip()
        assert "admin in *  first" in penstock(running, "keys", "list")
        running.start()
        at = ("--url", running.url, "--token", text)
        with running.client() as client:
            assert client.get("/stats").status_code == 401
            assert client.get("/stats", headers={"X-Api-Key": text}).status_code == 200
            create = ("keys", "create", "--namespace", "a", "--namespace", "b", "--role", "produce", "--expires", "90d")
            second = penstock(running, *create, *at).strip()
            assert client.get("/queues", headers={"X-Api-Key": second, "X-Namespace": "b"}).status_code == 200
            key_id = second.split("_")[1]
            assert f"{key_id}  produce in a,b, until 2" in penstock(running, "keys", "list", *at)
            assert penstock(running, "keys", "revoke", key_id, *at) == f"revoked: {key_id}\n"
            assert client.get("/queues", headers={"X-Api-Key": second, "X-Namespace": "b"}).status_code == 401
            assert f"{key_id}  produce in a,b, REVOKED 2" in penstock(
                running, "keys", "list", PENSTOCK_URL=running.url, PENSTOCK_TOKEN=text
            )
            assert "no such API key" in penstock(running, "keys", "revoke", "nope", *at, code=2)
            assert "401" in penstock(running, "keys", "list", "--url", running.url, code=2)
            assert "has no permission for this" in penstock(
                running, "keys", "create", "--namespace", "*", "--role", "admin", "--url", running.url,
                "--token", penstock(running, "keys", "create", "--namespace", "a", "--role", "admin", *at).strip(), code=2,
            )  # fmt: skip
        assert "--expires is 'soon': expected" in penstock(
            running, "keys", "create", "--namespace", "a", "--role", "admin", "--expires", "soon", code=2
        )


@alone
def test_a_file_that_a_server_has_is_left_alone(guarded: ServerProcess) -> None:
    error = penstock(guarded, "keys", "list", "--data", str(guarded.data), code=2)
    assert "A server runs on" in error
    assert "--url" in error
    assert "There is no store in" in penstock(guarded, "keys", "list", "--data", str(guarded.data / "typo"), code=2)


@pytest.mark.parametrize("restart", [True, False])
async def test_revoking_the_last_key_opens_nothing(tmp_path: Path, restart: bool) -> None:
    with stopped(tmp_path, PENSTOCK_DATA=str(tmp_path / "data")) as running:
        text = penstock(running, "keys", "create", "--namespace", "*", "--role", "admin").strip()
        running.start()
        with running.client() as client:
            assert client.get("/stats").status_code == 401
            assert client.delete(f"/keys/{text.split('_')[1]}", headers={"X-Api-Key": text}).status_code == 200
            if restart:
                running.stop()
                running.start()
            assert client.get("/stats").status_code == 401
            assert client.get("/stats", headers={"X-Api-Key": text}).status_code == 401


def test_the_file_of_epochq_starts_a_server_that_asks_for_its_key(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"node: {{id: auto, host: 127.0.0.1, port: {free_port()}}}\nauth: {{enabled: true, api_key: s3cret}}\n"
        "metrics: {enabled: false}\nproducers: {max_rate: 10000, burst: 50000}\n"
    )
    with ServerProcess(tmp_path / "data", "--config", str(file)) as running, running.client() as client:
        for path in ("/stats", "/queues", "/keys"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"X-Api-Key": "s3cret"}).status_code == 200
        assert "producers.max_rate" in running.log()
        assert "s3cret" not in running.log()


# Several servers.


async def until(client: httpx2.AsyncClient, status: int, **headers: str) -> None:
    clock = SystemClock()
    for _ in range(500):
        if (await client.get("/stats", headers=headers)).status_code == status:
            return
        await pause(clock, 20)
    raise AssertionError(f"never answered {status}")


@shared
async def test_what_is_done_elsewhere_is_felt_here_within_a_moment(tmp_path: Path) -> None:
    same = stores.environment(tmp_path / "data")
    with stopped(tmp_path) as here, stopped(tmp_path / "there", **same) as there:
        here.start()
        there.start()
        with ear(here) as socket, here.client() as listening, stream(listening, "/events") as events:
            async with here.async_client() as a, there.async_client() as b:
                assert socket.ask("Ping")["ok"] is True
                first = penstock(here, "keys", "create", "--namespace", "*", "--role", "admin").strip()
                for client in (a, b):
                    await until(client, 401)
                with pytest.raises(ConnectionClosed):  # nobody had asked who that is
                    while True:
                        socket.receive()
                with pytest.raises(EOFError):
                    while True:
                        events.message()
                second = penstock(
                    here, "keys", "create", "--namespace", "*", "--role", "admin", "--url", here.url, "--token", first
                ).strip()
                for client in (a, b):
                    await until(client, 200, **{"X-Api-Key": second})
                await a.delete(f"/keys/{second.split('_')[1]}", headers={"X-Api-Key": first})
                assert (await a.get("/stats", headers={"X-Api-Key": second})).status_code == 401
                await until(b, 401, **{"X-Api-Key": second})
                await until(b, 200, **{"X-Api-Key": first})
