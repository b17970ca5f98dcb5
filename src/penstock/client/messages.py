"""The objects of the messages door. Times are milliseconds since 1970 (UTC)."""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, kw_only=True, frozen=True):
    """A message that was consumed. You hold it until its visibility timeout is over, or you ack or nack it.

    ``attempt``: the number of this delivery, from 1 on. ``published_at``: when it was published.
    """

    id: str
    body: bytes = b""
    receipt_handle: str
    namespace: str = ""
    queue: str = ""
    attempt: int = 0
    published_at: int = 0
    metadata: dict[str, str] = {}


class Namespace(msgspec.Struct, kw_only=True, frozen=True):
    """A namespace. ``created_at`` is in the server's format."""

    name: str
    created_at: int | str | None = None


class Subscription(msgspec.Struct, kw_only=True, frozen=True):
    """A webhook to which the messages of a queue are pushed. ``signed``: with a secret, which is never shown."""

    id: str
    url: str
    signed: bool = False
    created_at: int = 0


class QueueStats(msgspec.Struct, kw_only=True, frozen=True):
    """The number of messages in a queue. ``depth`` is ready and in flight together."""

    namespace: str
    name: str
    key: str = ""
    ready: int = 0
    in_flight: int = 0
    scheduled: int = 0
    depth: int = 0
    dlq_depth: int = 0


class Stats(msgspec.Struct, kw_only=True, frozen=True):
    """One page of the queues of a server."""

    queues: list[QueueStats]
    total: int = 0
    page: int = 1
    limit: int = 0
    total_pages: int = 1


class Summary(msgspec.Struct, kw_only=True, frozen=True):
    """A summary of a server in five numbers."""

    total_queues: int = 0
    namespaces: int = 0
    total_depth: int = 0
    total_scheduled: int = 0
    dlq_alerts: int = 0


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """The health of a server. ``status`` is ok or healthy, or describes the problem; see ``is_ok``."""

    status: str
    version: str = ""
    node_id: str = ""  #: only if the messages door has its own listener
    queues: Any = None  #: the number of queues, or of jobs by state
    uptime: int | str | None = None  #: in seconds, or as text like 2m30s
    uptime_ms: int | None = None

    @property
    def is_ok(self) -> bool:
        """Return whether the server reports no problem."""
        return self.status in ("ok", "healthy")
