"""Webhook push: posts messages of subscribed queues to their subscribers.

A message that is being pushed is leased like any other, so if this server dies, the message is ready again when its lease
expires. Retries are delays in the store. Only one server at a time pushes to a subscription: the leader of the shard that
has the queue.

A push may have to wait until its URL can be looked up (``Guard.turn``). Its message stays leased during that time, and no
attempt is counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import ServerError
from penstock.core.ids import to_ulid
from penstock.core.lifecycle import Arrow
from penstock.doors.messages.consumer_claim import ConsumerClaim
from penstock.doors.messages.rendering import view_of
from penstock.engine.jobs.settle import LEASE_GONE, Ack, LeaseRef, Nack, Renew, Requeue
from penstock.outbound.request import sign
from penstock.outbound.sender import NotDelivered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from penstock.core.clock import Alarm
    from penstock.core.job import Delivery
    from penstock.core.queue import PushSubscription, QueueKey
    from penstock.doors.messages.metrics import MessageCounters
    from penstock.doors.messages.queue_registry import QueueRegistry
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import LeaseCommand
    from penstock.engine.signals import Signal
    from penstock.outbound.delivery import Post

log = structlog.get_logger("penstock.push")

_encode = msgspec.json.Encoder().encode
_TOO_MANY_REQUESTS = 429
#: Receivers use both names.
SIGNATURES = ("X-EpochQ-Signature", "X-EpochQueue-Signature")


class PushRules(NamedTuple):
    """Timeouts and retries of a push. Durations in ms."""

    retry_delays_ms: tuple[int, ...] = (1_000, 5_000, 30_000)  #: after the first failure, the second and so on
    timeout_ms: int = 5_000  #: for one whole attempt


class PushDispatcher:
    """Runs one pusher for each subscription that this server serves.

    Start it after the engine, and stop it before the engine closes. ``post`` sends a message, and gives up after
    ``rules.timeout_ms``.
    """

    def __init__(
        self, engine: EngineApi, registry: QueueRegistry, counters: MessageCounters, post: Post, rules: PushRules
    ) -> None:
        self.engine = engine
        self.registry = registry
        self.counters = counters
        self.post = post
        self.rules = rules
        self._pushers: dict[int, Pusher] = {}
        self._leaving: set[Pusher] = set()  #: retired pushers that still finish their pushes
        self._stopped = True
        self._subscriptions: list[Callable[[], None]] = []  #: functions that end the subscriptions to signals

    def __len__(self) -> int:
        return len(self._pushers)

    def start(self) -> None:
        """Start the pushers. It is safe to call this twice."""
        if self._stopped:
            self._stopped = False
            self._subscriptions = [signal.subscribe(self._serve_subscriptions) for signal in self._signals()]
            self._serve_subscriptions()

    def stop_claiming(self) -> None:
        """Claim no more messages. Pushes in progress continue."""
        if not self._stopped:
            self._stopped = True
            for end in self._subscriptions:
                end()
            self._subscriptions = []
        for subscription_id in list(self._pushers):
            self._dismiss(subscription_id)

    async def stop(self) -> None:
        """Give pushes in progress a short time, cancel the rest, and release their messages. Calling it twice is safe."""
        self.stop_claiming()
        await asyncio.gather(*(pusher.stop() for pusher in list(self._leaving)))

    def _signals(self) -> list[Signal[[]]]:
        """Return the signals after which this server may have to serve other push subscriptions."""
        return [
            signal
            for signals in (engine.signals for engine in self.engine.engines)
            for signal in (
                signals.webhooks_changed,
                signals.leadership_changed,
                signals.store_recovered,
                signals.queues_moved,
            )
        ]

    def _serve_subscriptions(self) -> None:
        wanted = {
            subscription.id: (queue.key, subscription)
            for engine in self.engine.engines
            if engine.leads
            for queue in engine.store.queues_subscribed()
            for subscription in queue.settings.subscriptions
        }
        for subscription_id in self._pushers.keys() - wanted.keys():
            self._dismiss(subscription_id)
        for subscription_id, (key, subscription) in wanted.items():
            if subscription_id not in self._pushers:
                pusher = self._pushers[subscription_id] = Pusher(self, key, subscription)
                pusher.start()

    def _dismiss(self, subscription_id: int) -> None:
        pusher = self._pushers.pop(subscription_id)
        self._leaving.add(pusher)
        pusher.retire(lambda: self._leaving.discard(pusher))


class Pusher:
    """Serves one subscription. Several messages are pushed at the same time, so that a slow one delays few others."""

    def __init__(self, dispatcher: PushDispatcher, queue: QueueKey, subscription: PushSubscription) -> None:
        self._dispatcher = dispatcher
        self._engine = dispatcher.engine
        self._queue = queue
        self._subscription = subscription
        self._taker = ConsumerClaim(dispatcher.engine, queue)
        self._pushing: dict[asyncio.Task[None], LeaseRef] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        name = f"penstock-push-{self._subscription.id}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def retire(self, done: Callable[[], None]) -> None:
        """Claim no more messages. ``done`` is called when the pushes in progress are finished."""
        assert self._task is not None
        self._taker.stop()
        self._task.add_done_callback(lambda _: done())

    async def stop(self) -> None:
        """Give pushes in progress a short time, cancel the rest, and release their messages in order, without a failure."""
        assert self._task is not None
        self._taker.stop()
        late = asyncio.ensure_future(pause(self._engine.clock, limits.goodbye_ms_max))
        await asyncio.wait({self._task, late}, return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        cut_off = dict(self._pushing)
        for task in (self._task, *cut_off):
            task.cancel()
        await asyncio.gather(self._task, *cut_off, return_exceptions=True)
        if cut_off:
            await self._say(Requeue(self._queue.namespace, list(cut_off.values()), Arrow.RETURN))

    async def _run(self) -> None:
        while not self._taker.stopped:
            try:
                await self._take_some()
            except ServerError as error:
                log.warning("messages to push cannot be claimed now, trying again", **self._who(), error=str(error))
                await pause(self._engine.clock, limits.push_rest_ms)
            except Exception:
                log.exception("pushing failed and is tried again", **self._who())
                await pause(self._engine.clock, limits.push_rest_ms)
        if self._pushing:
            await asyncio.wait(self._pushing)

    async def _take_some(self) -> None:
        free = limits.push_deliveries_max - len(self._pushing)
        if free <= 0:
            await asyncio.wait(self._pushing, return_when=asyncio.FIRST_COMPLETED)
            return
        visible_ms = self._dispatcher.registry.message_rules(self._queue).visibility_timeout_ms
        lease_ms = max(visible_ms, self._dispatcher.rules.timeout_ms + limits.push_margin_ms)
        for delivery in await self._taker.take(free, lease_ms):
            self._dispatcher.counters.of(self._queue).consumed += 1
            task = asyncio.get_running_loop().create_task(self._push(delivery, lease_ms))
            self._pushing[task] = LeaseRef(delivery.job.id, delivery.job.token)
            task.add_done_callback(self._pushed)

    def _pushed(self, task: asyncio.Task[None]) -> None:
        del self._pushing[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message could not be pushed; its lease will expire", **self._who(), exc_info=error)

    async def _push(self, delivery: Delivery, lease_ms: int) -> None:
        """Push a message once, and store the result. ``lease_ms``: the duration of its lease."""
        subscription, counters = self._subscription, self._dispatcher.counters.of(self._queue)
        hold = LeaseRef(delivery.job.id, delivery.job.token)
        body = _encode(view_of(self._queue, delivery))
        del delivery  # free the memory: a large body may be in transit for a while
        headers = {"Content-Type": "application/json"}
        if subscription.secret:
            headers |= dict.fromkeys(SIGNATURES, f"sha256={sign(subscription.secret, body)}")
        try:
            posting = self._dispatcher.post.post(subscription.url, headers, body, namespace=self._queue.namespace)
            status = await self._while_leased(hold, lease_ms, posting)
        except NotDelivered as reason:
            status, error = 0, str(reason)
        else:
            error = f"HTTP {status}"
        if 200 <= status < 300:
            if await self._say(Ack(self._queue.namespace, [hold], [None])):
                counters.acked += 1
            return
        final = 400 <= status < 500 and status != _TOO_MANY_REQUESTS
        plan_ms = self._dispatcher.rules.retry_delays_ms
        log.debug("a push failed", **self._who(), message=to_ulid(int(hold.ref)), error=error)
        if await self._say(Nack(self._queue.namespace, [hold], error, final=final, plan_ms=plan_ms)):
            counters.nacked += 1

    async def _while_leased(self, hold: LeaseRef, lease_ms: int, posting: Coroutine[Any, Any, int]) -> int:
        """Return the result of ``posting``. The lease is renewed as often as necessary; a single attempt never needs it."""
        clock, renewing = self._engine.clock, set[asyncio.Task[bool]]()
        alarms: list[Alarm] = []  #: the alarm that is set

        def set_alarm() -> None:
            alarms[:] = [clock.call_at(clock.steady_ms() + lease_ms * 2 // 3, renew)]

        def renew() -> None:
            task = asyncio.ensure_future(self._say(Renew(self._queue.namespace, [hold], [lease_ms])))
            renewing.add(task)
            task.add_done_callback(renewing.discard)
            set_alarm()

        set_alarm()
        try:
            return await posting
        finally:
            alarms[0].cancel()
            if renewing:
                await asyncio.wait(renewing)

    async def _say(self, command: LeaseCommand) -> bool:
        """Run the command. Return False if the receiver has settled the message itself in the meantime."""
        try:
            outcomes = await self._engine.run(command)
            for outcome in outcomes:
                if outcome is not None and not isinstance(outcome, LEASE_GONE):
                    raise outcome
        except ServerError as error:
            log.warning("a pushed message could not be settled; its lease will expire", **self._who(), error=str(error))
            return False
        return not any(outcomes)

    def _who(self) -> dict[str, str]:
        namespace, queue = self._queue
        return {"subscription": to_ulid(self._subscription.id), "namespace": namespace, "queue": queue}
