"""The page on who may do what: its commands run, and what it shows is what is answered."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import jwt

from tests.docs.blocks import runs
from tests.docs.shell import Terminal, commands, put
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "0123456789abcdef0123456789abcdef"


@runs("docs/access.md", "sh 1")
def test_keys(blocks: list[str], tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    create, listing, revoke = commands(blocks[0])
    secret = terminal.run(create).strip()
    assert "web shop" in terminal.run(listing)
    with (
        ServerProcess(tmp_path / "data") as server,
        server.client(headers={"X-Api-Key": secret, "X-Namespace": "acme"}) as shop,
    ):
        assert shop.post("/queues/orders/jobs", json={"data": 1}).status_code == 200
        assert shop.get("/queues/orders/jobs").status_code == 403
    key_id = secret.split("_")[1]
    terminal.run(put(revoke, {"5f0c2a9b71e4": key_id}))
    assert "REVOKED" in terminal.run(listing)


@runs("docs/access.md", "json 1", "json 2")
def test_claims_and_scopes(blocks: list[str], tmp_path: Path) -> None:
    claims, refused = map(json.loads, blocks)
    with ServerProcess(tmp_path / "data", env={"JWT_SECRET": SECRET}) as server:

        def ask(namespace: str, method: str, path: str, **claimed: object) -> tuple[int, object]:
            token = jwt.encode(claims | claimed, SECRET, "HS256")
            headers = {"X-Namespace": namespace, "Authorization": f"Bearer {token}"}
            with server.client(headers=headers) as client:
                reply = client.request(method, path, json={"data": 1} if method == "POST" else None)
                return reply.status_code, reply.json()

        jobs = "/queues/q/jobs"
        assert [ask("acme", method, jobs)[0] for method in ("POST", "GET")] == [200, 200]
        assert [ask("reports", method, jobs)[0] for method in ("POST", "GET")] == [403, 200]
        assert ask("elsewhere", "GET", jobs)[0] == 403
        assert ask("acme", "GET", jobs, scopes=["acme:produce"]) == (403, refused)


@runs("docs/access.md", "json 3")
def test_quotas(blocks: list[str], tmp_path: Path) -> None:
    shown = json.loads(blocks[0])
    with (
        ServerProcess(tmp_path / "data", env={"NAMESPACE_QUOTAS": "acme:1000"}) as server,
        server.client(headers={"X-Namespace": "acme"}) as client,
    ):
        full = {"jobs": [{"data": n} for n in range(1_000)]}
        assert client.post("/queues/q/jobs/bulk", json=full).status_code == 200
        refused = client.post("/queues/q/jobs", json={"data": 1})
    assert refused.status_code == 429
    seconds = re.compile(r"in \d+ s")
    assert seconds.sub("", refused.json()["error"]) == seconds.sub("", shown["error"])
    assert set(refused.json()) == set(shown)


@runs("docs/access.md", "sh 2")
def test_a_certificate_for_developing(blocks: list[str], tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--dev-cert") as server:
        said = Terminal(tmp_path, server.port).run(blocks[0])
    assert json.loads(said)["status"] == "healthy"
