"""Delivery from the journal: what is told to whom, in which order, how often, and what is remembered."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import ids, limits
from penstock.core.clock import SystemClock, yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import StorageFailed
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow
from penstock.core.queue import QueueKey
from penstock.core.retention import Retention
from penstock.engine.engine import Engine
from penstock.engine.jobs.settle import LeaseRef, ReportProgress
from penstock.engine.maintenance.retention import TrimJournal
from penstock.engine.queues.webhooks import AddWebhook, EnableWebhook, RemoveWebhook
from penstock.outbound.delivery import Policy
from penstock.outbound.dispatcher import WebhookDispatcher
from penstock.outbound.guard import Guard
from penstock.outbound.sender import NotDelivered, Sender
from penstock.store.sqlite import SqliteStore
from tests.support.engines import QUEUE, ack, claim_job, fail, move, push
from tests.support.receiver import CLOSE, HANG, OK, Receiver, status, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.webhook import WebhookRecord
    from penstock.store.contract import JournalPage

pytestmark = pytest.mark.anyio

URL = "http://good.com/hook"


class FakePost:
    """Answers with what it is given, then always with 200; notes the moment of each attempt."""

    def __init__(self, clock: ManualClock, *answers: int | str) -> None:
        self._clock = clock
        self.answers = list(answers)
        self.sent: list[tuple[str, Any]] = []
        self.at: list[int] = []
        self.headers: list[Mapping[str, str]] = []

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, namespace: str = "") -> int:
        self.sent.append((url, json.loads(body)))
        self.at.append(self._clock.steady_ms())
        self.headers.append(headers)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, str):
            raise NotDelivered(answer)
        return answer

    @property
    def bodies(self) -> list[Any]:
        return [body for _, body in self.sent]

    @property
    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]


async def add(
    engine: Engine,
    *events: str,
    url: str = URL,
    queue: str | None = None,
    secret: str | None = None,
    namespace: str = "default",
) -> WebhookRecord:
    return await engine.run(AddWebhook(namespace, url, events or ("pushed",), queue, secret))


async def current(engine: Engine, webhook: WebhookRecord) -> WebhookRecord:
    found = engine.store.webhook_find(webhook.id)
    assert found is not None
    return found


@pytest.fixture
def post(clock: ManualClock) -> FakePost:
    return FakePost(clock)


@pytest.fixture
async def dispatcher(engine: Engine, post: FakePost) -> AsyncIterator[WebhookDispatcher]:
    running = WebhookDispatcher(engine, post)
    running.start()
    running.start()
    yield running
    await running.stop()
    await running.stop()


# What is told.


async def test_each_event_has_its_body(
    engine: Engine, dispatcher: WebhookDispatcher, post: FakePost, clock: ManualClock
) -> None:
    await add(engine, "pushed", "job.started", "job:completed", "failed", "progress", "stalled")
    job = await push(engine, data=b'{"a": 1}', job_id="mine")
    await claim_job(engine)
    await engine.run(ReportProgress("default", [LeaseRef(job.id, None)], 40, "half"))
    await fail(engine, job, "no luck")
    await move(engine, job, Arrow.PROMOTE)
    await claim_job(engine)
    await ack(engine, job, b'{"done":true}')
    stalling = await push(engine, data=b"2")
    await claim_job(engine)
    await clock.advance(60_000)
    now = post.bodies[0]["timestamp"]
    common = {"timestamp": now, "jobId": "mine", "queue": "mail"}
    other = {"timestamp": now, "jobId": ids.to_uuid(stalling.id), "queue": "mail"}
    assert post.bodies[:8] == [
        {"event": "job.pushed", **common, "data": {"a": 1}},
        {"event": "job.started", **common},
        {"event": "job.progress", **common, "progress": 40},
        {"event": "job.failed", **common, "data": {"a": 1}, "error": "no luck"},
        {"event": "job.started", **common},
        {"event": "job.completed", **common, "data": {"done": True}},
        {"event": "job.pushed", **other, "data": 2},
        {"event": "job.started", **other},
    ]
    assert post.bodies[8]["event"] == "job.stalled"
    assert post.bodies[8]["error"]
    assert {url for url, _ in post.sent} == {URL}


async def test_the_headers_and_the_signature(engine: Engine, dispatcher: WebhookDispatcher, clock: ManualClock) -> None:
    bodies: list[bytes] = []
    headers: list[Mapping[str, str]] = []

    class Post:
        async def post(self, url: str, given: Mapping[str, str], body: bytes, *, namespace: str = "") -> int:
            bodies.append(body)
            headers.append(given)
            return 200

    await dispatcher.stop()
    signing = WebhookDispatcher(engine, Post())
    signing.start()
    webhook = await add(engine, secret="whsec_ü")
    await push(engine, data='"ä"'.encode())
    await clock.advance(0)
    await signing.stop()
    number = int(headers[0]["X-Webhook-Delivery"].rpartition("-")[2])
    assert headers[0] == {
        "Content-Type": "application/json",
        "X-Webhook-Event": "job.pushed",
        "X-Webhook-Timestamp": str(json.loads(bodies[0])["timestamp"]),
        "X-Webhook-Delivery": f"{ids.to_uuid(webhook.id)}-{number}",
        "X-Webhook-Signature": hmac.new("whsec_ü".encode(), bodies[0], hashlib.sha256).hexdigest(),
    }


async def test_data_that_is_gone_or_too_large_is_left_out(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    await dispatcher.stop()
    await add(engine, "pushed", "completed")
    gone = await push(engine)
    await move(engine, gone, Arrow.CANCEL)
    await push(engine, data=b'"' + b"x" * limits.event_data_bytes_max + b'"')
    dispatcher.start()
    await clock.advance(0)
    assert [sorted(body) for body in post.bodies] == [["event", "jobId", "queue", "timestamp"]] * 2


async def test_only_what_was_asked_for(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    other, foreign = QueueKey("default", "other"), QueueKey("elsewhere", "mail")
    await add(engine, "pushed", url="http://a.com/", queue="mail")
    await add(engine, "pushed", url="http://b.com/")
    await add(engine, "completed", url="http://c.com/")
    await add(engine, "pushed", url="http://d.com/", namespace="elsewhere")
    for queue in (QUEUE, other, foreign):
        await push(engine, queue=queue)
    await clock.advance(0)
    told = sorted((url, body["queue"]) for url, body in post.sent)
    assert told == [
        ("http://a.com/", "mail"),
        ("http://b.com/", "mail"),
        ("http://b.com/", "other"),
        ("http://d.com/", "mail"),
    ]


async def test_what_happened_before_the_registration_is_not_told(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    await push(engine)
    await add(engine)
    await clock.advance(0)
    assert post.sent == []


async def test_the_feed_is_heard_only_while_there_is_a_webhook(engine: Engine, dispatcher: WebhookDispatcher) -> None:
    heard = [engine.feed.has_listeners]
    webhook = await add(engine)
    heard.append(engine.feed.has_listeners)
    await engine.run(RemoveWebhook("default", webhook.id))
    heard.append(engine.feed.has_listeners)
    assert heard == [False, True, False]


# Trying again.


async def test_three_more_attempts_with_growing_pauses(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    heard: list[Any] = []
    engine.feed.listen(lambda block: heard.extend(event for event in block.events if event[0] >= EventKind.WEBHOOK_FIRED))
    webhook = await add(engine)
    post.answers = ["refused", 500, 301, 410, 500, 500, 204]
    started = clock.steady_ms()
    await push(engine)
    await push(engine)
    await clock.advance(20_000)
    assert [at - started for at in post.at] == [0, 1_000, 3_000, 7_000, 7_000, 8_000, 10_000]
    assert len({headers["X-Webhook-Delivery"] for headers in post.headers}) == 2
    name = ids.to_uuid(webhook.id)
    assert [(event[0], event[4]) for event in heard] == [
        (EventKind.WEBHOOK_FAILED, {"id": name, "event": "job.pushed", "error": "HTTP 410"}),
        (EventKind.WEBHOOK_FIRED, {"id": name, "event": "job.pushed", "statusCode": 204}),
    ]
    noted = await current(engine, webhook)
    assert (noted.successes, noted.failures, noted.last_triggered) == (1, 1, started + 10_000)


async def test_one_that_fails_holds_up_nobody_else(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    await add(engine, url="http://bad.com/")
    post.answers = [500]
    await push(engine)
    await clock.advance(0)
    await add(engine, url="http://good.com/")
    for _ in range(3):
        await push(engine)
    await clock.advance(0)
    assert [url for url, _ in post.sent] == ["http://bad.com/"] + ["http://good.com/"] * 3
    await clock.advance(1_000)
    assert len(post.sent) == 8


# Switching.


async def test_a_disabled_webhook_is_silent_and_goes_on_from_now(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    webhook = await add(engine)
    first = await push(engine)
    await clock.advance(0)
    await engine.run(EnableWebhook("default", webhook.id, enabled=False))
    await push(engine)
    await clock.advance(1_000)
    assert (await current(engine, webhook)).successes == 1
    await engine.run(EnableWebhook("default", webhook.id, enabled=True))
    last = await push(engine)
    await clock.advance(1_000)
    assert [body["jobId"] for body in post.bodies] == [ids.to_uuid(first.id), ids.to_uuid(last.id)]
    assert (await current(engine, webhook)).successes == 2


async def test_switching_off_and_on_in_one_batch_forgets_what_was_pending(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    webhook = await add(engine)
    post.answers = [500, 500, 500, 500]
    await push(engine)
    await push(engine)
    await clock.advance(0)
    switches = [engine.run(EnableWebhook("default", webhook.id, enabled=enabled)) for enabled in (False, True)]
    for switch in switches:
        await switch
    last = await push(engine)
    await clock.advance(60_000)
    assert {body["jobId"] for body in post.bodies[1:]} == {ids.to_uuid(last.id)}


async def test_a_removed_webhook_is_silent_even_between_attempts(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    webhook = await add(engine)
    post.answers = [500]
    await push(engine)
    await clock.advance(0)
    await engine.run(RemoveWebhook("default", webhook.id))
    await push(engine)
    await clock.advance(60_000)
    assert len(post.sent) == 1


# Remembering.


async def test_a_new_office_goes_on_where_the_old_one_was(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    webhook = await add(engine)
    jobs = [await push(engine)]
    await clock.advance(0)
    await dispatcher.stop()
    jobs += [await push(engine) for _ in range(3)]
    again = WebhookDispatcher(engine, post)
    again.start()
    await clock.advance(500)
    await again.stop()
    assert [body["jobId"] for body in post.bodies] == [ids.to_uuid(job.id) for job in jobs]
    assert (await current(engine, webhook)).successes == 4
    assert (await current(engine, webhook)).cursor == engine.store.journal_next


async def test_what_was_not_written_down_is_repeated_never_skipped(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    await add(engine)
    job = await push(engine)
    await clock.advance(0)
    assert len(post.sent) == 1
    crashed = WebhookDispatcher(engine, post)  # knows nothing of what the first one has just done
    crashed.start()
    await clock.advance(0)
    await crashed.stop()
    assert [body["jobId"] for body in post.bodies] == [ids.to_uuid(job.id)] * 2
    assert post.headers[0]["X-Webhook-Delivery"] == post.headers[1]["X-Webhook-Delivery"]


async def test_a_stop_in_the_middle_of_an_attempt_repeats_it(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    webhook = await add(engine)
    post.answers = [500]
    await push(engine)
    await clock.advance(0)
    await dispatcher.stop()
    assert (await current(engine, webhook)).failures == 0
    dispatcher.start()
    await clock.advance(0)
    assert len(post.sent) == 2


async def test_places_move_on_without_deliveries_and_are_written_down_now_and_then(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock
) -> None:
    webhook = await add(engine, "completed")
    await clock.advance(0)
    for _ in range(5):
        await push(engine)
    await clock.advance(1_000)
    assert (await current(engine, webhook)).cursor == webhook.cursor
    await clock.advance(dispatcher.idle_ms)
    assert (await current(engine, webhook)).cursor == engine.store.journal_next


async def test_a_webhook_behind_the_journal_goes_on_with_the_oldest_event(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await dispatcher.stop()
    await add(engine)
    for _ in range(5):
        await push(engine)
        await clock.advance(10)
    assert await engine.run(TrimJournal(Retention(journal_age_ms=25, journal_bytes_max=1 << 40)))
    dispatcher.start()
    await clock.advance(0)
    assert 0 < len(post.sent) < 5
    assert "missed events that the journal no longer has" in capsys.readouterr().out


async def test_more_events_than_are_read_at_once(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "webhook_read_bytes", 100)
    await dispatcher.stop()
    await add(engine)
    jobs = [await push(engine) for _ in range(9)]
    dispatcher.start()
    await until(lambda: len(post.sent) == 9)
    assert [body["jobId"] for body in post.bodies] == [ids.to_uuid(job.id) for job in jobs]


async def test_trouble_with_the_store_is_waited_out(
    engine: Engine, post: FakePost, dispatcher: WebhookDispatcher, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = await add(engine)
    await clock.advance(0)
    read, run = engine.store.journal_page, engine.run
    broken = True

    async def journal_page(seq: int, namespace: str, bytes_max: int) -> JournalPage:
        if broken:
            raise StorageFailed
        return await read(seq, namespace, bytes_max)

    monkeypatch.setattr(engine.store, "journal_page", journal_page)
    await push(engine)
    await clock.advance(3_000)
    assert post.sent == []
    broken = False
    await clock.advance(1_000)
    assert len(post.sent) == 1

    def fails(_command: object) -> Any:
        raise StorageFailed

    monkeypatch.setattr(engine, "run", fails)
    with pytest.raises(StorageFailed):
        await push(engine)
    monkeypatch.setattr(engine, "run", run)
    await push(engine)
    await yield_to_loop()
    monkeypatch.setattr(engine, "run", fails)
    await clock.advance(2_000)
    monkeypatch.setattr(engine, "run", run)
    await clock.advance(2_000)
    assert (await current(engine, webhook)).successes == 2


# Over real sockets, with a real clock.


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Engine]:
    clock = SystemClock()
    store = await SqliteStore.open(tmp_path / "real", clock, ballast_bytes=0)
    running = Engine(store, clock, durability=Durability.NEVER)
    running.start()
    dispatcher = WebhookDispatcher(running, Sender(clock, Guard(("127.0.0.1",)), timeout_ms=200), Policy(pause_ms=1))
    dispatcher.start()
    yield running
    await dispatcher.stop()
    await running.close()
    await store.close()


async def test_it_fails_twice_and_then_succeeds_in_order(real: Engine) -> None:
    async with Receiver(status(500), status(500), OK) as receiver:
        webhook = await add(real, url=receiver.url, secret="s")
        jobs = [await push(real) for _ in range(3)]
        requests = await receiver.until(5)
        wanted = [ids.to_uuid(job.id) for job in jobs]
        assert [request.json["jobId"] for request in requests] == [wanted[0]] * 3 + wanted[1:]
        for request in requests:
            assert request.headers["x-webhook-signature"] == hmac.digest(b"s", request.body, "sha256").hex()
            assert request.headers["x-webhook-timestamp"] == str(request.json["timestamp"])
        await until(lambda: (found := real.store.webhook_find(webhook.id)) and found.successes == 3)


@pytest.mark.parametrize("reply", [CLOSE, status(410), status(302, "Location: http://169.254.169.254/"), HANG])
async def test_one_that_always_fails_is_given_up_and_the_next_event_follows(real: Engine, reply: bytes) -> None:
    async with Receiver(*[reply] * limits.webhook_attempts, OK) as receiver:
        webhook = await add(real, url=receiver.url)
        jobs = [await push(real) for _ in range(2)]
        requests = await receiver.until(limits.webhook_attempts + 1)
        assert [request.json["jobId"] for request in requests] == [ids.to_uuid(jobs[0].id)] * 4 + [ids.to_uuid(jobs[1].id)]
        await until(lambda: (found := real.store.webhook_find(webhook.id)) and (found.successes, found.failures) == (1, 1))


async def test_a_hanging_endpoint_does_not_delay_another(real: Engine) -> None:
    async with Receiver(HANG) as slow, Receiver() as quick:
        await add(real, url=slow.url)
        await push(real)
        await slow.until(1)
        await add(real, url=quick.url)
        for _ in range(20):
            await push(real)
        assert len(await quick.until(20)) == 20
        assert len({request.json["jobId"] for request in slow.requests}) == 1
