"""Who may do what, over real sockets: HTTP, TCP, WebSocket, SSE; with secrets, keys and key sets."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.access.authenticator import Authenticator
from penstock.access.identity import WORDS, Right
from penstock.access.jwt import TokenRules, Verifier
from penstock.access.jwt_keys import KeyRing, secret_key
from penstock.core.clock import ManualClock, SystemClock, yield_to_loop
from penstock.core.job import JobSpec
from penstock.core.queue import QueueKey
from penstock.doors import permissions
from penstock.doors.jobs.event_hub import EventHub
from penstock.doors.jobs.session import JobsSession
from penstock.doors.jobs.tcp import TcpListener
from penstock.doors.websocket import Closing
from penstock.engine.jobs.push import Push
from penstock.outbound.fetch import Fetcher, NotFetched
from penstock.outbound.guard import Guard
from tests.doors.listen import ear, stream
from tests.support.curl import CurlStream, needs_curl
from tests.support.issuer import SECRET, confused, forged, jwk, jwks, public_pem, rsa_key, token
from tests.support.receiver import Receiver
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient, all_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "key.pem").write_bytes(public_pem(rsa_key()))
    env = {
        "JWT_SECRET": SECRET,
        "JWT_KEY_FILE": str(folder / "key.pem"),
        "AUTH_TOKENS": "static",
        "NAMESPACE_QUOTAS": "small:2, other:100, tiny:2, tinier:1",
    }
    with ServerProcess(folder / "data", env=env) as running:
        yield running


@pytest.fixture
def client(guarded: ServerProcess) -> Iterator[httpx2.Client]:
    with guarded.client() as opened:
        yield opened


def bearer(shown: str, namespace: str | None = None, header: str = "Authorization") -> dict[str, str]:
    return {header: f"Bearer {shown}"} | ({} if namespace is None else {"X-Namespace": namespace})


# HTTP.


@pytest.mark.parametrize("header", ["Authorization", "Authorisation", "authorisation"])
@pytest.mark.parametrize("kind", ["HS256", "RS256", "static"])
def test_a_token_opens_the_door(client: httpx2.Client, kind: str, header: str) -> None:
    shown = {"HS256": token(), "RS256": token(rsa_key(), "RS256"), "static": "static"}[kind]
    for path in ("/stats", "/queues", "/heapstats"):
        assert client.get(path, headers=bearer(shown, header=header)).status_code == 200
    assert client.get("/stats", headers={header: shown}).status_code == 200


@pytest.mark.parametrize(
    "shown",
    [
        forged({"alg": "none"}, {"sub": "a", "exp": 9_999_999_999}),
        confused(public_pem(rsa_key()), {"sub": "a", "exp": 9_999_999_999}),
        token("another secret that is long enough to be one"),
        token(rsa_key(1), "RS256"),
        "garbage",
        "a.b.c",
        "x" * 9_000,
    ],
    ids=["none", "confusion", "secret", "key", "garbage", "dots", "huge"],
)
def test_forged_tokens_open_nothing(guarded: ServerProcess, client: httpx2.Client, shown: str) -> None:
    for path in ("/stats", "/queues", "/nope"):
        response = client.get(path, headers=bearer(shown))
        assert (response.status_code, response.json()["error"]) == (401, "Unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["penstock-error"] == "unauthorized"
    with TcpClient(guarded.tcp_port) as tcp:
        assert tcp.refused("Auth", token=shown) == "Invalid token"
        assert tcp.refused("Ping") == "Not authenticated"
    with pytest.raises(InvalidStatus) as refused, ear(guarded, additional_headers=bearer(shown)):
        pass
    assert refused.value.response.status_code == 401
    with ear(guarded) as socket:
        assert socket.ask("Auth", token=shown) == {"ok": False, "error": "Invalid token", "code": "unauthorized"}


def test_a_token_that_is_over_is_told_so(guarded: ServerProcess, client: httpx2.Client) -> None:
    for claims, words in (
        ({"exp": 1_000_000_000}, "The token has expired. Get a new one."),
        ({"nbf": 9_999_999_998}, "The token is not valid yet. Check the clocks, or wait."),
        ({"exp": None}, "The token has no claim exp. Request one from the issuer."),
    ):
        response = client.get("/stats", headers=bearer(token(**claims)))
        assert (response.status_code, response.json()["error"]) == (401, words)
        with TcpClient(guarded.tcp_port) as tcp:
            assert tcp.refused("Auth", token=token(**claims)) == words


def test_a_token_is_held_to_its_namespaces(client: httpx2.Client) -> None:
    mine = token(allowed_namespaces=["mine"])
    push: dict[str, Any] = {"json": {"data": 1}}
    assert client.post("/queues/q/jobs", headers=bearer(mine, "mine"), **push).status_code == 200
    for namespace in ("yours", None, "*", "mine2", "Mine", ""):
        response = client.post("/queues/q/jobs", headers=bearer(mine, namespace), **push)
        assert response.status_code == 403, namespace
        assert response.headers["penstock-error"] == "forbidden"
        assert "It needs the scope" in response.json()["error"]
    for path in ("/stats", "/metrics", "/heapstats", "/storage", "/prometheus"):
        assert client.get(path, headers=bearer(mine, "mine")).status_code == 403
    for path in ("/ping", "/health"):
        assert client.get(path, headers=bearer(mine, "yours")).status_code == 200
    assert client.get("/nope", headers=bearer(mine)).status_code == 404


def test_a_token_is_held_to_its_scopes(client: httpx2.Client) -> None:
    tries: dict[str, tuple[str, str, dict[str, Any]]] = {
        "push": ("POST", "/queues/scoped/jobs", {"json": {"data": 1}}),
        "pull": ("GET", "/queues/scoped/jobs", {}),
        "ack": ("POST", "/jobs/ack-batch", {"json": {"ids": []}}),
        "look": ("GET", "/queues/scoped/counts", {}),
        "admin": ("POST", "/queues/scoped/drain", {}),
        "hook": ("GET", "/webhooks", {}),
    }
    for scope, allowed in {
        "read": {"pull", "look"},
        "write": {"push", "ack"},
        "produce": {"push", "look"},
        "consume": {"pull", "ack", "look"},
        "admin": set(tries),
        "*": set(tries),
        "unheard-of": set[str](),
    }.items():
        shown = bearer(token(scopes=[f"s:{scope}"]), "s")
        done = {
            name
            for name, (method, path, more) in tries.items()
            if client.request(method, path, headers=shown, **more).status_code != 403
        }
        assert done == allowed, scope


def test_a_namespace_that_cannot_be_one_is_refused_as_before(client: httpx2.Client) -> None:
    assert client.get("/queues", headers=bearer("static", "no spaces")).status_code == 400
    assert client.get("/queues", headers=bearer(token(allowed_namespaces=["a"]), "no spaces")).status_code == 403


def test_every_route_and_every_command_has_its_right(guarded: ServerProcess, client: httpx2.Client) -> None:
    document = client.get("/openapi.json").json()
    routes = {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if operation.get("security") != []
    }
    listed = [name for names in permissions.ROUTES.values() for name in names]
    assert len(listed) == len(set(listed))
    assert routes | {"GET /prometheus"} == set(listed)
    commands = [name for names in permissions.COMMANDS.values() for name in names]
    assert len(commands) == len(set(commands))
    assert set(all_commands()) == set(commands)
    assert set(commands) >= permissions.EVERYWHERE
    assert document["paths"]["/queues/{queue}/jobs"]["get"]["x-right"] == "take"
    assert document["components"]["securitySchemes"]["token"]["bearerFormat"] == "JWT"


_WHERE = {"namespace": "b", "topic": "t"}
_BATCHES: dict[str, dict[str, Any]] = {
    "POST /enqueue": {"json": [_WHERE]},
    "GET /dequeue": {"params": _WHERE},
    "POST /ack": {"json": {**_WHERE, "id": 1}},
    "POST /nack": {"json": {**_WHERE, "id": 1}},
    "POST /heartbeat": {"json": {**_WHERE, "id": 1}},
    "GET /dlq": {"params": _WHERE},
    "POST /dlq/delete": {"json": {**_WHERE, "id": 1}},
    "GET /topics": {"params": {"namespace": "b"}},
}


@pytest.mark.parametrize("word", ["read", "write", "produce", "consume", "admin"])
def test_the_batches_door_asks_for_the_rights_that_are_listed(client: httpx2.Client, word: str) -> None:
    needed = {name: right for right, names in permissions.ROUTES.items() for name in names}
    for name, call in _BATCHES.items():
        method, path = name.split()
        for scope, may in ((f"b:{word}", needed[name] & WORDS[word] == needed[name]), (f"other:{word}", False)):
            # X-Namespace says nothing here.
            answer = client.request(method, path, **call, headers=bearer(token(scopes=[scope]), "other"))
            assert (answer.status_code != 403) is may, f"{name} with {scope}"
            assert may or "It needs the scope 'b:" in answer.text
    assert client.get("/topics", params={"namespace": "b"}).status_code == 401


def test_messages_need_the_right_in_the_namespace_of_each(client: httpx2.Client) -> None:
    both = [{"namespace": "one", "topic": "t"}, {"namespace": "two", "topic": "t"}]
    assert client.post("/enqueue", json=both, headers=bearer(token(scopes=["one:write"]))).status_code == 403
    assert client.get("/topics", params={"namespace": "one"}, headers=bearer("static")).json() == []
    assert client.post("/enqueue", json=both, headers=bearer(token(scopes=["one:write", "two:write"]))).status_code == 200


# Quotas.


def test_a_quota_is_for_jobs_and_answers_429(guarded: ServerProcess, client: httpx2.Client) -> None:
    shown = bearer("static", "small")
    assert client.post("/queues/q/jobs", json={"data": 1}, headers=shown).status_code == 200
    full = client.post("/queues/q/jobs/bulk", json={"jobs": [{"data": 1}, {"data": 2}]}, headers=shown)
    assert full.status_code == 429
    assert 1 <= int(full.headers["retry-after"]) <= 60
    assert full.headers["penstock-error"] == "quota_exceeded"
    assert full.json()["error"].startswith("namespace small exceeded quota of 2 enqueues/minute. Retry in ")
    large = client.post("/queues/q/jobs/bulk", json={"jobs": [{"data": n} for n in range(3)]}, headers=shown)
    assert (large.status_code, large.json()["error"]) == (
        400, "namespace small has a quota of 2 enqueues/minute; send fewer than 3 at once",
    )  # fmt: skip
    with TcpClient(guarded.tcp_port) as tcp:
        tcp.ok("Auth", token="static", namespace="small")
        tcp.ok("PUSH", queue="q", data=2)
        assert "exceeded quota of 2" in tcp.refused("PUSH", queue="q", data=3)
        assert len(tcp.ok("PULLB", queue="q", count=5)["jobs"]) == 2
    for _ in range(5):
        assert client.post("/queues/q/jobs", json={"data": 1}, headers=bearer("static")).status_code == 200


def test_a_quota_counts_messages_of_each_namespace(client: httpx2.Client) -> None:
    def enqueue(*namespaces: str) -> httpx2.Response:
        return client.post(
            "/enqueue", json=[{"namespace": each, "topic": "t"} for each in namespaces], headers=bearer("static")
        )

    assert enqueue("tiny", "tinier", "free").status_code == 200
    full = enqueue("tiny", "tinier")
    assert (full.status_code, full.headers["penstock-error"]) == (429, "quota_exceeded")
    assert full.text.startswith("namespace tinier exceeded quota of 1 enqueues/minute. Retry in ")
    assert enqueue("tiny", "free", "tiny", "tiny").status_code == 400
    assert enqueue("tiny").status_code == 200, "what was refused was not counted"
    assert enqueue("tiny").status_code == 429


async def test_without_optional_stages_a_command_is_given_to_the_batcher_at_once(engine: Engine) -> None:
    assert engine.run == engine._batcher.submit


# TCP.


def test_a_tcp_client_shows_a_token_and_chooses_its_namespace(guarded: ServerProcess) -> None:
    with TcpClient(guarded.tcp_port) as tcp:
        tcp.ok("Auth", token=token(scopes=["mine:produce"]))
        assert "the namespace 'default'" in tcp.refused("PUSH", queue="q", data=1)
        assert "invalid characters" in tcp.refused("Auth", token="static", namespace="no spaces")
        tcp.ok("Auth", token=token(scopes=["mine:produce"]), namespace="mine")
        tcp.ok("PUSH", queue="tcp", data=1)
        assert "'mine:consume'" in tcp.refused("PULL", queue="tcp")
        assert "the whole server" in tcp.refused("Stats")
        tcp.ok("Ping")
        tcp.ok("Auth", token=token(scopes=["mine:*"]))
        assert tcp.ok("PULL", queue="tcp")["job"]["data"] == 1
        assert "before the first command" in tcp.refused("Auth", token="static", namespace="default")


def test_what_is_sent_right_behind_an_auth_counts_as_after_it(guarded: ServerProcess) -> None:
    with TcpClient(guarded.tcp_port) as tcp:
        tcp.send("Auth", token=token(), reqId=1)
        tcp.send("Ping", reqId=2)
        assert [tcp.read()["ok"], tcp.read()["ok"]] == [True, True]


async def test_an_auth_that_must_wait_for_keys_holds_back_what_follows(engine: Engine, clock: ManualClock) -> None:
    fetched: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    authenticator = Authenticator(clock, (), Verifier(clock, KeyRing(clock, (), lambda: fetched), TokenRules()))
    session = JobsSession(all_commands(engine), authenticator)
    shown = token(rsa_key(), "RS256", kid="a")
    auth = asyncio.ensure_future(session.handle({"cmd": "Auth", "token": shown, "namespace": "mine"}))
    push = asyncio.ensure_future(session.handle({"cmd": "Count", "queue": "q"}))
    await yield_to_loop()
    assert not push.done()
    fetched.set_result(jwks(jwk(rsa_key(), "a")))
    assert (await auth)["ok"] is True
    assert (await push)["ok"] is True
    assert session.namespace == "mine"
    await authenticator.close()


def authenticator_by(clock: ManualClock) -> Authenticator:
    return Authenticator(clock, ["static"], Verifier(clock, KeyRing(clock, [secret_key(SECRET)]), TokenRules()))


async def test_a_session_whose_token_ended_does_nothing_until_it_shows_another(engine: Engine, clock: ManualClock) -> None:
    listener = TcpListener(all_commands(engine), authenticator_by(clock), clock)
    await listener.start("127.0.0.1", 0)

    def talk() -> TcpClient:
        tcp = TcpClient(listener.port)
        tcp.ok("Auth", token=token(exp=clock.now_ms() // 1_000 + 10))
        tcp.push("held")
        tcp.ok("PULL", queue=tcp.queue)
        return tcp

    tcp = await asyncio.to_thread(talk)
    await clock.advance(10_000)
    words = "The token has expired. Get a new one, and send it with Auth."
    assert await asyncio.to_thread(tcp.refused, "PULL", queue=tcp.queue) == words
    await asyncio.to_thread(tcp.ok, "Auth", token=token())
    counts = await asyncio.to_thread(tcp.ok, "GetJobCounts", queue=tcp.queue)
    assert counts["counts"]["active"] == 1  # what it held, it still holds
    tcp.socket.close()
    await listener.stop()


async def test_events_of_a_queue_end_with_the_token_unless_another_was_shown(engine: Engine, clock: ManualClock) -> None:
    listener = TcpListener(all_commands(engine), authenticator_by(clock), clock, hub=EventHub(engine.feed, clock))
    await listener.start("127.0.0.1", 0)

    def subscribe(renew: bool) -> TcpClient:
        tcp = TcpClient(listener.port, "watched")
        tcp.ok("Auth", token=token(exp=clock.now_ms() // 1_000 + 10))
        tcp.ok("SubscribeEvents", queue="watched")
        if renew:
            tcp.ok("Auth", token=token())
        return tcp

    ends, goes_on = await asyncio.to_thread(subscribe, False), await asyncio.to_thread(subscribe, True)
    await clock.advance(10_000)
    words = "The token has expired. Get a new one, and send it with Auth."
    assert (await asyncio.to_thread(ends.read))["error"] == words
    assert await asyncio.to_thread(ends.read) is None
    await asyncio.to_thread(goes_on.ok, "Ping")
    await engine.run(Push(QueueKey("default", "watched"), [JobSpec(b"1")]))
    assert (await asyncio.to_thread(goes_on.read))["event"]["eventType"] == "pushed"
    for each in (ends, goes_on):
        each.socket.close()
    await listener.stop()
    assert not engine.feed.has_listeners


# WebSocket and SSE.


def test_a_websocket_is_about_its_namespace_and_held_to_its_token(guarded: ServerProcess, client: httpx2.Client) -> None:
    with ear(guarded, additional_headers=bearer(token(scopes=["w:admin"]), "w")) as mine:
        assert mine.ask("PUSH", queue="wq", data=1)["ok"] is True
        assert client.get("/queues/wq/count", headers=bearer("static", "w")).json()["count"] == 1
        assert "the whole server" in mine.ask("Stats")["error"]
    with ear(guarded, additional_headers=bearer(token(scopes=["w:produce", "v:*"]), "v")) as moved:
        assert moved.ask("Auth", token=token(scopes=["w:produce"]), namespace="w")["ok"] is True
        assert moved.ask("Subscribe", events=["job:pushed"])["ok"] is True
        client.post("/queues/vq/jobs", json={"data": 1}, headers=bearer("static", "v"))
        client.post("/queues/wq/jobs", json={"data": 1}, headers=bearer("static", "w"))
        assert moved.until("job:pushed")["queue"] == "wq"
        assert not any("vq" in json.dumps(each) for each in moved.skipped if each.get("event") == "job:pushed")
    with ear(guarded, additional_headers=bearer(token(scopes=["w:write"]), "w")) as blind:
        assert "'w:read'" in blind.ask("Subscribe", events=["job:pushed"])["error"]
        assert blind.ask("PUSH", queue="wq", data=2)["ok"] is True
        assert blind.ask("Ping")["ok"] is True
        assert blind.skipped == []


def soon() -> int:
    return int(time.time()) + 2


def test_a_websocket_ends_with_its_token_unless_it_is_renewed(guarded: ServerProcess) -> None:
    with ear(guarded, additional_headers=bearer(token(exp=soon()))) as short, ear(guarded) as renewed:
        assert renewed.ask("Auth", token=token(exp=soon()))["ok"] is True
        assert renewed.ask("Auth", token=token())["ok"] is True
        assert short.receive() == {"ok": False, "error": "The token has expired", "code": "unauthorized"}
        with pytest.raises(ConnectionClosed) as closed:
            short.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == Closing.NOT_ALLOWED
        assert renewed.ask("Ping")["ok"] is True


def test_an_event_stream_ends_with_its_token(client: httpx2.Client) -> None:
    with stream(client, headers=bearer(token(exp=soon()))) as listening, pytest.raises(EOFError):
        listening.message()


def test_an_event_stream_needs_the_right_to_look(client: httpx2.Client) -> None:
    assert client.get("/events", headers=bearer(token(scopes=["default:write"]))).status_code == 403
    with stream(client, headers=bearer(token(scopes=["default:read"]))):
        pass


@needs_curl
def test_a_subscription_ends_with_its_token_and_gives_its_message_back(
    guarded: ServerProcess, client: httpx2.Client
) -> None:
    for message in (b"1", b"2"):
        assert client.post("/publish/ends", content=message, headers=bearer("static")).status_code == 201
    shown = bearer(token(exp=soon()))["Authorization"]
    with CurlStream(f"{guarded.url}/subscribe/ends", "-H", f"Authorization: {shown}") as subscriber:
        assert subscriber.get("INIT") == b"1"
        while client.get("/queues/ends/counts", headers=bearer("static")).json()["counts"]["active"]:
            time.sleep(0.01)
        assert subscriber.rest() == []
    with CurlStream(f"{guarded.url}/subscribe/ends", "-H", "Authorization: Bearer static") as subscriber:
        assert subscriber.get("INIT") == b"1"


@pytest.mark.parametrize(
    ("scope", "may"), [("t:consume", True), ("t:produce", False), ("t:read", False), ("u:consume", False)]
)
def test_a_subscription_needs_the_rights_of_a_consumer(client: httpx2.Client, scope: str, may: bool) -> None:
    answer = client.post("/subscribe/any", content=b"", headers=bearer(token(scopes=[scope]), "t"))
    assert (answer.status_code == 200) is may
    assert may or answer.status_code == 403


# Key sets.


def document(body: bytes, *headers: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", *headers, "", "")).encode() + body


KEYS = jwks(jwk(rsa_key(), "a"))


@pytest.mark.parametrize(
    "reply",
    [
        document(KEYS, f"Content-Length: {len(KEYS)}"),
        document(b"%x\r\n%s\r\n5;x=y\r\n     \r\n0\r\n\r\n" % (len(KEYS), KEYS), "Transfer-Encoding: chunked"),
    ],
    ids=["length", "chunks"],
)
async def test_a_key_set_is_fetched_over_http(reply: bytes) -> None:
    clock = SystemClock()
    async with Receiver(reply) as receiver:
        fetch = Fetcher(clock, Guard(["127.0.0.1"]), receiver.url, timeout_ms=20_000, bytes_max=10_000)
        authenticator = Authenticator(clock, (), Verifier(clock, KeyRing(clock, (), fetch), TokenRules()))
        assert (await authenticator.identify(token(rsa_key(), "RS256", kid="a"))).may("x", Right.ADMIN)
    assert receiver.requests[0].line == "GET /hook HTTP/1.1"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (document(b"", "Content-Length: 20000"), "too large"),
        (document(b"", "Content-Length: -5"), "too large"),
        (document(b"", "Content-Length: x"), "invalid literal"),
        (document(b"fffff\r\n", "Transfer-Encoding: chunked"), "too large"),
        (document(b"\r\n", "Transfer-Encoding: chunked"), "invalid literal"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", "the answer was 302"),
        (b"SSH-2.0-x\r\n", "not HTTP"),
    ],
)  # fmt: skip
async def test_a_bad_answer_gives_no_keys(reply: bytes, reason: str) -> None:
    async with Receiver(reply) as receiver:
        fetch = Fetcher(SystemClock(), Guard(["127.0.0.1"]), receiver.url, timeout_ms=20_000, bytes_max=10_000)
        with pytest.raises(NotFetched, match=reason):
            await fetch()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://127.0.0.1/keys", "cannot point to loopback"),
        ("https://metadata.google.internal/", "cannot point to cloud metadata"),
        ("http://93.184.216.34/keys", "plain http"),
    ],
)
async def test_a_key_set_is_fetched_by_the_rules_of_webhooks(url: str, reason: str) -> None:
    fetch = Fetcher(SystemClock(), Guard(), url, timeout_ms=20_000, bytes_max=10_000)
    with pytest.raises(NotFetched, match=reason):
        await fetch()


async def test_a_server_that_cannot_have_its_keys_says_so(tmp_path: Path) -> None:
    async with Receiver(document(b"{}", "Content-Length: 2"), document(KEYS, f"Content-Length: {len(KEYS)}")) as receiver:
        env = {"JWT_JWKS": receiver.url, "WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}
        running = ServerProcess(tmp_path / "data", env=env)
        await asyncio.to_thread(running.start)
        try:
            async with running.async_client() as client:
                response = await client.get("/stats", headers=bearer(token(rsa_key(), "RS256", kid="a")))
                assert (response.status_code, response.headers["penstock-error"]) == (503, "keys_unavailable")
                assert response.headers["retry-after"] == "1"
        finally:
            await asyncio.to_thread(running.stop)


def start_error(tmp_path: Path, **env: str) -> str:
    with pytest.raises(AssertionError) as caught:
        ServerProcess(tmp_path / "data", env=env).start()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("JWT_SECRET", "too short", "jwt_secret cannot be used: expected at least 32 bytes"),
        ("JWT_KEY_FILE", "/nowhere/key.pem", "cannot be read: No such file or directory"),
        ("JWT_JWKS", "/nowhere/keys.json", "cannot be read: No such file or directory"),
        ("JWT_JWKS", "https://10.0.0.1/keys", "cannot be used: it cannot point to private IP"),
        ("NAMESPACE_QUOTAS", "acme", "expected NAMESPACE:NUMBER"),
    ],
)
def test_keys_and_quotas_that_cannot_be_used_stop_the_start(tmp_path: Path, name: str, value: str, words: str) -> None:
    error = start_error(tmp_path, **{name: value})
    assert words in error
    assert "too short" not in error  # a secret is never shown


def test_the_table_of_an_open_server_asks_nobody(clock: ManualClock) -> None:
    authenticator = Authenticator(clock)
    session = JobsSession(all_commands(), authenticator)
    assert session.identity is authenticator.open_identity
    session.check(Right.ADMIN, everywhere=True)


def test_an_entry_knows_its_right() -> None:
    table: Any = all_commands()
    assert (table["PUSH"].right, table["PULL"].right, table["Stats"].everywhere) == (Right.PRODUCE, Right.TAKE, True)
