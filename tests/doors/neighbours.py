"""Two namespaces on one server: alpha, which is full of things, and beta, whose keys know everything about them but a key.

Everything in alpha has a name with ``zebra`` in it, or holds something with ``velvet`` in it. Names can be guessed, so the keys
of beta use them. What is in things cannot, so no answer to them ever has it.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core import ids
from penstock.doors.messages.rendering import ReceiptHandle, receipt_in
from penstock.lake.location import Lake
from penstock.lake.tables import BACKLOG, FAILURES, FLEET, LATENCY, MINUTES, TENANTS, WORKERS
from tests.support import lakes
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

#: What is in alpha's things, as text and as it begins in base64.
SECRETS = ("velvet", "dmVsdmV0")
OWNER, STRANGER, NOWHERE = "alpha", "beta", "omega"
#: Leases and visibility timeouts that outlast every test.
LONG_MS = 3_600_000
_HOUR = 3_600_000 << ids.TIME_SHIFT
_MADE_UP = (
    re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"),  # ids and tokens
    re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"),  # messages and receipts
    re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z"),
    re.compile(r"\b\d{12,19}\b"),  # moments, and ids as numbers
)


class Names(NamedTuple):
    """What somebody may know of a namespace, or make up."""

    namespace: str
    jobs: tuple[str, ...]  #: in each state, and their own ids
    token: str  #: the lease of one of them
    custom: str
    unique: str
    once: str  #: an idempotency key of the batches door
    message: str  #: one of the messages door
    queues: tuple[str, ...]
    topic: str
    items: tuple[int, ...]  #: jobs and messages, as the batches door calls them
    cron: str
    worker: str
    webhook: str
    subscription: str
    receipts: tuple[str, ...]  #: of a message, and of a dead letter
    key: str
    snapshot: str  #: of all its jobs, taken in bulk

    @property
    def queue(self) -> str:
        """The queue that has the most in it."""
        return self.queues[0]

    def made_up(self) -> Names:
        """Return names of the same shape that nobody has."""
        values: list[Any] = [tuple(map(_other, each)) if isinstance(each, tuple) else _other(each) for each in self]
        return Names(*values)


def _other(name: Any) -> Any:
    """Return something that is spelled as well as a name, and is none."""
    if isinstance(name, int):
        return name - _HOUR
    if (number := ids.from_uuid(name)) is not None:
        return ids.to_uuid(number - _HOUR)
    if (number := ids.from_ulid(name)) is not None:
        return ids.to_ulid(number - _HOUR)
    if len(name) == 26:
        receipt = receipt_in(name)
        return str(ReceiptHandle(receipt.id - _HOUR, receipt.token - _HOUR, receipt.dead))
    if re.fullmatch("[0-9a-f]{12}|[0-9a-f]{32}", name):
        return name[::-1]
    return name.replace("zebra", "okapi").replace(OWNER, NOWHERE)


def plain(answer: str) -> str:
    """Return an answer without what was made up for it, and without the names it was asked with."""
    for pattern in _MADE_UP:
        answer = pattern.sub("*", answer)
    for name in ("okapi", NOWHERE):
        answer = answer.replace(name, "zebra" if name == "okapi" else OWNER)
    return answer


class World:
    """A server with both namespaces. ``keys`` are those of beta, by what they are for."""

    def __init__(self, server: ServerProcess, ports: dict[str, int]) -> None:
        self.server = server
        self.ports = {"http": server.port, **ports}
        self._root = server.client(headers={"X-Api-Key": "root-key"})
        made = self.make_key(OWNER, "admin")
        self.owner_key: str = made["secret"]
        self.keys: dict[str, str] = {
            name: self.make_key(STRANGER, *roles)["secret"]
            for name, roles in (
                ("everything", ("admin", "produce", "consume")),
                ("produce", ("produce",)),
                ("consume", ("consume",)),
            )
        }
        self.owner = server.client(headers={"X-Api-Key": self.owner_key, "X-Namespace": OWNER})
        self.hidden: set[str] = set()  #: ids that keys of beta do not know
        self.names = self._furnish(made["key"]["id"])

    def make_key(self, namespace: str, *roles: str) -> Any:
        body = {"namespaces": [namespace], "roles": list(roles), "label": f"{'velvet' if namespace == OWNER else ''} key"}
        return self._root.post("/keys", json=body).raise_for_status().json()

    def close(self) -> None:
        self._root.close()
        self.owner.close()

    def clear(self) -> None:
        """Remove all queues of beta. The worker of alpha shows itself again: one that is silent for long is forgotten."""
        self._register()
        where = {"X-Namespace": STRANGER}
        for queue in self._root.get("/queues", headers=where).raise_for_status().json()["queues"]:
            self._root.post(f"/queues/{queue}/obliterate", headers=where).raise_for_status()
        assert self._root.delete(f"/namespaces/{STRANGER}").status_code in (204, 404)  # 404: there was none yet

    def port_client(self, listener: str, key: str) -> httpx2.Client:
        """Return a client of a listener that shows a key of beta."""
        client = self.server.client(headers={"X-Api-Key": self.keys[key]})
        client.base_url = f"http://127.0.0.1:{self.ports[listener]}"
        return client

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """Ask as the owner of alpha."""
        if body is not None:
            more["json"] = body
        reply = self.owner.request(method, path, **more)
        assert reply.is_success, f"{method} {path}: {reply.text}"
        return reply.json() if reply.content.startswith((b"{", b"[")) else reply.text

    # What is in alpha.

    def hide(self, name: str | int) -> None:
        """Keep in mind that nobody is told of a job whose id is not among the names, however it is spelled."""
        number = name if isinstance(name, int) else ids.from_uuid(name) or ids.from_ulid(name)
        assert number, name
        self.hidden |= {ids.to_uuid(number), ids.to_ulid(number), str(number)}

    def _push(self, queue: str, **options: Any) -> str:
        job_id: str = self.ask("POST", f"/queues/{queue}/jobs", {"data": {"is": "velvet"}, **options})["id"]
        return job_id

    def _pull(self, queue: str) -> tuple[str, str]:
        reply = self.ask("GET", f"/queues/{queue}/jobs", params={"lockTtl": LONG_MS, "owner": "velvet"})
        return reply["job"]["id"], reply["token"]

    def _register(self) -> None:
        worker = {"name": "velvet", "queues": ["zebra-jobs"], "workerId": "zebra-worker", "hostname": "velvet"}
        self.ask("POST", "/workers", worker)

    def _furnish(self, key: str) -> Names:
        queue = "zebra-jobs"
        waiting = self._push(queue, tags=["velvet"], groupId="zebra-group")
        self.hide(self._push(queue, uniqueKey="zebra-unique"))
        self._push(queue, jobId="zebra-own")
        delayed = self._push(queue, delay=LONG_MS)
        self._push("zebra-work", groupId="zebra-unique")
        active, token = self._pull("zebra-work")
        self.ask("POST", f"/jobs/{active}/progress", {"progress": 40, "message": "velvet"})
        self.ask("POST", f"/jobs/{active}/logs", {"message": "velvet"})
        self._push("zebra-work")
        self._push("zebra-done")
        done, _ = self._pull("zebra-done")
        self.ask("POST", f"/jobs/{done}/ack", {"result": "velvet"})
        self._push("zebra-dead", maxAttempts=1)
        dead, _ = self._pull("zebra-dead")
        self.ask("POST", f"/jobs/{dead}/fail", {"error": "velvet", "stack": ["velvet"]})
        child = self._push("zebra-flow")
        parent = self._push("zebra-flow", dependsOn=[done, child])
        for path, body in (
            ("stall-config", {"stallInterval": 77_777}),
            ("dlq-config", {"maxEntries": 77}),
            ("rate-limit", {"limit": 77_777}),
            ("concurrency", {"limit": 77}),
        ):
            self.ask("PUT", f"/queues/{queue}/{path}", body)
        self._push("zebra-still")
        self.ask("POST", "/queues/zebra-still/pause")
        self.ask(
            "POST", "/crons", {"name": "zebra-cron", "queue": "zebra-cronned", "data": "velvet", "schedule": "0 0 1 1 *"}
        )
        hook = {"url": "http://127.0.0.1:9/velvet", "events": ["completed"], "queue": "zebra-none", "secret": "velvet"}
        webhook = self.ask("POST", "/webhooks", hook)["data"]["webhookId"]
        self._register()
        self.ask("POST", "/publish/zebra-topic", content=b"velvet")
        receipts, subscription = self._publish()
        batch = {"namespace": OWNER, "topic": "zebra-batch", "payload": "dmVsdmV0"}
        item, waits, known = self.ask("POST", "/enqueue", [batch, batch, {**batch, "idempotency_key": "zebra-once"}])
        self.hide(known)
        self.ask("GET", "/dequeue", params={"namespace": OWNER, "topic": "zebra-batch", "limit": 1, "lease_ms": LONG_MS})
        named = (waiting, delayed, active, done, dead, child, parent)
        messages = [ids.to_uuid(receipt_in(each).id) for each in receipts]
        numbers = [ids.from_uuid(each) or 0 for each in (active, dead, waiting)]
        return Names(
            namespace=OWNER,
            jobs=(*named, *messages, "zebra-own", "idempotency:zebra-once", "message:zebra-messages/zebra-message:0"),
            token=token,
            custom="zebra-own",
            unique="zebra-unique",
            once="zebra-once",
            message="zebra-message",
            queues=(queue, "zebra-batch", "zebra-dead", "zebra-messages", "zebra-buried"),
            topic="zebra-topic",
            items=(item, waits, *numbers),
            cron="zebra-cron",
            worker="zebra-worker",
            webhook=webhook,
            subscription=subscription,
            receipts=receipts,
            key=key,
            snapshot=self.ask("POST", "/bulk/snapshots")["id"],
        )

    def _publish(self) -> tuple[tuple[str, ...], str]:
        """Have a message in flight, one that waits, one that is due later, a dead letter in somebody's hands, and a webhook."""
        path = f"/namespaces/{OWNER}/queues"
        self.ask("POST", f"{path}/zebra-messages", {"visibility_timeout_ms": LONG_MS})
        body = {"body": "velvet", "metadata": {"is": "velvet"}}
        self.ask("POST", f"{path}/zebra-messages/messages", body)
        (taken,) = self.ask("GET", f"{path}/zebra-messages/messages")["messages"]
        once = {"Idempotency-Key": "zebra-message"}
        self.hide(self.ask("POST", f"{path}/zebra-messages/messages", body, headers=once)["id"])
        later = {**body, "deliver_at": taken["published_at"] + LONG_MS}
        self.ask("POST", f"{path}/zebra-messages/messages", later)
        self.ask("POST", f"{path}/zebra-buried", {"visibility_timeout_ms": LONG_MS, "max_retries": 1})
        for _ in range(2):
            self.ask("POST", f"{path}/zebra-buried/messages", body)
            (lost,) = self.ask("GET", f"{path}/zebra-buried/messages")["messages"]
            self.ask("POST", f"/messages/{lost['receipt_handle']}/nack")
        (dead,) = self.ask("GET", f"{path}/zebra-buried/dlq", params={"limit": 1})["messages"]
        hook = {"url": "http://127.0.0.1:9/velvet", "secret": "velvet"}
        pushed: str = self.ask("POST", f"{path}/zebra-pushed/subscriptions", hook)["id"]
        return (taken["receipt_handle"], dead["receipt_handle"]), pushed

    def look_through(self, asked: str, answer: str) -> str:
        """Return an answer as it would be to other names. It must not have anything in it that only alpha's owner may know."""
        assert not [each for each in (*SECRETS, *self.hidden) if each in answer], f"{asked} was answered {answer}"
        return plain(answer)

    def state(self) -> dict[str, Any]:
        """Return everything that the owner of alpha can see of it."""
        seen = {
            path: self.ask("GET", path)
            for path in (
                "/queues",
                "/crons",
                "/crons/zebra-cron",
                "/webhooks",
                "/workers",
                "/namespaces",
                "/api/stats",
                "/api/stats/summary",
                "/keys",
                "/bulk/groups",
                f"/topics?namespace={OWNER}",
                f"/namespaces/{OWNER}/queues/zebra-pushed/subscriptions",
            )
        }
        for queue in self.ask("GET", "/queues")["queues"]:
            for what in ("jobs/list", "counts", "paused", "rate-limit", "concurrency", "stall-config", "dlq-config"):
                seen[f"{queue} {what}"] = self.ask("GET", f"/queues/{queue}/{what}")
        for job in self.names.jobs:
            for what in ("", "/result", "/children", "/logs"):
                seen[f"{job}{what}"] = self.ask("GET", f"/jobs/{job}{what}")
        for worker in seen["/workers"]["data"]["workers"]:
            del worker["status"]  # it is silent, and that is no wonder
        del seen["/workers"]["data"]["stats"]
        return seen


