"""A request that waits ends when its key is revoked, on every listener, and is handed no job."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from tests.doors.listen import ear
from tests.support import stores
from tests.support.resp import Refused, RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx2

ROOT = {"X-Api-Key": "root-key"}
#: Longer than the test waits for its end, which so is not that of the wait.
WAIT_MS = 60_000
ENDS_WITHIN_S = 20


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("waits")
    with ServerProcess(folder / "data", env={"EPOCHQ_AUTH_API_KEY": "root-key"}) as running:
        yield running


def key_for(client: httpx2.Client, namespace: str, by: dict[str, str] = ROOT) -> dict[str, Any]:
    body = {"namespaces": [namespace], "roles": ["consume", "produce"]}
    made: dict[str, Any] = client.post("/keys", json=body, headers=by).json()
    return made


def headers(secret: str, namespace: str) -> dict[str, str]:
    return ({"X-Api-Key": secret} if secret else {}) | {"X-Namespace": namespace}


def over_http(method: str, path: str, **options: Any) -> Callable[[ServerProcess, str, str], object]:
    def ask(server: ServerProcess, secret: str, namespace: str) -> object:
        with server.client(headers=headers(secret, namespace)) as client:
            reply = client.request(method, path.replace("NS", namespace), timeout=90, **options)
            return reply.status_code

    return ask


def over_tcp(server: ServerProcess, secret: str, namespace: str) -> object:
    with TcpClient(server.tcp_port) as client:
        client.socket.settimeout(90)
        if secret:
            client.ok("Auth", token=secret, namespace=namespace)
        return client.call("PULL", queue="q", timeout=WAIT_MS)["code"]


def over_websocket(server: ServerProcess, secret: str, namespace: str) -> object:
    with ear(server, additional_headers=headers(secret, namespace)) as socket:
        reply = socket.ask("PULL", queue="q", timeout=WAIT_MS)
        return reply.get("job") or reply.get("code")


def over_resp(*command: object) -> Callable[[ServerProcess, str, str], object]:
    def ask(server: ServerProcess, secret: str, namespace: str) -> object:
        with RespClient(server.resp_port) as client:
            client.socket.settimeout(90)
            if secret:
                client.call("AUTH", namespace, secret)
            # What comes behind it in the same turn is looked at again.
            client.socket.sendall(b"".join(_wire(each) for each in (command, ("PULL", "q"))))
            first, second = client.read(), client.read()
            assert isinstance(second, Refused), second
            return "unauthorized" if first is None or isinstance(first, Refused) else first

    return ask


def _wire(command: tuple[object, ...]) -> bytes:
    parts = [str(each).encode() for each in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts)


WAITS: dict[str, tuple[Callable[[ServerProcess, str, str], object], object]] = {
    "http pull": (over_http("GET", "/queues/q/jobs", params={"timeout": WAIT_MS}), 401),
    "http pull batch": (over_http("POST", "/queues/q/jobs/pull-batch", json={"count": 5, "timeout": WAIT_MS}), 401),
    "http messages": (over_http("GET", "/namespaces/NS/queues/q/messages", params={"wait_ms": 30_000}), 401),
    "http group": (
        over_http("POST", "/bulk/groups/g/claim", json={"epoch": 1, "queues": ["q"], "max": 5, "wait_ms": 30_000}),
        401,
    ),
    "tcp pull": (over_tcp, "unauthorized"),
    "websocket pull": (over_websocket, "unauthorized"),
    "resp pull": (over_resp("PULL", "q", "WAIT", WAIT_MS), "unauthorized"),
    "resp receive": (over_resp("RECEIVE", "q", "WAIT", WAIT_MS), "unauthorized"),
}


class Waiting:
    """Something that waits, in a thread of its own."""

    def __init__(self, ask: Callable[[ServerProcess, str, str], object], *arguments: Any) -> None:
        self.answers: list[object] = []
        self.thread = threading.Thread(target=lambda: self.answers.append(ask(*arguments)), daemon=True)
        self.thread.start()

    def ended(self) -> object:
        self.thread.join(ENDS_WITHIN_S)
        assert not self.thread.is_alive(), "it still waits"
        assert self.answers, "it failed"
        return self.answers[0]


def blocked(server: ServerProcess) -> int:
    """Return how many callers wait for jobs."""
    with RespClient(server.resp_port) as root:
        root.call("AUTH", "root-key")
        return int(root.call("INFO").partition(b"blocked_clients:")[2].split()[0])


def until_blocked(server: ServerProcess, before: int) -> None:
    """Return when one more caller waits for jobs than before."""
    while blocked(server) <= before:
        time.sleep(0.01)


@pytest.mark.parametrize("kind", WAITS)
def test_a_wait_ends_with_its_key(guarded: ServerProcess, kind: str) -> None:
    ask, refused = WAITS[kind]
    namespace = kind.replace(" ", "-")
    with guarded.client() as client:
        shown = ROOT | {"X-Namespace": namespace}
        made = key_for(client, namespace)
        before = blocked(guarded)
        waiting = Waiting(ask, guarded, made["secret"], namespace)
        until_blocked(guarded, before)
        assert client.delete(f"/keys/{made['key']['id']}", headers=ROOT).status_code == 200
        assert waiting.ended() == refused
        pushed = client.post("/queues/q/jobs", json={"data": 1}, headers=shown).json()
        job = client.get("/queues/q/jobs", headers=shown).json()["job"]
        assert (job["id"], job["attempts"]) == (pushed["id"], 0)


@pytest.mark.parametrize("kind", ["end", "held"])
def test_a_wait_for_what_happens_to_a_job_ends_with_its_key(guarded: ServerProcess, kind: str) -> None:
    namespace = f"job-{kind}"
    with guarded.client() as client:
        made = key_for(client, namespace)
        shown = headers(made["secret"], namespace)
        client.post("/queues/q/jobs", json={"data": 1}, headers=shown)
        pulled = client.get("/queues/q/jobs", headers=shown).json()
        job_id = pulled["job"]["id"]
        held = {"ids": [job_id], "tokens": [pulled["token"]], "timeout": 30_000}
        if kind == "held":
            ask = over_http("POST", "/jobs/held-batch", json=held)
        else:
            ask = over_http("POST", f"/jobs/{job_id}/wait", json={"timeout": WAIT_MS})
        waiting = Waiting(ask, guarded, made["secret"], namespace)
        for _ in range(50):  # it has arrived by then; if it has not, it is refused all the same
            client.get("/health")
        assert client.delete(f"/keys/{made['key']['id']}", headers=ROOT).status_code == 200
        assert waiting.ended() == 401


@pytest.mark.skipif(stores.chosen() == "sqlite", reason="while a server runs on it, nobody makes a first key in its file")
def test_a_wait_ends_when_the_first_key_is_made(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        waits = [Waiting(WAITS[kind][0], server, "", "default") for kind in ("http pull", "tcp pull", "resp pull")]
        with RespClient(server.resp_port) as asks:
            while b"blocked_clients:3" not in asks.call("INFO"):
                time.sleep(0.01)
        command = [sys.executable, "-m", "penstock", "keys", "create", "--namespace", "*", "--role", "admin"]
        subprocess.run(command, env=server.env, check=True, capture_output=True, timeout=60)
        assert [wait.ended() for wait in waits] == [401, "unauthorized", "unauthorized"]


def test_a_wait_ends_with_its_json_web_token(tmp_path: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    env = {"JWT_SECRET": secret, "JWT_LEEWAY_MS": "0"}
    with ServerProcess(tmp_path / "data", env=env) as server:
        claims = {"sub": "worker", "scopes": ["default:admin"], "exp": int(time.time()) + 4}
        token = jwt.encode(claims, secret, algorithm="HS256")

        def ask(running: ServerProcess, shown: str, _namespace: str) -> object:
            with running.client(headers={"Authorization": f"Bearer {shown}"}) as client:
                return client.get("/queues/q/jobs", params={"timeout": WAIT_MS}, timeout=90).status_code

        assert Waiting(ask, server, token, "default").ended() == 401
