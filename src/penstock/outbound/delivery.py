"""Delivers the events of one webhook in the order of the journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from penstock.core import ids, limits
from penstock.core.clock import pause, yield_to_loop
from penstock.core.errors import ServerError
from penstock.core.events import EventKind
from penstock.core.webhook import EVENT_NAMES, DeliveryProgress
from penstock.outbound.request import write
from penstock.outbound.sender import NotDelivered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.webhook import WebhookRecord
    from penstock.engine.api import ShardApi
    from penstock.outbound.request import WebhookRequest
    from penstock.store.contract import JournalBlock

log = structlog.get_logger("penstock.webhooks")


#: The subject of an event: its kind, and the namespace and name of its queue.
Subject = tuple[int, tuple[str, str]]


def subject_of(block: JournalBlock, event: Sequence[Any]) -> Subject:
    """Return the subject of an event."""
    return event[0], block.queues[event[1]]


def subjects_of(block: JournalBlock) -> set[Subject]:
    """Return the subjects of a block that matter to webhooks: far fewer than it has events."""
    pairs = {(event[0], event[1]) for event in block.events if event[0] in EVENT_NAMES}
    return {(kind, block.queues[queue]) for kind, queue in pairs}


class Post(Protocol):
    """The sender of a request: see ``Sender.post``."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, namespace: str) -> int:
        """Send a body for a namespace, and return the status of the answer. Raises NotDelivered if there is none."""


class Policy(msgspec.Struct, frozen=True):
    """The rules for attempts."""

    attempts: int = limits.webhook_attempts
    pause_ms: int = limits.webhook_pause_ms  #: before the second attempt; doubled for each further one