def text_of(value: Any) -> str:
    """Spell an answer that is not text, so that it can be looked through."""
    return json.dumps(value, default=lambda each: each.decode(errors="replace") if isinstance(each, bytes) else repr(each))


def lake_of(namespace: str, directory: Path) -> None:
    """Make a lake in which one namespace has done something."""
    lake, at = Lake(directory), {"namespace": namespace, "minute": lakes.MONDAY}
    queue = {**at, "queue": "zebra-jobs"}
    failed = {"fingerprint": "velvet", "pattern": "velvet", "example": "velvet", "n": 1, "date": lakes.MONDAY // lakes.DAY}
    seen = {"first_seen": lakes.MONDAY, "last_seen": lakes.MONDAY, "example_job": "zebra"}
    for table, row in (
        (MINUTES, {**queue, "arrivals": 90_001}),
        (LATENCY, {**queue, "kind": "wait", "bucket": 9, "n": 90_001}),
        (BACKLOG, {**queue, "added": 90_001}),
        (WORKERS, {**queue, "busy_ms": 90_001}),
        (TENANTS, {**at, "busy_ms": 90_001}),
        (FAILURES, {**queue, **failed, **seen}),
        (FLEET, {**at, "worker": "zebra", "name": "velvet", "queues": "zebra-jobs", "concurrency": 7}),
    ):
        lakes.write(lake, table, lakes.rows_of(table, [row]))


@contextmanager
def neighbours(data: Path, **more: str) -> Iterator[World]:
    """Start a server with all its listeners, and furnish it. ``more``: variables of its environment."""
    ports = {name: free_port() for name in ("metrics", "batches", "topics", "messages")}
    flags = [word for name, port in ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
    env = {
        "EPOCHQ_AUTH_API_KEY": "root-key",
        "WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
        "PENSTOCK_PUSH_ALLOWED_HOSTS": "127.0.0.1",
    } | more
    flags += ["--lake", str(data.parent / "lake")]
    lake_of(OWNER, data.parent / "lake")
    with ServerProcess(data, *flags, env=env) as running:
        world = World(running, ports)
        try:
            yield world
        finally:
            world.close()
