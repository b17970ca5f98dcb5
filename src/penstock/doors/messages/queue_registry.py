"""Namespaces and queues of the messages door: which exist, when they were made, and their rules.

For each namespace there is a queue with an empty name, which stores only the time of creation. So the catalog of the store,
which every server follows, is also the register of namespaces.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.access.identity import Right
from penstock.core.errors import AlreadyExists, InvalidInput, NamespaceNotFound, QueueNotFound
from penstock.core.events import EventKind
from penstock.core.queue import MessageRules, QueueKey, QueueSettings
from penstock.doors import queue_lists
from penstock.doors.http.namespace import NAME
from penstock.doors.messages import wire
from penstock.engine.queues import admin
from penstock.engine.queues.admin import Configure, RemoveQueue

if TYPE_CHECKING:
    from penstock.access.identity import Identity
    from penstock.core.queue import Queue
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore


class MessageDefaults(NamedTuple):
    """Default rules for messages. Durations in ms."""

    visibility_timeout_ms: int = 30_000
    max_messages: int = 100_000  #: ready and leased together, per queue
    max_retries: int = 3  #: deliveries in total
    max_batch_size: int = 100
    default_batch_size: int = 1
    message_bytes_max: int = 256 * 1024
    schedule_ahead_ms: int = 90 * 86_400_000
    retention_ms: int = 0  #: a due message that is not consumed in this time is removed; 0: never
    auto_create: bool = True  #: a namespace is created by its first message


class Seen(NamedTuple):
    """What a client may see: the namespaces with queues, and how many queues they have at most."""

    namespaces: list[str]
    queues: int


class QueueRegistry:
    """Finds and creates namespaces and queues. ``rules`` are the defaults."""

    def __init__(self, engine: EngineApi, rules: MessageDefaults) -> None:
        self._engine = engine
        self._store = engine.store
        self.rules = rules

    # Namespaces.

    async def namespaces(self, req: Request) -> list[wire.NamespaceView]:
        """Return the namespaces that a client may see, sorted by name."""
        seen = self.seen_by(req.identity)
        return await queue_lists.listed(req, len(seen.namespaces), self._namespace_steps(seen.namespaces))

    def _namespace_steps(self, seen: list[str]) -> Steps[list[wire.NamespaceView]]:
        views: list[wire.NamespaceView] = []
        for some in queue_lists.slices_of((yield from queue_lists.sorted_steps(seen))):
            for name in some:
                marker = self._store.queue_find(QueueKey(name, ""))
                if marker is not None and marker.settings.known_since is not None:
                    views.append(wire.NamespaceView(name, marker.settings.known_since))
            yield
        return views

    def seen_by(self, identity: Identity) -> Seen:
        """Return what a client may see."""
        few = identity.among(_Inhabited(self._store), Right.LOOK)
        if few is None:
            return Seen(self._store.queue_namespaces(), self._store.queue_count())
        return Seen(few, sum(map(self._store.queue_count, few)))

    async def make_namespace(self, name: str) -> None:
        """Create a namespace. Raises InvalidInput, AlreadyExists."""
        if not name:
            raise InvalidInput("name is required")
        wire.check_strict("namespace", name)
        taken = AlreadyExists(f"namespace: already exists: {name}")
        if self._knows(name):
            raise taken
        await self._note(name, taken)

    async def remove_namespace(self, name: str) -> None:
        """Remove a namespace; its queues stay. Raises NamespaceNotFound."""
        if not self._knows(name):
            raise NamespaceNotFound(f"namespace: not found: {name}")
        await self._engine.run(RemoveQueue(QueueKey(name, "")))

    def _knows(self, name: str) -> bool:
        marker = self._store.queue_find(QueueKey(name, ""))
        return marker is not None and marker.settings.known_since is not None

    async def _note(self, name: str, taken: AlreadyExists | None = None) -> None:
        """Register a namespace. Raises ``taken``, if given, when the namespace exists, or was created at the same time."""
        now_ms = self._engine.clock.now_ms()

        def change(settings: QueueSettings) -> QueueSettings:
            if not settings.known_since:
                return msgspec.structs.replace(settings, known_since=now_ms)
            if taken is not None:
                raise taken
            return settings

        await self._engine.run(Configure(QueueKey(name, ""), EventKind.NAMESPACE_CREATED, change))

    # Queues.

    def key(self, namespace: str, queue: str) -> QueueKey:
        """Return the queue key of a path. Raises InvalidInput."""
        if NAME.match(namespace) is None:
            raise InvalidInput("invalid namespace or queue name")
        wire.check_names(namespace, queue)
        return QueueKey(namespace, queue)

    def find(self, key: QueueKey) -> Queue:
        """Return an existing queue. Raises QueueNotFound."""
        queue = self._store.queue_find(key)
        if queue is None or not _is_made(queue):
            raise QueueNotFound(f"queue not found: {key.namespace}/{key.name}")
        return queue

    async def of(self, req: Request, namespace: str) -> list[str]:
        """Return the queues of a namespace, sorted by name."""
        return await queue_lists.listed(req, self._store.queue_count(namespace), self._name_steps(namespace))

    def _name_steps(self, namespace: str) -> Steps[list[str]]:
        names: list[str] = []
        for some in queue_lists.slices_of((yield from queue_lists.name_steps(self._store, namespace, _is_listed))):
            names += [f"{namespace}/{name}" for name in some]
            yield
        return names

    def steps(self, namespaces: list[str]) -> Steps[list[list[Queue]]]:
        """Return the queues that exist in each of some namespaces, in steps."""
        return queue_lists.queue_steps(self._store, namespaces, _is_listed)

    async def make(self, key: QueueKey, body: wire.QueueBody) -> None:
        """Create a queue. Raises InvalidInput, AlreadyExists."""
        wire.check_strict("namespace", key.namespace)
        wire.check_strict("queue", key.name)
        found = self._store.queue_find(key)
        taken = AlreadyExists(f"queue already exists: {key.namespace}/{key.name}")
        if found is not None and _is_made(found):
            raise taken
        rules = MessageRules(*(max(0, value) for value in msgspec.structs.astuple(body)))
        await self.use(key)

        def change(settings: QueueSettings) -> QueueSettings:
            if settings.messages is not None:  # it was created at the same time
                raise taken
            return msgspec.structs.replace(settings, messages=rules)

        await self._engine.run(Configure(key, EventKind.CONFIG_MESSAGES_CHANGED, change))

    async def use(self, key: QueueKey) -> None:
        """Ensure that the namespace of a queue exists before it is used. Raises InvalidInput, NamespaceNotFound."""
        if self._knows(key.namespace):
            return
        if self._store.queue_find(key) is not None and not wire.is_strict(key.namespace):
            return  # another door has created it, with less strict rules for names
        wire.check_strict("namespace", key.namespace)
        if not self.rules.auto_create:
            raise NamespaceNotFound(f"namespace: not found: {key.namespace}")
        await self._note(key.namespace)

    async def remove(self, key: QueueKey) -> None:
        """Remove a queue with all its messages. Raises QueueNotFound."""
        self.find(key)
        await admin.obliterate(self._engine, key)

    def message_rules(self, key: QueueKey) -> MessageDefaults:
        """Return the rules of a queue."""
        queue = self._store.queue_find(key)
        own = None if queue is None else queue.settings.messages
        if own is None:
            return self.rules
        rules = self.rules
        return rules._replace(
            visibility_timeout_ms=own.visibility_timeout_ms or rules.visibility_timeout_ms,
            max_messages=own.max_messages or rules.max_messages,
            max_retries=own.max_retries or rules.max_retries,
            max_batch_size=min(own.max_batch_size or rules.max_batch_size, rules.max_batch_size),
        )


class _Inhabited(Container[str]):
    """The namespaces that have queues, without a copy of their names."""

    def __init__(self, store: Store | ShardedStore) -> None:
        self._store = store

    def __contains__(self, namespace: object) -> bool:
        return isinstance(namespace, str) and self._store.queue_count(namespace) > 0


def _is_listed(queue: Queue) -> bool:
    return bool(queue.key.name) and _is_made(queue)


def _is_made(queue: Queue) -> bool:
    return queue.created_at is not None or queue.settings.messages is not None
