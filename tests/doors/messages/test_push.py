"""Webhook push of the messages door: subscriptions, and deliveries of a real server to a real receiver."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.ids import from_ulid
from tests.doors.messages.test_messages import Queue, now_ms
from tests.support.issuer import SECRET, token
from tests.support.receiver import CLOSE, HANG, OK, Receiver, status, until
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

URL = "https://good.com/hook"
ALLOWED = {"PENSTOCK_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture(scope="module")
def pusher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("pusher") / "data", env=ALLOWED) as running:
        yield running


@pytest.fixture
def queue(pusher: ServerProcess) -> Iterator[Queue]:
    with pusher.client() as client:
        yield Queue(client)


def subscribe(queue: Queue, url: str = URL, **more: Any) -> str:
    subscription_id: str = queue.ok("POST", f"{queue.path}/subscriptions", 201, json={"url": url, **more})["id"]
    return subscription_id


def unsubscribe(queue: Queue, subscription_id: str) -> None:
    queue.ok("DELETE", f"/subscriptions/{subscription_id}", 204)


def listed(queue: Queue) -> Any:
    return queue.ok("GET", f"{queue.path}/subscriptions")["subscriptions"]


async def settled(queue: Queue, **stats: int) -> None:
    await until(lambda: queue.stats().items() >= stats.items())


# Subscriptions.


def test_subscriptions_are_made_listed_without_secrets_and_removed(queue: Queue) -> None:
    assert listed(queue) == []
    before = now_ms()
    one, other = subscribe(queue, secret="whsec"), subscribe(queue)
    assert from_ulid(one) is not None
    first, second = listed(queue)
    assert before - 1_000 <= first.pop("created_at") <= now_ms() + 1_000
    assert first == {"id": one, "url": URL, "signed": True}
    assert (second["id"], second["signed"]) == (other, False)
    unsubscribe(queue, one)
    assert [each["id"] for each in listed(queue)] == [other]
    not_found = (404, f"consumer: subscription not found: {one}")
    assert queue.refused("DELETE", f"/subscriptions/{one}") == not_found
    unsubscribe(queue, other)


def test_what_is_no_subscription_is_not_found(queue: Queue) -> None:
    for name in (UNKNOWN, "x", queue.publish()):
        assert queue.refused("DELETE", f"/subscriptions/{name}") == (404, f"consumer: subscription not found: {name}")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "url is required"),
        ({"url": "", "secret": "s"}, "url is required"),
        ({"url": "good.com"}, "url must be an http or https URL"),
        ({"url": "ftp://good.com/"}, "url must be an http or https URL"),
        ({"url": "http://user@good.com/"}, "url must be an http or https URL"),
        ({"url": "http://" + "a" * 3_000}, "url too long (max 2048 characters)"),
        ({"url": "http://good.com:22/"}, "url cannot use port 22"),
        ({"url": URL, "secret": "s" * 1_025}, "secret too long (max 1024 characters)"),
        ({"url": URL, "events": []}, 'invalid json: json: unknown field "events"'),
        ({"url": 1}, "invalid json: Expected `str`, got `int` - at `$.url`"),
    ],
)
def test_what_cannot_be_a_subscription_is_refused(queue: Queue, body: Any, error: str) -> None:
    assert queue.refused("POST", f"{queue.path}/subscriptions", json=body) == (400, error)
    assert listed(queue) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "[::1]", "169.254.169.254", "metadata.internal"])
def test_private_hosts_are_refused_unless_they_are_allowed(server: ServerProcess, host: str) -> None:
    with server.client() as client:
        code, error = Queue(client).refused("POST", "/namespaces/a/queues/b/subscriptions", json={"url": f"http://{host}/"})
    assert code == 400
    assert error.startswith("url cannot point to ")
    assert error.endswith("If that is meant, allow the host with push_allowed_hosts.")


def test_webhooks_of_jobs_have_a_switch_of_their_own(pusher: ServerProcess) -> None:
    with pusher.client() as client:
        body = {"url": "http://127.0.0.1/", "events": ["pushed"]}
        assert client.post("/webhooks", json=body).status_code == 400


def test_a_queue_has_so_many_subscriptions_and_no_more(queue: Queue) -> None:
    made = [subscribe(queue) for _ in range(limits.queue_subscriptions_max)]
    code, error = queue.refused("POST", f"{queue.path}/subscriptions", json={"url": URL})
    assert (code, error) == (503, "Too many subscriptions of this queue (max 20). Remove some that are not used.")
    for each in made:
        unsubscribe(queue, each)


def test_names_are_checked_and_namespaces_known(queue: Queue) -> None:
    bad = queue.refused("POST", "/namespaces/a/queues/%00/subscriptions", json={"url": URL})
    assert bad == (400, "invalid namespace or queue name")
    subscription_id = subscribe(queue)
    assert queue.namespace in [each["name"] for each in queue.ok("GET", "/namespaces")["namespaces"]]
    unsubscribe(queue, subscription_id)


def test_only_admins_of_the_namespace_have_to_do_with_subscriptions(tmp_path: Path) -> None:
    def bearer(scope: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token(scopes=[scope])}"}

    with ServerProcess(tmp_path / "data", env={"JWT_SECRET": SECRET}) as server, server.client() as client:
        queue = Queue(client, "mine")
        path = f"{queue.path}/subscriptions"
        made = queue.ok("POST", path, 201, json={"url": URL}, headers=bearer("mine:admin"))["id"]
        for scope in ("mine:consume", "mine:produce", "other:admin"):
            assert queue.refused("GET", path, headers=bearer(scope))[0] == 403
            assert queue.refused("POST", path, json={"url": URL}, headers=bearer(scope))[0] == 403
            not_found = (404, f"consumer: subscription not found: {made}")
            assert queue.refused("DELETE", f"/subscriptions/{made}", headers=bearer(scope)) == not_found
        queue.ok("DELETE", f"/subscriptions/{made}", 204, headers=bearer("mine:admin"))


# Deliveries.


async def test_a_message_is_posted_signed_and_acknowledged(pusher: ServerProcess, queue: Queue) -> None:
    async with Receiver(status(204)) as receiver:
        made = subscribe(queue, receiver.url, secret="whsec_ü")
        before = now_ms()
        message_id = queue.publish(b"\x00\xff", metadata={"a": "b"})
        (request,) = await receiver.until(1)
        await settled(queue, ready=0, in_flight=0, scheduled=0, dlq_depth=0)
        unsubscribe(queue, made)
    assert request.line == "POST /hook HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    expected = "sha256=" + hmac.new("whsec_ü".encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-epochq-signature"] == request.headers["x-epochqueue-signature"] == expected
    body = request.json
    assert before - 1_000 <= body.pop("published_at") <= now_ms() + 1_000
    assert queue.refused("DELETE", f"/messages/{body.pop('receipt_handle')}")[0] == 410
    assert body == {
        "id": message_id, "body": base64.b64encode(b"\x00\xff").decode(), "namespace": queue.namespace, "queue": queue.name,
        "attempt": 1, "metadata": {"a": "b"},
    }  # fmt: skip
    assert "whsec" not in pusher.log()


async def test_without_a_secret_nothing_is_signed(queue: Queue) -> None:
    queue.publish()
    async with Receiver(OK) as receiver:
        made = subscribe(queue, receiver.url)
        (request,) = await receiver.until(1)
        unsubscribe(queue, made)
    assert not [name for name in request.headers if "signature" in name]
    assert "metadata" not in request.json


async def test_a_refusal_makes_a_dead_letter_at_once(queue: Queue) -> None:
    async with Receiver(status(410)) as receiver:
        made = subscribe(queue, receiver.url)
        message_id = queue.publish()
        await settled(queue, dlq_depth=1, in_flight=0, scheduled=0)
        unsubscribe(queue, made)
        assert len(receiver.requests) == 1
    assert [each["id"] for each in queue.dead()] == [message_id]


@pytest.mark.parametrize("reply", [status(429), status(500), status(503), CLOSE, b"nonsense\r\n\r\n"])
async def test_what_may_get_better_is_tried_again_after_a_second(queue: Queue, reply: bytes) -> None:
    async with Receiver(reply, OK) as receiver:
        made = subscribe(queue, receiver.url)
        queue.publish()
        await receiver.until(1)
        first = now_ms()
        await settled(queue, scheduled=1, in_flight=0)
        await receiver.until(2)
        assert now_ms() - first >= 900
        await settled(queue, ready=0, in_flight=0, scheduled=0, dlq_depth=0)
        assert [each.json["attempt"] for each in receiver.requests] == [1, 2]
        unsubscribe(queue, made)


async def test_a_redirect_is_not_followed(queue: Queue) -> None:
    async with Receiver(OK) as elsewhere, Receiver(status(307, f"Location: {elsewhere.url}"), OK) as receiver:
        made = subscribe(queue, receiver.url)
        queue.publish()
        await receiver.until(2)
        await settled(queue, in_flight=0, scheduled=0)
        unsubscribe(queue, made)
        assert elsewhere.requests == []


async def test_two_subscriptions_share_a_queue(queue: Queue) -> None:
    async with Receiver(OK) as one, Receiver(OK) as other:
        made = [subscribe(queue, each.url) for each in (one, other)]
        ids = {queue.publish() for _ in range(40)}
        await settled(queue, ready=0, in_flight=0)
        got = [[each.json["id"] for each in receiver.requests] for receiver in (one, other)]
        assert len(got[0]) + len(got[1]) == 40
        assert {*got[0], *got[1]} == ids
        assert all(got), "both have their share"
        for each in made:
            unsubscribe(queue, each)


async def test_a_slow_receiver_gets_few_at_once_and_holds_up_nobody(queue: Queue) -> None:
    other = Queue(queue.http)
    async with Receiver(HANG) as slow, Receiver(OK) as quick:
        made = [subscribe(queue, slow.url), subscribe(other, quick.url)]
        for _ in range(8):
            queue.publish()
        await slow.until(limits.push_deliveries_max)
        await settled(queue, in_flight=limits.push_deliveries_max, ready=8 - limits.push_deliveries_max)
        other.publish()
        await quick.until(1)
        for each in made:
            unsubscribe(queue, each)


async def test_who_unsubscribes_gets_no_more(queue: Queue) -> None:
    async with Receiver(HANG) as receiver:
        made = subscribe(queue, receiver.url)
        queue.publish(b"begun")
        await receiver.until(1)
        unsubscribe(queue, made)
        queue.publish(b"late")
        assert queue.bodies(wait_ms=1_000) == [b"late"]
        assert len(receiver.requests) == 1


async def test_a_removed_queue_is_pushed_no_more(queue: Queue) -> None:
    async with Receiver(OK) as receiver:
        subscribe(queue, receiver.url)
        queue.publish()
        await receiver.until(1)
        await settled(queue, in_flight=0)
        queue.ok("DELETE", queue.path, 204)
        assert listed(queue) == []
        queue.publish(b"new")
        assert queue.bodies(wait_ms=1_000) == [b"new"]


async def test_it_is_counted(pusher: ServerProcess, queue: Queue) -> None:
    async with Receiver(OK, status(404), OK) as receiver:
        made = subscribe(queue, receiver.url)
        queue.publish()
        await settled(queue, ready=0, in_flight=0)
        queue.publish()
        await settled(queue, ready=0, in_flight=0)
        unsubscribe(queue, made)
    metrics = queue.http.get("/prometheus").text
    for name, count in (("published", 2), ("consumed", 2), ("acked", 1), ("nacked", 1), ("dlq_routed", 1)):
        assert f'epochq_messages_{name}_total{{namespace="{queue.namespace}",queue="jobs"}} {count}.0' in metrics


# Servers that come and go.


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_retry_plan_goes_on_after_a_restart(tmp_path: Path, how: str) -> None:
    async with Receiver(status(500), status(500), OK) as receiver:
        server = ServerProcess(tmp_path / "data", env=ALLOWED).start()
        with server.client() as client:
            queue = Queue(client)
            subscribe(queue, receiver.url, secret="s")
            queue.publish()
            await receiver.until(1)
            await settled(queue, scheduled=1)
            server.stop() if how == "stop" else server.kill()
        with server.start().client() as client:
            queue = Queue(client, queue.namespace)
            await receiver.until(2)
            await settled(queue, scheduled=1)
            assert len(listed(queue)) == 1
        server.stop()
        assert [each.json["attempt"] for each in receiver.requests] == [1, 2]
        assert all(each.headers["x-epochq-signature"] for each in receiver.requests)


async def test_what_a_killed_server_was_pushing_is_pushed_again(tmp_path: Path) -> None:
    async with Receiver(HANG, OK) as receiver:
        server = ServerProcess(tmp_path / "data", env=ALLOWED).start()
        with server.client() as client:
            queue = Queue(client)
            queue.make(visibility_timeout_ms=1_000)
            subscribe(queue, receiver.url)
            queue.publish()
            await receiver.until(1)
            server.kill()
        with server.start().client() as client:
            await receiver.until(2)
            await settled(Queue(client, queue.namespace), ready=0, in_flight=0, dlq_depth=0)
        server.stop()
        assert [each.json["attempt"] for each in receiver.requests] == [1, 2]
        assert len({each.json["id"] for each in receiver.requests}) == 1


async def test_what_a_stopping_server_was_pushing_goes_back(tmp_path: Path) -> None:
    async with Receiver(HANG, OK) as receiver:
        server = ServerProcess(tmp_path / "data", env=ALLOWED).start()
        with server.client() as client:
            queue = Queue(client)
            subscribe(queue, receiver.url)
            queue.publish()
            await receiver.until(1)
        assert server.stop() == 0
        with server:
            await receiver.until(2)
        assert [each.json["attempt"] for each in receiver.requests] == [1, 1], "nobody has failed"


async def test_the_plan_and_the_patience_are_settings(tmp_path: Path) -> None:
    env = ALLOWED | {"PENSTOCK_PUSH_RETRY_DELAYS_MS": "100,200", "PENSTOCK_PUSH_TIMEOUT_MS": "300"}
    async with Receiver(status(500), HANG) as receiver:
        with ServerProcess(tmp_path / "data", env=env) as server, server.client() as client:
            queue = Queue(client)
            subscribe(queue, receiver.url)
            queue.publish()
            await settled(queue, dlq_depth=1, in_flight=0, scheduled=0)
    assert [each.json["attempt"] for each in receiver.requests] == [1, 2, 3]
