"""One namespace cannot see, guess or touch what another has: every route and every command, tried with keys of a neighbour.

Each row says how a route or a command is asked with names. It is asked with those of alpha and with made-up ones of the same
shape; whoever has no key of alpha gets the same answer both times. In alpha, nothing has changed afterwards. The rows are
compared with the tables of the server: what is new there fails until it has one.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.access.api_keys import ApiKeys
from penstock.access.authenticator import Authenticator
from penstock.config import Config
from penstock.doors.resp.command_table import COMMANDS as RESP_COMMANDS
from penstock.outbound.guard import Guard
from penstock.server.doors import Doors
from tests.doors.listen import ear
from tests.doors.neighbours import LONG_MS, OWNER, STRANGER, neighbours, text_of
from tests.support.arrow import values
from tests.support.resp import Refused, RespClient
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import httpx2

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine
    from penstock.store.sqlite import SqliteStore
    from tests.doors.neighbours import Names, World

pytestmark = pytest.mark.anyio

KEYS = ("everything", "produce", "consume")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # What is on a ready list counts as active, for two seconds after somebody has pulled: two answers could not be compared.
    with neighbours(tmp_path_factory.mktemp("neighbours") / "data", PENSTOCK_REDIS_HOT_JOBS="1000000") as made:
        yield made


@pytest.fixture
def untouched(world: World) -> Iterator[None]:
    """Nothing changes in alpha meanwhile, as far as its owner can tell. Nothing is left in beta by the test before."""
    world.clear()
    before = world.state()
    yield
    after = world.state()
    assert {name: value for name, value in after.items() if before.get(name) != value} == {}
    assert after.keys() == before.keys()


# HTTP. Each row: what a key of beta gets in its own namespace, and how the route is asked.


class Ask(NamedTuple):
    """One way to ask a route, with the parameters of its path filled in."""

    path: str
    more: dict[str, Any]


class Row(NamedTuple):
    """``own``: the statuses a key of beta that may do everything there gets. ``kind``: what the route goes by."""

    own: set[int]
    asks: Callable[[Names, str], Iterable[Ask]]
    kind: str


def once(**more: Any) -> Callable[[Names, str], list[Ask]]:
    return lambda _names, path: [Ask(path, more)]


def per_job(**more: Any) -> Callable[[Names, str], list[Ask]]:
    return lambda names, path: [Ask(path.replace("{id}", each), more) for each in names.jobs]


def with_lease(**body: Any) -> Callable[[Names, str], list[Ask]]:
    """Each job with the lease of one of them, and without."""
    return lambda names, path: [
        Ask(path.replace("{id}", each), {"json": {**body, **lease}})
        for each in names.jobs
        for lease in ({}, {"token": names.token})
    ]


def all_at_once(**body: Any) -> Callable[[Names, str], list[Ask]]:
    """All jobs in one request, with the lease and without."""
    return lambda names, path: [
        Ask(path, {"json": {"ids": list(names.jobs), **body, **lease}})
        for lease in ({}, {"tokens": [names.token] * len(names.jobs)})
    ]


def per_queue(**more: Any) -> Callable[[Names, str], list[Ask]]:
    return lambda names, path: [
        Ask(path.replace("{queue}", each).replace("{ns}", names.namespace), more) for each in names.queues
    ]


def claims(names: Names, path: str) -> list[Ask]:
    """A group of that name, at each queue."""
    body = {"epoch": 1, "max": 3, "lease_ms": LONG_MS}
    return [Ask(path.replace("{group}", names.unique), {"json": {**body, "queues": [queue]}}) for queue in names.queues]


def staged(names: Names, path: str) -> list[Ask]:
    """A row for each queue."""
    content = values([1])
    return [
        Ask(path.replace("{txn}", names.unique), {"params": {"queue": each}, "content": content}) for each in names.queues
    ]


def commits(names: Names, path: str) -> list[Ask]:
    return [Ask(path, {"json": {"key": f"{names.unique}-{number}", "txns": [names.unique]}}) for number in range(2)]


def by_queue(names: Names, path: str) -> list[Ask]:
    """All, one queue, and what is about all of them together."""
    about = {"from": 0, "to": 4_000_000_000_000, "step": "30d"}
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"queue": names.queue},
        {"by": "namespace"},
        {"by": "all"},
        about | {"queue": names.queue, "by": "all"},
    )
    return [Ask(path, {"params": each}) for each in choices]


def pushes(names: Names) -> list[dict[str, Any]]:
    """Jobs that name others: as needed ones, as parents, or by having the same name."""
    named: list[dict[str, Any]] = [
        {},
        {"jobId": names.custom},
        {"customId": names.custom},
        {"groupId": names.unique},
        {"uniqueKey": names.unique},
        {"uniqueKey": names.unique, "dedup": {"replace": True}},
        {"debounceId": names.unique, "debounceTtl": LONG_MS},
        *({"jobId": each} for each in names.jobs),
        *({"dependsOn": [each]} for each in names.jobs),
        *({"childrenIds": [each]} for each in names.jobs),
        *({"parentId": each} for each in names.jobs),
    ]
    return [{"data": 1, "backoff": LONG_MS, **each} for each in named]


def pushed(names: Names, path: str) -> list[Ask]:
    return [Ask(path.replace("{queue}", names.queue), {"json": each}) for each in pushes(names)]


def pushed_in_bulk(names: Names, path: str) -> list[Ask]:
    return [Ask(path.replace("{queue}", names.queue), {"json": {"jobs": [each]}}) for each in pushes(names)]


def by_name(field: str, name: str, **more: Any) -> Callable[[Names, str], list[Ask]]:
    """The thing of that name in the path."""
    return lambda names, path: [Ask(path.replace(field, getattr(names, name)), more)]


def crons(names: Names) -> dict[str, Any]:
    return {"name": names.cron, "queue": names.queue, "data": 1, "schedule": "0 0 1 1 *"}


def workers(names: Names) -> dict[str, Any]:
    return {"name": "mine", "queues": [names.queue], "workerId": names.worker}


def items(names: Names, **more: Any) -> list[dict[str, Any]]:
    """Messages of the batches door, each on each topic."""
    return [
        {"namespace": names.namespace, "topic": topic, "id": each, **more}
        for topic in (*names.queues, names.topic)
        for each in names.items
    ]


def per_item(**more: Any) -> Callable[[Names, str], list[Ask]]:
    return lambda names, path: (
        [Ask(path, {"json": each}) for each in items(names, **more)]
        + ([] if path == "/dlq/delete" else [Ask(path, {"json": items(names, **more)})])
    )


def per_topic(names: Names, path: str) -> list[Ask]:
    return [Ask(path, {"params": {"namespace": names.namespace, "topic": topic}}) for topic in (*names.queues, names.topic)]


def enqueued(names: Names, path: str) -> list[Ask]:
    return [
        Ask(path, {"json": [{"namespace": names.namespace, "topic": names.topic, **more}]})
        for more in ({}, *({"idempotency_key": each} for each in (names.custom, names.once)))
    ]


def published(names: Names, path: str) -> list[Ask]:
    body: Any = [{"body": "mine"}] if path.endswith("batch") else {"body": "mine"}
    return [
        Ask(path.replace("{ns}", names.namespace).replace("{queue}", queue), {"json": body, "headers": given})
        for queue in names.queues
        for given in ({}, {"Idempotency-Key": names.message})
    ]


def receipts(names: Names, path: str) -> list[Ask]:
    return [Ask(path.replace("{receipt}", each), {}) for each in names.receipts]


def keys_made(names: Names, path: str) -> list[Ask]:
    return [
        Ask(path, {"json": {"namespaces": where, "roles": ["consume"]}})
        for where in ([names.namespace], [STRANGER, names.namespace], ["*"])
    ]


HOOK = {"url": "http://127.0.0.1:9/mine", "events": ["completed"]}
#: By a namespace, which is a header or part of what is asked. Another one than their own is 403.
NAMED = "named"
#: By ids alone. What is not theirs is as good as not there.
IDS = "ids"
#: About what they may see, whatever that is.
LIST = "list"
#: About the server as a whole.
SERVER = "server"
#: For everybody.
PUBLIC = "public"
#: Goes on: what it tells is in test_isolation_live.
STREAM = "stream"

MAIN: dict[str, Row] = {
    # Jobs.
    "POST /queues/{queue}/jobs": Row({200, 400}, pushed, NAMED),
    "POST /queues/{queue}/jobs/bulk": Row({200, 400}, pushed_in_bulk, NAMED),
    "GET /queues/{queue}/jobs": Row({200}, per_queue(), NAMED),
    "POST /queues/{queue}/jobs/pull-batch": Row({200}, per_queue(json={"count": 3}), NAMED),
    "GET /jobs/{id}": Row({200, 404}, per_job(), NAMED),
    "GET /jobs/custom/{id}": Row({200, 404}, per_job(), NAMED),
    "GET /jobs/{id}/state": Row({200}, per_job(), NAMED),
    "GET /jobs/{id}/result": Row({200}, per_job(), NAMED),
    "GET /jobs/{id}/progress": Row({200, 404}, per_job(), NAMED),
    "GET /jobs/{id}/children": Row({200, 404}, per_job(), NAMED),
    "GET /jobs/{id}/logs": Row({200, 404}, per_job(), NAMED),
    "POST /jobs/{id}/wait": Row({200, 404}, per_job(json={"timeout": 0}), NAMED),
    "POST /jobs/{id}/ack": Row({200, 400}, with_lease(result=1), NAMED),
    "POST /jobs/ack-batch": Row({200, 400}, all_at_once(), NAMED),
    "POST /jobs/{id}/fail": Row({200, 400}, with_lease(error="mine"), NAMED),
    "POST /jobs/{id}/progress": Row({200, 400}, with_lease(progress=1), NAMED),
    "POST /jobs/{id}/heartbeat": Row({200, 400}, with_lease(), NAMED),
    "POST /jobs/heartbeat-batch": Row({200, 400}, all_at_once(), NAMED),
    "POST /jobs/release-batch": Row({200, 400}, all_at_once(), NAMED),
    "POST /jobs/held-batch": Row({200}, all_at_once(), NAMED),
    "POST /jobs/stop-waiting": Row({200}, once(json={"waitId": "w"}), NAMED),
    "POST /jobs/{id}/extend-lock": Row({200, 400}, with_lease(duration=LONG_MS), NAMED),
    "POST /jobs/extend-locks": Row({200, 400}, all_at_once(), NAMED),
    "POST /jobs/{id}/logs": Row({200, 400}, per_job(json={"message": "mine"}), NAMED),
    "DELETE /jobs/{id}/logs": Row({200, 404}, per_job(), NAMED),
    "POST /jobs/{id}/move-to-delayed": Row({400}, per_job(json={"delay": LONG_MS}), NAMED),
    "PUT /jobs/{id}/data": Row({200, 400}, per_job(json={"data": "mine"}), NAMED),
    "PUT /jobs/{id}/priority": Row({200, 400}, per_job(json={"priority": 3}), NAMED),
    "PUT /jobs/{id}/delay": Row({200, 400}, per_job(json={"delay": LONG_MS}), NAMED),
    "POST /jobs/{id}/promote": Row({200, 400}, per_job(), NAMED),
    "POST /jobs/{id}/move-to-wait": Row({200, 400}, per_job(), NAMED),
    "POST /jobs/{id}/discard": Row({200, 400}, per_job(), NAMED),
    "DELETE /jobs/{id}": Row({200, 400, 404}, per_job(), NAMED),
    # Queues.
    "GET /queues": Row({200}, once(), NAMED),
    "GET /queues/summary": Row({200}, once(), NAMED),
    "GET /queues/{queue}/jobs/list": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/counts": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/count": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/priority-counts": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/paused": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/dlq/stats": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/dlq": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/rate-limit": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/concurrency": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/stall-config": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/dlq-config": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/mode": Row({200}, per_queue(), NAMED),
    "GET /queues/{queue}/workers": Row({200}, per_queue(), NAMED),
    "POST /queues/{queue}/clean": Row({200}, per_queue(json={}), NAMED),
    "POST /queues/{queue}/promote-jobs": Row({200}, per_queue(json={}), NAMED),
    "POST /queues/{queue}/retry-completed": Row(
        {200, 400},
        lambda names, path: [
            Ask(path.replace("{queue}", queue), {"json": body})
            for queue in names.queues[:3]
            for body in ({}, *({"id": each} for each in names.jobs))
        ],
        NAMED,
    ),
    "POST /queues/{queue}/dlq/retry": Row(
        {200, 400},
        lambda names, path: [
            Ask(path.replace("{queue}", queue), {"json": body})
            for queue in names.queues[:3]
            for body in ({}, *({"jobId": each} for each in names.jobs))
        ],
        NAMED,
    ),
    "POST /queues/{queue}/dlq/purge": Row({200}, per_queue(), NAMED),
    "PUT /queues/{queue}/rate-limit": Row({200}, per_queue(json={"limit": 1_000_000}), NAMED),
    "DELETE /queues/{queue}/rate-limit": Row({200}, per_queue(), NAMED),
    "PUT /queues/{queue}/concurrency": Row({200}, per_queue(json={"limit": 1_000_000}), NAMED),
    "DELETE /queues/{queue}/concurrency": Row({200}, per_queue(), NAMED),
    "PUT /queues/{queue}/stall-config": Row({200}, per_queue(json={"stallInterval": LONG_MS}), NAMED),
    "PUT /queues/{queue}/dlq-config": Row({200}, per_queue(json={"maxEntries": 3}), NAMED),
    "PUT /queues/{queue}/mode": Row({200}, per_queue(json={"mode": "direct"}), NAMED),
    "POST /queues/{queue}/pause": Row({200}, per_queue(), NAMED),
    "POST /queues/{queue}/resume": Row({200}, per_queue(), NAMED),
    "POST /queues/{queue}/drain": Row({200}, per_queue(), NAMED),
    "POST /queues/{queue}/obliterate": Row({200}, per_queue(), NAMED),
    # Crons, webhooks, workers.
    "GET /crons": Row({200}, once(), NAMED),
    "GET /crons/{id}": Row({200, 404}, by_name("{id}", "cron"), NAMED),
    "DELETE /crons/{id}": Row({200, 404}, by_name("{id}", "cron"), NAMED),
    "POST /crons": Row({200}, lambda names, path: [Ask(path, {"json": crons(names)})], NAMED),
    "GET /webhooks": Row({200}, once(), NAMED),
    "POST /webhooks": Row({200}, lambda names, path: [Ask(path, {"json": {**HOOK, "queue": names.queue}})], NAMED),
    "DELETE /webhooks/{id}": Row({404}, by_name("{id}", "webhook"), NAMED),
    "PUT /webhooks/{id}/enabled": Row({404}, by_name("{id}", "webhook", json={"enabled": False}), NAMED),
    "GET /workers": Row({200}, once(), NAMED),
    "DELETE /workers/{id}": Row({200, 404}, by_name("{id}", "worker"), NAMED),
    "POST /workers/{id}/heartbeat": Row({200}, by_name("{id}", "worker", json={"processed": 7}), NAMED),
    "POST /workers": Row({200}, lambda names, path: [Ask(path, {"json": workers(names)})], NAMED),
    # Events.
    "GET /events": Row({200}, once(), STREAM),
    "GET /events/queues/{queue}": Row({200}, per_queue(), STREAM),
    # The batches door.
    "GET /topics": Row({200}, lambda names, path: [Ask(path, {"params": {"namespace": names.namespace}})], NAMED),
    "GET /dlq": Row({200}, per_topic, NAMED),
    "GET /dequeue": Row({200}, per_topic, NAMED),
    "POST /ack": Row({200, 400, 404}, per_item(), NAMED),
    "POST /heartbeat": Row({200, 400, 404}, per_item(), NAMED),
    "POST /nack": Row({200, 404}, per_item(error="mine"), NAMED),
    "POST /dlq/delete": Row({200}, per_item(), NAMED),
    "POST /enqueue": Row({200}, enqueued, NAMED),
    # The topics door.
    "POST /publish/{topic}": Row({201}, by_name("{topic}", "topic", content=b"mine"), NAMED),
    "POST /subscribe/{topic}": Row({200}, by_name("{topic}", "topic", content=b'"INIT"\n'), STREAM),
    "DELETE /{topic}": Row({200}, by_name("{topic}", "topic"), NAMED),
    # The messages door.
    "GET /namespaces": Row({200}, once(), LIST),
    "POST /namespaces": Row({201, 409}, lambda names, path: [Ask(path, {"json": {"name": names.namespace}})], NAMED),
    "GET /namespaces/{ns}/queues": Row({200}, by_name("{ns}", "namespace"), NAMED),
    "GET /namespaces/{ns}/queues/{queue}/messages": Row({200}, per_queue(), NAMED),
    "GET /namespaces/{ns}/queues/{queue}/dlq": Row({200, 404}, per_queue(), NAMED),
    "POST /namespaces/{ns}/queues/{queue}/dlq/replay": Row({200, 404}, per_queue(), NAMED),
    "GET /namespaces/{ns}/queues/{queue}/subscriptions": Row({200}, per_queue(), NAMED),
    "POST /namespaces/{ns}/queues/{queue}/subscriptions": Row({201}, per_queue(json={"url": HOOK["url"]}), NAMED),
    "DELETE /subscriptions/{id}": Row({404}, by_name("{id}", "subscription"), IDS),
    "POST /namespaces/{ns}/queues/{queue}/messages": Row({201}, published, NAMED),
    "POST /namespaces/{ns}/queues/{queue}/messages/batch": Row({201}, published, NAMED),
    "DELETE /messages/{receipt}": Row({410}, receipts, IDS),
    "POST /messages/{receipt}/nack": Row({410}, receipts, IDS),
    "DELETE /namespaces/{ns}/queues/{queue}/messages": Row({200, 404}, per_queue(), NAMED),
    "DELETE /namespaces/{ns}/queues/{queue}": Row({204, 404}, per_queue(), NAMED),
    "POST /namespaces/{ns}/queues/{queue}": Row({201, 409}, per_queue(json={}), NAMED),
    "DELETE /namespaces/{ns}": Row({204, 404}, by_name("{ns}", "namespace"), NAMED),
    "GET /api/stats": Row({200}, once(), LIST),
    "GET /api/stats/summary": Row({200}, once(), LIST),
    # Bulk reads.
    "GET /bulk": Row({200}, once(), NAMED),
    "GET /bulk/journal": Row({200}, once(params={"from": 1}), NAMED),
    "GET /bulk/journal/at": Row({200}, once(params={"timestamp": 1}), NAMED),
    "POST /bulk/snapshots": Row({201}, once(json={}), NAMED),
    "GET /bulk/snapshots/{id}/parts/{part}": Row(
        {404}, lambda names, path: [Ask(path.replace("{id}", names.snapshot).replace("{part}", "0"), {})], NAMED
    ),
    "DELETE /bulk/snapshots/{id}": Row({404}, by_name("{id}", "snapshot"), NAMED),
    # Insights.
    "GET /insights": Row({200}, once(), NAMED),
    "GET /insights/queues": Row({200}, by_queue, NAMED),
    "GET /insights/series": Row({200}, by_queue, NAMED),
    "GET /insights/latency": Row({200}, by_queue, NAMED),
    "GET /insights/failures": Row({200}, by_queue, NAMED),
    "GET /insights/backlog": Row({200}, by_queue, NAMED),
    "GET /insights/workers": Row({200}, by_queue, NAMED),
    "GET /insights/tenants": Row({200}, by_queue, NAMED),
    "GET /insights/slo": Row({200}, by_queue, NAMED),
    "GET /insights/forecast": Row({200}, by_queue, NAMED),
    # The bulk door.
    "GET /bulk/groups": Row({200}, once(), NAMED),
    "POST /bulk/groups/{group}/claim": Row({200}, claims, NAMED),
    "GET /bulk/groups/{group}/read": Row({200, 404}, by_name("{group}", "unique", params={"epoch": 1}), NAMED),
    "POST /bulk/groups/{group}/ack": Row({200}, by_name("{group}", "unique", json={"epoch": 1}), NAMED),
    "POST /bulk/groups/{group}/release": Row({200}, by_name("{group}", "unique"), NAMED),
    "POST /bulk/groups/{group}/heartbeat": Row({200}, by_name("{group}", "unique", json={}), NAMED),
    "POST /bulk/stages/{txn}": Row({200}, staged, NAMED),
    "POST /bulk/stages/{txn}/abort": Row({200}, by_name("{txn}", "unique"), NAMED),
    "POST /bulk/commits": Row({200, 404}, commits, NAMED),
    "GET /bulk/commits/{key}": Row({200, 404}, by_name("{key}", "unique"), NAMED),
    # Keys.
    "GET /keys": Row({200}, once(), LIST),
    "POST /keys": Row({403}, keys_made, IDS),
    "DELETE /keys/{id}": Row({404}, by_name("{id}", "key"), IDS),
    # The server.
    "GET /ping": Row({200}, once(), PUBLIC),
    "GET /health": Row({200}, once(), PUBLIC),
    "GET /healthz": Row({200}, once(), PUBLIC),
    "GET /live": Row({200}, once(), PUBLIC),
    "GET /ready": Row({200}, once(), PUBLIC),
    "GET /openapi.json": Row({200}, once(), PUBLIC),
    "GET /docs": Row({200}, once(), PUBLIC),
    "GET /": Row({200}, once(), PUBLIC),
    "GET /stats": Row({403}, once(), SERVER),
    "GET /metrics": Row({403}, once(), SERVER),
    "GET /prometheus": Row({403}, once(), SERVER),
    "GET /storage": Row({403}, once(), SERVER),
    "GET /shards": Row({403}, once(), SERVER),
    "POST /shards/rebalance": Row({403}, once(json={}), SERVER),
    "POST /gc": Row({403}, once(), SERVER),
    "GET /heapstats": Row({403}, once(), SERVER),
}  # fmt: skip
_METRICS = {"GET /metrics": MAIN["GET /prometheus"]}


def same(*beginnings: str) -> dict[str, Row]:
    """Return the rows of the main listener whose paths begin like that."""
    return {name: row for name, row in MAIN.items() if name.split()[1].startswith(beginnings)}


LISTENERS: dict[str, dict[str, Row]] = {
    "http": MAIN,
    "metrics": {**_METRICS, **same("/prometheus")},
    "batches": {
        **same("/enqueue", "/dequeue", "/ack", "/nack", "/heartbeat", "/dlq", "/topics"),
        "GET /health": Row({200}, once(), PUBLIC),
    },
    "topics": same("/publish", "/subscribe/", "/{topic}"),
    "messages": {
        **same("/namespaces", "/messages", "/subscriptions", "/api/stats"),
        **_METRICS,
        "GET /health": Row({200}, once(), LIST),
    },
}


@pytest.fixture
async def doors(engine: Engine, store: SqliteStore, clock: ManualClock) -> Doors:
    """All there is to be asked, as the server puts it together."""
    return Doors(Config(), engine, Authenticator(clock), Guard(()), ApiKeys(store, clock), clock=clock)


async def test_every_route_of_every_listener_has_a_row(doors: Doors) -> None:
    tables = {name: {f"{route.method} {route.path}" for route in routes} for name, routes in doors.routes.items()}
    assert tables == {name: set(rows) for name, rows in LISTENERS.items()}


class Answer(NamedTuple):
    """How something was asked, and what was answered, without what depends on the names."""

    asked: str
    status: int
    text: str


#: Headers that have to do with the connection, not with the answer.
_NOT_TOLD = ("date", "content-length", "connection")


def answers(world: World, client: httpx2.Client, name: str, asks: Iterable[Ask], namespace: str) -> list[Answer]:
    """Return what all ways to ask a route are answered."""
    found: list[Answer] = []
    for path, more in asks:
        more = {**more, "headers": {"X-Namespace": namespace, **more.get("headers", {})}}
        reply = client.request(name.split(maxsplit=1)[0], path, **more)
        asked = f"{name}: {path} {more}"
        told = "\n".join(f"{field}: {value}" for field, value in reply.headers.items() if field not in _NOT_TOLD)
        found.append(Answer(asked, reply.status_code, world.look_through(asked, f"{told}\n\n{reply.text}")))
    assert found, name
    return found


def compared(
    world: World, client: httpx2.Client, name: str, row: Row, *, namespace: str | None = None, most: int | None = None
) -> set[int]:
    """Ask a route with alpha's names and with made-up ones; insist on the same answers, and return their statuses.

    ``namespace``: where, if not where the names are from. ``most``: how many ways to ask it are tried.
    """
    where: dict[str, Any] = {} if namespace is None else {"namespace": namespace}
    theirs, nobodys = world.names._replace(**where), world.names.made_up()._replace(**where)
    path = name.split()[1]
    asks, others = list(row.asks(theirs, path))[:most], list(row.asks(nobodys, path))[:most]
    got = answers(world, client, name, asks, theirs.namespace)
    if asks != others:
        for one, other in zip(got, answers(world, client, name, others, nobodys.namespace), strict=True):
            assert one[1:] == other[1:], one.asked
    return {answer.status for answer in got}


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.usefixtures("untouched")
def test_a_foreign_namespace_is_refused_as_one_that_is_not_there(world: World, listener: str) -> None:
    for key in KEYS:
        with world.port_client(listener, key) as client:
            for name, row in LISTENERS[listener].items():
                if row.kind in (NAMED, STREAM):
                    assert compared(world, client, name, row, most=None if key == KEYS[0] else 1) == {403}, name


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.usefixtures("untouched")
def test_what_is_about_the_whole_server_is_refused(world: World, listener: str) -> None:
    for key in KEYS:
        with world.port_client(listener, key) as client:
            for name, row in LISTENERS[listener].items():
                if row.kind == SERVER:
                    assert compared(world, client, name, row) == {403}, name


@pytest.mark.parametrize(
    ("listener", "key"), [*((each, KEYS[0]) for each in LISTENERS), *(("http", key) for key in KEYS[1:])]
)
@pytest.mark.usefixtures("untouched")
def test_names_of_another_namespace_are_as_good_as_made_up(world: World, listener: str, key: str) -> None:
    wrong: dict[str, set[int]] = {}
    with world.port_client(listener, key) as client:
        for name, row in LISTENERS[listener].items():
            if row.kind in (NAMED, IDS):
                statuses = compared(world, client, name, row, namespace=STRANGER if row.kind == NAMED else None)
                if statuses - row.own - ({403} if key != KEYS[0] else set()):
                    wrong[name] = statuses
    assert wrong == {}


@pytest.mark.usefixtures("untouched")
def test_a_namespace_that_is_spelled_in_a_strange_way_is_none(world: World) -> None:
    key, job = world.keys["everything"], world.names.jobs[0]
    headers = [
        [(b"X-Namespace", each) for each in some]
        for some in (
            (b"beta", b"alpha"), (b"alpha", b"beta"), (b"beta,alpha",), (b"ALPHA",), (b"",), (b"*",),
            (b"\xc3\xa4lpha",), (b"%61lpha",), (b"beta/../alpha",), (b"alpha:",), (b":alpha",),
        )
    ]  # fmt: skip
    paths = ("/queues", f"/jobs/{job}", f"/queues/{world.names.queue}/jobs/list", "/crons", "/webhooks", "/workers")
    with world.server.client() as client:
        for given in headers:
            for path in paths:
                reply = client.get(path, headers=[(b"X-Api-Key", key.encode()), *given])
                world.look_through(f"{path} {given}", reply.text)
                assert "zebra-still" not in reply.text, f"{path} {given}"
        for path in (
            "/namespaces/beta/../alpha/queues", "/namespaces/beta%2F..%2Falpha/queues", "/namespaces//alpha/queues",
            "/namespaces/%61lpha/queues", "/namespaces/alpha%00/queues", "/namespaces/*/queues",
            "/topics?namespace=beta&namespace=alpha", "/topics?namespace=alpha&namespace=beta",
            "/namespaces/beta/queues/..%2F..%2Falpha%2Fqueues%2Fzebra-messages/messages",
        ):  # fmt: skip
            reply = client.get(path, headers={"X-Api-Key": key, "X-Namespace": STRANGER})
            world.look_through(path, reply.text)
            assert "zebra-still" not in reply.text, path


@pytest.mark.usefixtures("untouched")
def test_what_is_partly_foreign_is_refused_as_a_whole(world: World) -> None:
    parts = [{"namespace": each, "topic": "partly", "id": world.names.items[0]} for each in (STRANGER, OWNER)]
    with world.port_client("http", "everything") as client:
        for path in ("/enqueue", "/ack", "/nack", "/heartbeat"):
            for body in (parts, parts[::-1]):
                assert client.post(path, json=body).status_code == 403, path
        assert "partly" not in client.get("/topics", params={"namespace": STRANGER}).json()


# Commands over TCP and WebSocket: fields for each way to ask. A command of the session itself is for everybody.


def fields(**same: Any) -> Callable[[Names], list[dict[str, Any]]]:
    return lambda _names: [same]


def job(**same: Any) -> Callable[[Names], list[dict[str, Any]]]:
    return lambda names: [{"id": each, **same} for each in names.jobs]


def leased(**same: Any) -> Callable[[Names], list[dict[str, Any]]]:
    return lambda names: [{"id": each, **same, **lease} for each in names.jobs for lease in ({}, {"token": names.token})]


def several(names: Names) -> list[dict[str, Any]]:
    every = list(names.jobs)
    return [{"ids": every}, {"ids": every, "tokens": [names.token] * len(every)}]


def queue(**same: Any) -> Callable[[Names], list[dict[str, Any]]]:
    return lambda names: [{"queue": each, **same} for each in names.queues]


COMMANDS: dict[str, Callable[[Names], list[dict[str, Any]]]] = {
    # The session.
    "Auth": fields(token="wrong"),
    "Hello": fields(),
    "Ping": fields(),
    # Producers and workers.
    "PUSH": lambda names: [{"queue": names.queue, **each} for each in pushes(names)],
    "PUSHB": lambda names: [{"queue": names.queue, "jobs": [each]} for each in pushes(names)],
    "PUSHF": lambda names: [
        {"jobs": [{"id": f"{names.queue}-flow", "queue": names.queue, "input": {**each, "data": {}}}]}
        for each in pushes(names)
    ],
    "PULL": queue(),
    "PULLB": queue(count=2),
    "ACK": leased(result=1),
    "ACKB": several,
    "FAIL": leased(error="mine"),
    "Progress": leased(progress=1),
    "JobHeartbeat": leased(),
    "JobHeartbeatB": several,
    "ExtendLock": leased(duration=LONG_MS),
    "ExtendLocks": several,
    # Looking.
    "GetJob": job(),
    "GetJobByCustomId": lambda names: [{"customId": each} for each in names.jobs],
    "GetState": job(),
    "GetResult": job(),
    "GetProgress": job(),
    "WaitJob": job(timeout=0),
    "GetLogs": job(),
    "GetChildrenValues": job(),
    "GetFailedChildrenValues": job(),
    "GetIgnoredChildrenFailures": job(),
    "ListQueues": fields(),
    "GetJobs": queue(),
    "GetJobCounts": queue(),
    "GetCountsPerPriority": queue(),
    "Count": queue(),
    "IsPaused": queue(),
    "Dlq": queue(),
    "GetDlqStats": queue(),
    "GetQueueLimits": queue(),
    "GetDeduplicationJobId": queue(deduplicationId="once"),
    "GetStallConfig": queue(),
    "GetDlqConfig": queue(),
    "ListWorkers": fields(),
    "CronList": fields(),
    "ListWebhooks": fields(),
    # Intervening.
    "Update": job(data="mine"),
    "ChangePriority": job(priority=3),
    "Promote": job(),
    "ChangeDelay": job(delay=LONG_MS),
    "MoveToDelayed": job(delay=LONG_MS),
    "MoveToWaitingChildren": job(),
    "MoveToWait": job(),
    "Discard": job(),
    "AddLog": job(message="mine"),
    "ClearLogs": job(),
    "UpdateParent": lambda names: [
        {"childId": child, "parentId": parent} for child in names.jobs for parent in (names.jobs[0], names.custom)
    ],
    "RemoveChildDependency": job(),
    "RemoveUnprocessedChildren": job(),
    "Cancel": job(),
    # Queues.
    "Clean": queue(),
    "PromoteJobs": queue(),
    "RetryCompleted": lambda names: [{"queue": names.queue, "id": each} for each in names.jobs],
    "RetryDlq": lambda names: [{"queue": names.queue, "jobId": each} for each in names.jobs],
    "RemoveDeduplicationKey": queue(deduplicationId="once"),
    "RemoveJobDeduplicationKey": job(),
    "RemoveDlqJob": lambda names: [{"queue": names.queue, "jobId": each} for each in names.jobs],
    "PurgeDlq": queue(),
    "RateLimit": queue(limit=1_000_000),
    "RateLimitClear": queue(),
    "SetConcurrency": queue(limit=1_000_000),
    "ClearConcurrency": queue(),
    "SetStallConfig": queue(config={"stallInterval": LONG_MS}),
    "SetDlqConfig": queue(config={"maxEntries": 3}),
    "Pause": queue(),
    "Resume": queue(),
    "Drain": queue(),
    "Obliterate": queue(),
    # Crons, webhooks, workers.
    "CronGet": lambda names: [{"name": names.cron}],
    "CronDelete": lambda names: [{"name": names.cron}],
    "Cron": lambda names: [crons(names)],
    "AddWebhook": lambda names: [{**HOOK, "queue": names.queue}],
    "RemoveWebhook": lambda names: [{"webhookId": names.webhook}],
    "SetWebhookEnabled": lambda names: [{"id": names.webhook, "enabled": False}],
    "Heartbeat": lambda names: [{"id": names.worker, "processed": 7}],
    "UnregisterWorker": lambda names: [{"workerId": names.worker}],
    "RegisterWorker": lambda names: [workers(names)],
    # The server.
    "Stats": fields(),
    "Metrics": lambda names: [{}, *queue(type="failed")(names)],
    "Prometheus": fields(),
    "StorageStatus": fields(),
    "CompactMemory": fields(),
    # Events. Last, so that nothing happens while something is subscribed to.
    "TrimEvents": queue(maxLength=1),
    "DashboardQueues": fields(),
    **{
        name: queue(groupId="g", max=1, duration=1, concurrency=1)
        for name in (
            "GetGroupJobsCount",
            "GetGroupActiveCount",
            "GetGroupsJobsCount",
            "GetGroupConcurrency",
            "GetGroupRateLimit",
            "GetGroupRateLimitTtl",
            "IsGroupPaused",
            "RemoveGroupConcurrency",
            "RemoveGroupRateLimit",
            "ResumeGroup",
            "SetGroupConcurrency",
            "SetGroupRateLimit",
            "RateLimitGroup",
            "PauseGroup",
        )
    },
    "UnsubscribeEvents": fields(),
    "SubscribeEvents": queue(),
}
FOR_EVERYBODY = {"Auth", "Hello", "Ping"}
SERVER_COMMANDS = {"Stats", "Metrics", "Prometheus", "StorageStatus", "CompactMemory"}


async def test_every_command_has_a_row(doors: Doors) -> None:
    assert set(doors.commands) == set(COMMANDS)
    assert set(WORDS) == {name.decode() for name in RESP_COMMANDS}


class Talk:
    """Says commands over TCP or WebSocket."""

    def __init__(self, world: World, way: str, key: str, namespace: str, stack: ExitStack) -> None:
        self._world = world
        server, shown = world.server, world.keys[key]
        over_tcp = way == "tcp"
        tell = (
            stack.enter_context(TcpClient(server.tcp_port)).call
            if over_tcp
            else stack.enter_context(ear(server, additional_headers={"X-Namespace": namespace})).ask
        )
        self._say: Callable[..., Any] = tell
        # Over TCP a client without a right in the namespace cannot choose it: it stays in the default namespace.
        chosen = {"namespace": namespace} if over_tcp and namespace == STRANGER else {}
        assert tell("Auth", token=shown, **chosen) == {"ok": True}

    def __call__(self, name: str, more: dict[str, Any]) -> tuple[bool, str]:
        """Return whether a command was done, and what was answered."""
        answer = self._say(name, **more)
        return answer["ok"], self._world.look_through(f"{name} {more}", text_of(answer))


@pytest.mark.parametrize("way", ["tcp", "websocket"])
@pytest.mark.usefixtures("untouched")
def test_a_foreign_namespace_cannot_be_chosen_like_one_that_is_not_there(world: World, way: str) -> None:
    for key in KEYS:
        with ExitStack() as stack:
            talk = Talk(world, way, key, STRANGER, stack)
            theirs, nobodys = (
                talk("Auth", {"token": world.keys[key], "namespace": names.namespace})
                for names in (world.names, world.names.made_up())
            )
            assert theirs == nobodys
            assert not theirs[0]
            assert "This token has no permission in the namespace" in theirs[1]


@pytest.mark.parametrize("way", ["tcp", "websocket"])
@pytest.mark.usefixtures("untouched")
def test_commands_in_a_foreign_namespace_are_refused_as_in_one_that_is_not_there(world: World, way: str) -> None:
    made_up = world.names.made_up()
    for key in KEYS:
        with ExitStack() as stack:
            theirs, nobodys = (Talk(world, way, key, each.namespace, stack) for each in (world.names, made_up))
            for name, row in COMMANDS.items():
                for one, other in zip(row(world.names), row(made_up), strict=True):
                    done, answer = theirs(name, one)
                    assert (done, answer) == nobodys(name, other), f"{name} {one}"
                    assert done is (name in FOR_EVERYBODY - {"Auth"}), f"{name} {one}"
                    assert done or name == "Auth" or "This token has no permission for this in the " in answer, (
                        f"{name} {one}"
                    )
                    if key != KEYS[0]:
                        break


@pytest.mark.parametrize(("way", "key"), [("tcp", "everything"), ("websocket", "everything"), ("tcp", "consume")])
@pytest.mark.usefixtures("untouched")
def test_names_of_another_namespace_are_as_good_as_made_up_to_commands(world: World, way: str, key: str) -> None:
    made_up = world.names.made_up()
    with ExitStack() as stack:
        mine = Talk(world, way, key, STRANGER, stack)
        for name, row in COMMANDS.items():
            asks, others = row(world.names), row(made_up)
            got = [mine(name, each) for each in asks]
            if name in SERVER_COMMANDS:
                assert got[0][0] is False, name
                assert "has no permission for this in the whole server" in got[0][1], name
            if asks != others:
                for ask, one, other in zip(asks, got, [mine(name, each) for each in others], strict=True):
                    assert one == other, f"{name} {ask}"


# The Redis protocol.


WORDS: dict[str, Callable[[Names], list[tuple[str, ...]]]] = {
    "PUBLISH": lambda names: [("PUBLISH", names.topic, "mine")],
    "TOPICS": lambda _names: [("TOPICS",)],
    "PUSH": lambda names: [
        ("PUSH", names.queue, "1"),
        *(("PUSH", names.queue, "1", "ID", each) for each in (names.custom, *names.jobs)),
    ],
    "PULL": lambda names: [("PULL", each, "COUNT", "2") for each in (*names.queues, names.topic)],
    "DONE": lambda names: [("DONE", each, *lease) for each in names.jobs for lease in ((), (names.token,))],
    "FAIL": lambda names: [("FAIL", each, *lease) for each in names.jobs for lease in ((), (names.token, "mine"))],
    "ACK": lambda _names: [("ACK",)],
    "RECEIVE": lambda names: [("RECEIVE", names.topic)],
    "NACK": lambda _names: [("NACK",)],
    "BACK": lambda _names: [("BACK",)],
    "DACK": lambda _names: [("DACK",)],
    "PING": lambda _names: [("PING",)],
    "ECHO": lambda _names: [("ECHO", "mine")],
    "SELECT": lambda _names: [("SELECT", "0")],
    "INFO": lambda _names: [("INFO",)],
    "CLIENT": lambda _names: [("CLIENT", "LIST"), ("CLIENT", "INFO")],
    "COMMAND": lambda _names: [("COMMAND", "COUNT")],
    "AUTH": lambda names: [("AUTH", names.namespace, "wrong")],
    "HELLO": lambda names: [("HELLO", "3", "AUTH", names.namespace, "wrong")],
    # These end what the others need, or wait; they are tried by themselves.
    "SUBSCRIBE": lambda _names: [],
    "RESET": lambda _names: [],
    "QUIT": lambda _names: [],
}
#: Words about the connection alone.
ABOUT_THE_CONNECTION = {"PING", "ECHO", "SELECT", "CLIENT", "COMMAND"}


def said(world: World, client: RespClient, words: tuple[str, ...]) -> tuple[bool, str]:
    """Return whether a command was done, and what was answered."""
    answer = client.call(*words)
    done = not isinstance(answer, Refused)
    return done, "" if words[0] == "CLIENT" else world.look_through(" ".join(words), text_of(answer))


@pytest.mark.usefixtures("untouched")
def test_the_redis_protocol_refuses_a_foreign_namespace_as_one_that_is_not_there(world: World) -> None:
    made_up, port = world.names.made_up(), world.server.resp_port
    for key in KEYS:
        with RespClient(port) as theirs, RespClient(port) as nobodys:
            for client, names in ((theirs, world.names), (nobodys, made_up)):
                assert client.refused("AUTH", names.namespace, world.keys[key]).startswith("NOPERM ")
                client.ok("AUTH", world.keys[key])  # it has no right in the default namespace
            for name, row in WORDS.items():
                for one, other in zip(row(world.names), row(made_up), strict=True):
                    done, answer = said(world, theirs, one)
                    assert (done, answer) == said(world, nobodys, other), one
                    assert done is (name in ABOUT_THE_CONNECTION), one
                    assert done or answer.startswith(('"NOPERM ', '"WRONGPASS ')), one
            assert theirs.refused("SUBSCRIBE", world.names.topic).startswith("NOPERM ")
            assert theirs.call("RESET") == b"RESET"
            assert theirs.refused("HELLO", "3", "AUTH", OWNER, world.keys[key]).startswith("NOPERM ")
            assert theirs.refused("TOPICS").startswith("NOAUTH ")


@pytest.mark.usefixtures("untouched")
def test_names_of_another_namespace_are_as_good_as_made_up_to_the_redis_protocol(world: World) -> None:
    made_up = world.names.made_up()
    for key in KEYS:
        with RespClient(world.server.resp_port) as client:
            client.ok("AUTH", STRANGER, world.keys[key])
            for row in WORDS.values():
                asks, others = row(world.names), row(made_up)
                got = [said(world, client, each) for each in asks]
                if asks != others and asks[0][0] not in ("AUTH", "HELLO"):
                    for ask, one, other in zip(asks, got, [said(world, client, each) for each in others], strict=True):
                        assert one == other, ask
            assert client.call("RESET") == b"RESET"
