"""JSON Web Tokens of an issuer who has never heard of Penstock: a good signature alone must open nothing."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from websockets.sync.client import connect

from tests.support.issuer import SECRET, jwk, jwks, rsa_key, token
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Claims of tokens as identity providers issue them for other programs, and ones that are wrong.
NOTHING: list[dict[str, Any]] = [
    {},
    {"scopes": None},
    {"roles": ["admin"]},
    {"role": "admin", "groups": ["admins"], "permissions": ["*:*"]},
    {"realm_access": {"roles": ["admin"]}},
    {"scope": "openid profile email"},
    {"scp": ["User.Read"]},
    {"scope": "acme:read"},
    {"allowed_namespaces": []},
]
WRONG: list[tuple[str, Any]] = [
    ("scope", 7), ("scopes", {"*": "admin"}), ("scopes", [["*:admin"]]), ("scp", True), ("scopes", [":admin"]),
    ("allowed_namespaces", [""]), ("allowed_namespaces", [None]), ("scope", ":*"),
]  # fmt: skip


@pytest.fixture(scope="module")
def batches() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, batches: int) -> Iterator[ServerProcess]:
    env = {"JWT_SECRET": SECRET}
    with ServerProcess(tmp_path_factory.mktemp("jwt") / "data", "--batches", f"127.0.0.1:{batches}", env=env) as running:
        yield running


def shown(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**({'scopes': None} | claims))}"}


def frame(server: ServerProcess, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """Send commands over TCP, and return their answers."""
    answers: list[dict[str, Any]] = []
    with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=20) as link, link.makefile("rb") as stream:
        for command in commands:
            body = msgspec.msgpack.encode(command)
            link.sendall(len(body).to_bytes(4) + body)
            answers.append(msgspec.msgpack.decode(stream.read(int.from_bytes(stream.read(4)))))
    return answers


@pytest.mark.parametrize("claims", NOTHING)
def test_a_token_without_our_claims_may_do_nothing(server: ServerProcess, batches: int, claims: dict[str, Any]) -> None:
    with server.client(headers=shown(**claims)) as client:
        for method, path, body in (
            ("POST", "/queues/q/jobs", {"data": 1}),
            ("GET", "/queues/q/jobs", None),
            ("GET", "/stats", None),
            ("POST", "/queues/q/obliterate", None),
            ("POST", "/webhooks", {"url": "https://hooks.example/x", "events": ["job.completed"]}),
            ("POST", "/keys", {"namespaces": ["*"], "roles": ["admin"]}),
            ("GET", "/events", None),
            ("GET", "/prometheus", None),
        ):
            refused = client.request(method, path, json=body)
            assert (refused.status_code, refused.headers["penstock-error"]) == (403, "forbidden"), (path, refused.text)
        for method, path in (("GET", "/dequeue?namespace=default&topic=t"), ("GET", "/dlq?namespace=default&topic=t")):
            assert client.request(method, f"http://127.0.0.1:{batches}{path}").status_code == 403


def test_the_same_over_tcp_the_redis_protocol_and_websockets(server: ServerProcess) -> None:
    text = token(scopes=None, roles=["admin"])
    admitted, pushed = frame(server, {"cmd": "Auth", "token": text}, {"cmd": "PUSH", "queue": "q", "data": 1})
    assert (admitted["ok"], pushed["ok"], pushed["code"]) == (True, False, "forbidden")
    with socket.create_connection(("127.0.0.1", server.resp_port), timeout=20) as link, link.makefile("rb") as stream:
        link.sendall(f"AUTH {text}\r\nPUSH q x\r\nPULL q\r\n".encode())
        assert stream.readline() == b"+OK\r\n"
        assert [stream.readline().split()[0] for _ in range(2)] == [b"-NOPERM", b"-NOPERM"]
    with connect(f"ws://127.0.0.1:{server.port}/ws", additional_headers=shown(scp="User.Read")) as opened:
        opened.send(json.dumps({"cmd": "PULL", "queue": "q"}))
        assert json.loads(opened.recv(timeout=20))["code"] == "forbidden"


@pytest.mark.parametrize("audience", ["", [""], [], "other"])
def test_a_token_for_any_audience_is_refused_without_jwt_audience(server: ServerProcess, audience: Any) -> None:
    with server.client(headers=shown(scopes=["*:admin"], aud=audience)) as client:
        refused = client.get("/queues")
        assert (refused.status_code, refused.headers["penstock-error"]) == (401, "unauthorized")
        assert "audience" in refused.json()["error"]


def test_a_padded_token_is_refused(server: ServerProcess) -> None:
    good = token(scopes=["*:admin"])
    with server.client() as client:
        assert client.get("/queues", headers={"Authorization": f"Bearer {good}"}).status_code == 200
        header, claims, signature = good.split(".")
        for bad in (f"{good}=", f"{header}.{claims}==.{signature}", f"{header}=.{claims}.{signature}"):
            assert client.get("/queues", headers={"Authorization": f"Bearer {bad}"}).status_code == 401, bad


def test_a_secret_has_no_name_so_a_token_may_name_any_key(server: ServerProcess) -> None:
    with server.client(headers={"Authorization": f"Bearer {token(scopes=['*:admin'], kid='whatever')}"}) as client:
        assert client.get("/queues").status_code == 200


def test_a_key_with_a_name_is_not_used_for_tokens_that_name_another_one(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(jwks(jwk(rsa_key(), "ours")))
    with (
        ServerProcess(tmp_path / "data", env={"JWT_JWKS": str(tmp_path / "keys.json")}) as running,
        running.client() as client,
    ):
        for kid, status in (("ours", 200), (None, 200), ("another", 401)):
            given = token(rsa_key(), "RS256", kid=kid)
            assert client.get("/queues", headers={"Authorization": f"Bearer {given}"}).status_code == status, kid


def test_scopes_of_oauth_are_read(server: ServerProcess) -> None:
    for claims in ({"scope": "openid acme:produce"}, {"scp": ["acme:produce"]}, {"scp": "acme:produce"}):
        with server.client(headers=shown(**claims) | {"X-Namespace": "acme"}) as client:
            assert client.post("/queues/q/jobs", json={"data": 1}).status_code == 200
            assert client.get("/queues/q/jobs").status_code == 403
            assert client.get("/queues/q/counts", headers={"X-Namespace": "other"}).status_code == 403


@pytest.mark.parametrize(("claim", "value"), WRONG)
def test_a_claim_of_the_wrong_type_is_named(server: ServerProcess, claim: str, value: Any) -> None:
    with server.client(headers=shown(**{claim: value})) as client:
        refused = client.get("/stats")
        assert (refused.status_code, f"claim {claim} " in refused.json()["error"]) == (401, True), refused.text


def test_rights_without_claims_are_a_setting(tmp_path: Path) -> None:
    env = {"JWT_SECRET": SECRET, "JWT_DEFAULT_SCOPES": "acme:produce"}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client(headers=shown()) as client:
        acme = {"X-Namespace": "acme"}
        assert client.post("/queues/q/jobs", json={"data": 1}, headers=acme).status_code == 200
        assert client.get("/queues/q/jobs", headers=acme).status_code == 403
        assert client.post("/queues/q/jobs", json={"data": 1}).status_code == 403
        assert client.post("/queues/q/jobs", json={"data": 1}, headers=acme | shown(scope="")).status_code == 403