class WebhookDelivery:
    """The delivery of one enabled webhook. It has its own task, so that a slow receiver does not delay other webhooks."""

    def __init__(self, engine: ShardApi, post: Post, policy: Policy, webhook: WebhookRecord) -> None:
        self.webhook = webhook
        self.cursor = webhook.cursor  #: number of the first event that is not processed
        self.idle = False  #: it has processed the whole journal, and waits
        self._engine = engine
        self._post = post
        self._policy = policy
        self._kinds = webhook.kinds
        self._due = engine.store.journal_next  #: the journal may have events for it up to here
        self._rewound = 0  #: how often the journal was rewound while it was read
        self._woken = asyncio.Event()
        self._store_works = asyncio.Event()  #: the store works again: end the pause
        self._done = DeliveryProgress(webhook.cursor)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        name = f"penstock-webhook-{self.webhook.id}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def stop(self) -> None:
        """Stop immediately. A delivery in progress is cancelled, and repeated by the next server that delivers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def handle_block(self, block: JournalBlock, subjects: set[Subject]) -> None:
        """Handle a block that was just committed, with its subjects: wake up for it, or skip it."""
        if any(self._wants(subject) for subject in subjects):
            self._due = block.seq + len(block.events)
            self.nudge()
        elif self.idle and self.cursor == block.seq and not self._woken.is_set():
            self.cursor += len(block.events)  # no event for it, so the block need not be read later

    def nudge(self) -> None:
        """Wake up if there may be durable events to deliver: a disk failure cannot undo durable events."""
        if self.cursor < min(self._due, self._engine.durable_up_to):
            self._woken.set()

    def rewind(self) -> None:
        """Handle a rewind: a disk failure may have removed the end of the journal, and its numbers are assigned again."""
        self._due = self._engine.store.journal_next
        self.cursor = min(self.cursor, self._due)
        self._rewound += 1
        self._store_works.set()

    @property
    def has_news(self) -> bool:
        """Return whether there are deliveries or failures that are not recorded yet."""
        return bool(self._done.successes or self._done.failures)

    def take_progress(self) -> DeliveryProgress | None:
        """Return the progress since the last call, to be recorded; None if there is none."""
        if not self.has_news and self._done.cursor == self.cursor:
            return None
        progress, self._done = self._done, DeliveryProgress(self.cursor)
        progress.cursor = self.cursor
        return progress

    def restore_progress(self, progress: DeliveryProgress) -> None:
        """Take back progress that could not be recorded."""
        self._done.successes += progress.successes
        self._done.failures += progress.failures
        self._done.last_triggered = self._done.last_triggered or progress.last_triggered
        self._done.cursor = -1

    async def _run(self) -> None:
        while True:
            self._store_works.clear()
            try:
                await self.run_once()
            except ServerError as error:
                log.warning("a webhook cannot read the journal now and will retry", error=str(error))
                await self._rest()
                continue
            except Exception:
                log.exception("a webhook failed and will retry", webhook=ids.to_uuid(self.webhook.id))
                await self._rest()
                continue
            await self._wait()

    async def _rest(self) -> None:
        """Pause for some time, or until the store works again."""
        clock = self._engine.clock
        alarm = clock.call_at(clock.steady_ms() + self._policy.pause_ms, self._store_works.set)
        try:
            await self._store_works.wait()
        finally:
            alarm.cancel()

    async def _wait(self) -> None:
        self.idle = True
        try:
            await self._woken.wait()
        finally:
            self.idle = False

    async def run_once(self) -> None:
        """Deliver all events up to the end of the durable part of the journal."""
        engine = self._engine
        self._woken.clear()  # cleared first, so that an event during the check sets it again
        while self.cursor < engine.durable_up_to:
            rewound = self._rewound
            async with engine.replays.turn(self.webhook.namespace):
                page = await engine.store.journal_page(self.cursor, self.webhook.namespace, limits.webhook_read_bytes)
            if rewound != self._rewound:
                continue
            durable_up_to = engine.durable_up_to
            if not page.first or page.first >= durable_up_to or page.following <= self.cursor:
                return
            if page.first > self.cursor:
                self._missed(page.first)
            await self._go_through([block for block in page.blocks if block.seq < durable_up_to])
            if rewound == self._rewound:
                self.cursor = max(self.cursor, min(page.following, durable_up_to))

    async def _go_through(self, blocks: list[JournalBlock]) -> None:
        """Deliver the events of some blocks."""
        rewound = self._rewound
        for block in blocks:
            if any(self._wants(subject) for subject in subjects_of(block)):
                await self._deliver_all(block)
            await yield_to_loop(1)
            if rewound != self._rewound:
                return
            self.cursor = max(self.cursor, block.seq + len(block.events))

    async def _deliver_all(self, block: JournalBlock) -> None:
        rewound = self._rewound
        for number, event in enumerate(block.events, block.seq):
            if number >= self.cursor and event[0] in self._kinds and self._wants(subject_of(block, event)):
                request = await write(self._engine.store, self.webhook, block, number)
                if rewound == self._rewound:
                    await self._deliver(request)
                if rewound != self._rewound:
                    return  # this number may now belong to another event
                self.cursor = number + 1

    def _wants(self, subject: Subject) -> bool:
        kind, (namespace, queue) = subject
        return kind in self._kinds and namespace == self.webhook.namespace and self.webhook.queue in (None, queue)

    def _missed(self, oldest: int) -> None:
        log.warning(
            "a webhook missed events that the journal no longer has; it continues with the oldest event",
            webhook=ids.to_uuid(self.webhook.id),
            events=oldest - self.cursor,
        )
        self.cursor = oldest

    async def _deliver(self, request: WebhookRequest) -> None:
        """Try several times. In the end the request is delivered, or counted as failed."""
        error = ""
        for attempt in range(self._policy.attempts):
            if attempt:
                await pause(self._engine.clock, self._policy.pause_ms << (attempt - 1))
            try:
                status = await self._post.post(
                    self.webhook.url, request.headers, request.body, namespace=self.webhook.namespace
                )
            except NotDelivered as reason:
                error = str(reason)
                continue
            if 200 <= status < 300:
                self._done.successes += 1
                self._publish(EventKind.WEBHOOK_FIRED, request, statusCode=status)
                return
            error = f"HTTP {status}"
        self._done.failures += 1
        self._publish(EventKind.WEBHOOK_FAILED, request, error=error)
        log.warning(
            "a webhook was not delivered", webhook=ids.to_uuid(self.webhook.id), event_name=request.event, error=error
        )

    def _publish(self, kind: EventKind, request: WebhookRequest, **more: object) -> None:
        now_ms = self._done.last_triggered = self._engine.clock.now_ms()
        payload = {"id": ids.to_uuid(self.webhook.id), "event": request.event, **more}
        self._engine.feed.publish_transient(kind, payload, now_ms, namespace=self.webhook.namespace)
