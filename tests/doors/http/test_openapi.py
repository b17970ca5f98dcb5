"""The routes, the contract's own list of them, and the OpenAPI document agree; and no call that fits it breaks the server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator, validate
from schemathesis.checks import load_all_checks

from tests.docs.generate import ROOT
from tests.support import stores

if TYPE_CHECKING:
    from tests.doors.api import Api
    from tests.support.server import ServerProcess

#: The contract's summary of endpoints, and what goes beyond it.
CONTRACT = """
POST /queues/:q/jobs
POST /queues/:q/jobs/bulk
GET /queues/:q/jobs
POST /queues/:q/jobs/pull-batch
GET /jobs/:id
GET /jobs/custom/:customId
DELETE /jobs/:id
POST /jobs/:id/ack
POST /jobs/ack-batch
POST /jobs/:id/fail
GET /jobs/:id/state
GET /jobs/:id/result
GET /jobs/:id/progress
POST /jobs/:id/progress
PUT /jobs/:id/data
PUT /jobs/:id/priority
POST /jobs/:id/promote
POST /jobs/:id/move-to-wait
POST /jobs/:id/move-to-delayed
PUT /jobs/:id/delay
POST /jobs/:id/discard
POST /jobs/:id/wait
POST /jobs/:id/heartbeat
POST /jobs/heartbeat-batch
POST /jobs/release-batch
POST /jobs/held-batch
POST /jobs/stop-waiting
POST /jobs/:id/extend-lock
POST /jobs/extend-locks
GET /jobs/:id/children
GET /jobs/:id/logs
POST /jobs/:id/logs
DELETE /jobs/:id/logs
GET /queues
GET /queues/summary
GET /queues/:q/jobs/list
GET /queues/:q/counts
GET /queues/:q/count
GET /queues/:q/priority-counts
GET /queues/:q/paused
POST /queues/:q/pause
POST /queues/:q/resume
POST /queues/:q/drain
POST /queues/:q/obliterate
POST /queues/:q/clean
POST /queues/:q/promote-jobs
POST /queues/:q/retry-completed
GET /queues/:q/dlq
GET /queues/:q/dlq/stats
POST /queues/:q/dlq/retry
POST /queues/:q/dlq/purge
GET /queues/:q/rate-limit
PUT /queues/:q/rate-limit
DELETE /queues/:q/rate-limit
GET /queues/:q/concurrency
PUT /queues/:q/concurrency
DELETE /queues/:q/concurrency
GET /queues/:q/stall-config
PUT /queues/:q/stall-config
GET /queues/:q/dlq-config
PUT /queues/:q/dlq-config
GET /crons
POST /crons
GET /crons/:name
DELETE /crons/:name
GET /webhooks
POST /webhooks
DELETE /webhooks/:id
PUT /webhooks/:id/enabled
GET /health
GET /healthz
GET /live
GET /ready
GET /ping
GET /stats
GET /metrics
GET /prometheus
GET /storage
POST /gc
GET /heapstats
GET /workers
POST /workers
DELETE /workers/:id
POST /workers/:id/heartbeat
GET /queues/:q/workers
GET /events
GET /events/queues/:q
POST /enqueue
GET /queues/:queue/mode
PUT /queues/:queue/mode
GET /shards
POST /shards/rebalance
GET /keys
POST /keys
DELETE /keys/:id
GET /dequeue
POST /ack
POST /nack
POST /heartbeat
GET /dlq
POST /dlq/delete
GET /topics
POST /publish/:topic
POST /subscribe/:topic
DELETE /:topic
POST /namespaces
GET /namespaces
DELETE /namespaces/:ns
POST /namespaces/:ns/queues/:name
GET /namespaces/:ns/queues
DELETE /namespaces/:ns/queues/:name
POST /namespaces/:ns/queues/:name/messages
POST /namespaces/:ns/queues/:name/messages/batch
GET /namespaces/:ns/queues/:name/messages
DELETE /namespaces/:ns/queues/:name/messages
DELETE /messages/:receipt
POST /messages/:receipt/nack
GET /namespaces/:ns/queues/:name/dlq
POST /namespaces/:ns/queues/:name/dlq/replay
POST /namespaces/:ns/queues/:name/subscriptions
GET /namespaces/:ns/queues/:name/subscriptions
DELETE /subscriptions/:id
GET /api/stats
GET /api/stats/summary
GET /insights
GET /insights/queues
GET /insights/series
GET /insights/latency
GET /insights/failures
GET /insights/backlog
GET /insights/workers
GET /insights/tenants
GET /insights/slo
GET /insights/forecast
GET /bulk
GET /bulk/journal
GET /bulk/journal/at
POST /bulk/snapshots
GET /bulk/snapshots/:id/parts/:part
DELETE /bulk/snapshots/:id
GET /bulk/groups
POST /bulk/groups/:group/claim
GET /bulk/groups/:group/read
POST /bulk/groups/:group/ack
POST /bulk/groups/:group/release
POST /bulk/groups/:group/heartbeat
POST /bulk/stages/:txn
POST /bulk/stages/:txn/abort
POST /bulk/commits
GET /bulk/commits/:key
"""


def test_every_route_of_the_contract_is_there_and_no_other(api: Api) -> None:
    document = api.http.get("/openapi.json").json()
    documented = {
        f"{method.upper()} {re.sub(r'{.*?}', '*', path)}" for path, item in document["paths"].items() for method in item
    }
    promised = {re.sub(r":\w+", "*", line) for line in CONTRACT.strip().splitlines()}
    assert documented == promised


def test_the_reference_page_lists_every_route(api: Api) -> None:
    response = api.http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    document = api.http.get("/openapi.json").json()
    assert all(path in response.text for path in document["paths"])


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> dict[str, Any]:
    described: dict[str, Any] = httpx2.get(f"{server.url}/openapi.json", trust_env=False).json()
    return described


def operations(document: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate(document, cls=OpenAPIV31SpecValidator)


def test_what_has_no_content_has_no_body(document: dict[str, Any]) -> None:
    without = {name for name, operation in operations(document).items() if "204" in operation["responses"]}
    assert without == {
        "DELETE /namespaces/{ns}",
        "DELETE /namespaces/{ns}/queues/{queue}",
        "DELETE /messages/{receipt}",
        "POST /messages/{receipt}/nack",
        "DELETE /subscriptions/{id}",
        "DELETE /bulk/snapshots/{id}",
    }
    assert all("content" not in operations(document)[name]["responses"]["204"] for name in without)


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("Ok", {"ok"}),
        ("IdReply", {"ok", "id"}),
        ("NothingReply", {"ok", "job"}),
        ("CompletedReply", {"ok", "result", "completed"}),
        ("WorkerRemovedReply", {"ok", "data"}),
        ("CommitReply", {"key", "rows", "state", "duplicate", "known"}),
        ("StallConfig", {"enabled", "stallInterval", "maxStalls", "gracePeriod"}),
        ("Created", {"status"}),  # a name has what is a namespace
        ("StorageReply", {"ok", "diskFull"}),  # the rest tells of trouble
        ("HealthReply", {"ok", "status", "uptime", "version", "memory", "reason"}),
        ("AliveBatchData", {"ok", "count"}),
        ("QueuesReply", {"ok", "queues"}),
        ("PushBody", {"data"}),
        ("CleanBody", set()),
    ],
)
def test_what_is_always_sent_is_required(document: dict[str, Any], name: str, required: set[str]) -> None:
    assert set(document["components"]["schemas"][name]["required"]) == required


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        ("GET /events", {"format", "ids", "lastEventId", "Last-Event-ID", "X-Namespace"}),
        ("GET /events/queues/{queue}", {"queue", "format", "ids", "lastEventId", "Last-Event-ID", "X-Namespace"}),
        ("GET /api/stats", {"page", "limit"}),
        ("GET /namespaces/{ns}/queues/{queue}/dlq", {"ns", "queue", "limit"}),
        ("POST /namespaces/{ns}/queues/{queue}/dlq/replay", {"ns", "queue", "limit"}),
        ("GET /namespaces/{ns}/queues/{queue}/messages", {"ns", "queue", "n", "visibility_timeout_ms", "wait_ms"}),
        ("GET /queues/{queue}/dlq", {"queue", "count", "X-Namespace"}),
        ("GET /dlq", {"namespace", "topic", "limit"}),
    ],
)
def test_parameters_are_described(document: dict[str, Any], operation: str, names: set[str]) -> None:
    found = {each["name"]: each["schema"] for each in operations(document)[operation]["parameters"]}
    assert set(found) == names
    for name in names & {"page", "limit", "n", "visibility_timeout_ms", "wait_ms", "count"}:
        assert found[name]["type"] == "integer"


#: What reads a query string, or headers, by itself, and where its parameters are described instead.
OWN_READERS = {"doors/bulk/stages.py": "StageQuery has all of them", "doors/http/body.py": "it reads them for all others"}


def test_no_handler_reads_parameters_that_its_route_does_not_name() -> None:
    """A query string is read through the shape that describes it."""
    for file in (ROOT / "src" / "penstock" / "doors").rglob("*.py"):
        if str(file.relative_to(ROOT / "src" / "penstock")) not in OWN_READERS:
            assert "req.query()" not in file.read_text(encoding="utf-8"), file


def test_a_query_string_has_no_null_in_it(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        for each in operation["parameters"]:
            assert "null" not in json.dumps(each["schema"]), (name, each)


def test_patterns_are_those_of_ecmascript(document: dict[str, Any]) -> None:
    r"""There, \Z is the letter, \A too, and groups have no P."""
    patterns = re.findall(r'"pattern": "(.*?)"[,}]', json.dumps(document))
    assert patterns
    assert not [each for each in patterns if re.search(r"\\[ZAz]|\(\?P", each)]


def test_a_namespace_can_be_all_of_them_where_that_works(document: dict[str, Any], server: ServerProcess) -> None:
    everywhere = {
        name
        for name, operation in operations(document).items()
        for each in operation["parameters"]
        if each["name"] == "X-Namespace" and re.search(each["schema"]["pattern"], "*")
    }
    assert everywhere == {
        name
        for name in operations(document)
        if re.fullmatch(r"(GET /insights.*|GET /bulk(/journal.*|/groups)?|.*/snapshots.*)", name)
    }
    with server.client(headers={"X-Namespace": "*"}) as client:
        assert client.get("/bulk").status_code == 200
        assert client.get("/queues").status_code == 400


load_all_checks()
#: Of each operation. What an operation makes of its input does not depend on the store, as a rule.
EXAMPLES = 40 if stores.chosen() == "sqlite" else 20


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def as_it_is(_context: object, value: Any) -> bytes:
    """Send bytes that are not Arrow, mostly."""
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode()


@pytest.mark.slow
def test_no_call_that_can_be_made_breaks_the_server(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks: list[Any] = [
        check
        for check in schemathesis.checks.CHECKS.get_all()
        if check.__name__
        in ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    ]
    assert len(checks) == 4
    failures: list[str] = []
    calls = 0
    for result in schema.get_all_operations():
        assert isinstance(result, schemathesis.core.result.Ok), result
        operation = result.ok()
        if operation.path == "/gc" or operation.path.startswith("/events"):  # one is slow, the others never end
            continue

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def call(case: schemathesis.Case[Any]) -> None:
            nonlocal calls
            calls += 1
            if case.body is not schemathesis.core.NOT_SET and isinstance(case.body, dict):
                case.body.pop("timeout", None)
                case.body.pop("wait_ms", None)
            if case.query:
                case.query.pop("timeout", None)
            response = case.call(timeout=30)
            try:
                case.validate_response(response, checks=checks)
            except BaseExceptionGroup as error:  # all of them are reported together
                failures.append(f"{case.method} {case.formatted_path}: {[str(each)[:300] for each in error.exceptions]}")

        call()
    assert not failures, "\n".join(failures[:10])
    assert calls > 40 * EXAMPLES


def test_pushes_may_be_answered_with_a_warning(document: dict[str, Any]) -> None:
    warned = [
        path
        for path, methods in document["paths"].items()
        for about in methods.values()
        if isinstance(about, dict) and "penstock-warning" in about.get("responses", {}).get("200", {}).get("headers", {})
    ]
    assert sorted(warned) == ["/enqueue", "/queues/{queue}/jobs", "/queues/{queue}/jobs/bulk"]
