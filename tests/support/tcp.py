"""A small client of the TCP protocol, with a MessagePack library the server does not use."""

from __future__ import annotations

import itertools
import os
import socket
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import msgpack  # type: ignore[import-untyped]

from penstock.doors.jobs.client_commands import (
    client_job_commands,
    client_queue_commands,
    limit_commands,
)
from penstock.doors.jobs.command_call import CommandTable
from penstock.doors.jobs.commands import (
    cron_commands,
    flow_commands,
    job_commands,
    ops_commands,
    queue_commands,
    session_commands,
    webhook_commands,
    worker_commands,
)
from penstock.doors.jobs.crons import CronHandlers
from penstock.doors.jobs.dead_letter_commands import dead_letter_commands
from penstock.doors.jobs.flow_push import flow_push_commands
from penstock.doors.jobs.group_commands import group_commands
from penstock.doors.jobs.job_handlers import JobHandlers
from penstock.doors.jobs.metric_commands import metric_commands
from penstock.doors.jobs.queue_events import event_commands
from penstock.doors.jobs.queues import QueueHandlers
from penstock.doors.jobs.summary_commands import summary_commands
from penstock.doors.jobs.webhooks import WebhookHandlers
from penstock.doors.jobs.workers import WorkerHandlers
from penstock.doors.ops.health import OpsHandlers, Readiness

if TYPE_CHECKING:
    from types import TracebackType

_numbers = itertools.count()


class NoGroups:
    """There are no consumer groups."""

    async def statuses(self, _namespace: str | None) -> list[Any]:
        return []


def all_commands(engine: Any = None) -> CommandTable:
    """Return the table of the server; without an engine it can be looked at, not used."""
    engine = engine or SimpleNamespace(store=None, fair_share=None)
    ops = OpsHandlers(engine, Readiness(), cast("Any", None), cast("Any", None))
    return CommandTable(
        engine,
        job_commands(JobHandlers(engine)),
        queue_commands(QueueHandlers(engine)),
        ops_commands(ops),
        metric_commands(ops, QueueHandlers(engine)),
        session_commands(),
        client_job_commands(JobHandlers(engine)),
        client_queue_commands(QueueHandlers(engine)),
        limit_commands(QueueHandlers(engine)),
        dead_letter_commands(QueueHandlers(engine)),
        flow_commands(JobHandlers(engine)),
        flow_push_commands(JobHandlers(engine)),
        event_commands(),
        summary_commands(QueueHandlers(engine)),
        group_commands(QueueHandlers(engine)),
        cron_commands(CronHandlers(engine)),
        webhook_commands(WebhookHandlers(engine, cast("Any", None))),
        worker_commands(WorkerHandlers(engine, cast("Any", None), cast("Any", NoGroups()))),
    )


def frame(message: Any) -> bytes:
    body: bytes = msgpack.packb(message)
    return struct.pack(">I", len(body)) + body


class TcpClient:
    """One connection, and a queue of its own. ``ok`` and ``refused`` insist on the outcome."""

    def __init__(self, port: int, queue: str | None = None) -> None:
        self.queue = queue or f"t{os.getpid()}-{next(_numbers)}"
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, cmd: str, **fields: Any) -> None:
        self.socket.sendall(frame({"cmd": cmd, **fields}))

    def read(self) -> Any:
        """Return the next reply, or None at the end."""
        header = self._exactly(4)
        return None if header is None else msgpack.unpackb(self._exactly(struct.unpack(">I", header)[0]))

    def _exactly(self, size: int) -> bytes | None:
        chunks = b""
        while len(chunks) < size:
            chunk = self.socket.recv(size - len(chunks))
            if not chunk:
                return None
            chunks += chunk
        return chunks

    def call(self, cmd: str, **fields: Any) -> Any:
        self.send(cmd, **fields)
        return self.read()

    def ok(self, cmd: str, **fields: Any) -> Any:
        reply = self.call(cmd, **fields)
        assert reply["ok"] is True, reply
        return reply

    def refused(self, cmd: str, **fields: Any) -> str:
        reply = self.call(cmd, **fields)
        assert set(reply) == {"ok", "error", "code"}, reply
        assert reply["ok"] is False
        error: str = reply["error"]
        return error

    # Jobs in all states.

    def push(self, data: Any = None, **options: Any) -> str:
        job_id: str = self.ok("PUSH", queue=self.queue, data=data, **options)["id"]
        return job_id

    def active(self, **options: Any) -> tuple[str, str]:
        """Push a job and pull it; return its id and token."""
        pushed = self.push(**options)
        reply = self.ok("PULL", queue=self.queue)
        assert reply["job"]["id"] == pushed
        return pushed, reply["token"]

    def completed(self, result: Any = None) -> str:
        job_id, token = self.active()
        self.ok("ACK", id=job_id, token=token, result=result)
        return job_id

    def dead(self) -> str:
        job_id, _ = self.active(maxAttempts=1)
        self.ok("FAIL", id=job_id, error="broken")
        return job_id

    def state(self, job_id: str) -> str:
        state: str = self.ok("GetState", id=job_id)["state"]
        return state
