"""A client that a generator makes from the OpenAPI document: all of it is made, and it works."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tests.support.server import ServerProcess

NAME = "made_from_the_document"
#: What the generator does not know: how these bodies come, for those who do not want to stream them.
CONFIG = """
content_type_overrides:
  application/vnd.apache.arrow.stream: application/octet-stream
  application/x-ndjson: text/plain
  text/event-stream: text/plain
post_hooks: []
"""


class Generated:
    """The generated package, and a client of a server."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        self._name = name
        package: Any = importlib.import_module(name)
        self.models: Any = importlib.import_module(f"{name}.models")
        self.unset: Any = importlib.import_module(f"{name}.types").UNSET
        self.client = package.Client(base_url=server.url, raise_on_unexpected_status=True, timeout=30)

    def modules(self) -> Iterator[ModuleType]:
        """Import all operations."""
        api = importlib.import_module(f"{self._name}.api")
        for each in pkgutil.walk_packages(api.__path__, f"{api.__name__}."):
            if not each.ispkg:
                yield importlib.import_module(each.name)

    def __call__(self, operation: str, *args: Any, **more: Any) -> Any:
        """Call an operation, named like its module: its group, a dot, and its operationId."""
        module: Any = importlib.import_module(f"{self._name}.api.{operation}")
        return module.sync(*args, client=self.client, **more)

    def status(self, operation: str, *args: Any, **more: Any) -> int:
        module: Any = importlib.import_module(f"{self._name}.api.{operation}")
        return int(module.sync_detailed(*args, client=self.client, **more).status_code)


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> dict[str, Any]:
    described: dict[str, Any] = httpx2.get(f"{server.url}/openapi.json", trust_env=False).json()
    return described


@pytest.fixture(scope="module")
def api(server: ServerProcess, document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    home = tmp_path_factory.mktemp("generated")
    (home / "openapi.json").write_text(json.dumps(document))
    (home / "config.yaml").write_text(CONFIG)
    generator = Path(sys.executable).parent / "openapi-python-client"
    command = [str(generator), "generate", "--path", "openapi.json", "--config", "config.yaml", "--meta", "none"]
    made = subprocess.run(
        [*command, "--output-path", NAME, "--fail-on-warning"],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(home))
    generated = Generated(server, NAME)
    try:
        yield generated
    finally:
        generated.client.get_httpx_client().close()
        sys.path.remove(str(home))
        for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
            del sys.modules[name]


def test_every_operation_has_its_function(api: Generated, document: dict[str, Any]) -> None:
    made = {module.__name__.rpartition(".")[2] for module in api.modules() if hasattr(module, "sync_detailed")}
    assert made == {operation["operationId"] for item in document["paths"].values() for operation in item.values()}


def test_a_job_goes_its_way(api: Generated) -> None:
    m = api.models
    queue = "generated-jobs"
    pushed = api("jobs.post_queues_queue_jobs", queue, body=m.PushBody(data={"to": "ada"}, max_attempts=2))
    assert (type(pushed), pushed.ok) == (m.IdReply, True)
    pulled = api("jobs.get_queues_queue_jobs", queue, timeout=0)
    assert type(pulled) is m.PulledReply
    job = pulled.job
    assert (job.id, job.data, job.state, job.max_attempts, job.started_at is None) == (
        pushed.id,
        {"to": "ada"},
        "active",
        2,
        False,
    )
    assert job.stacktrace is api.unset, "what few jobs have is left out"
    assert type(api("jobs.get_queues_queue_jobs", queue)) is m.NothingReply
    assert type(api("jobs.get_jobs_id_result", job.id)) is m.NoResultReply
    assert api("jobs.post_jobs_id_ack", job.id, body=m.AckBody(result=[1, 2], token=pulled.token)).ok is True
    assert api("jobs.get_jobs_id_result", job.id).result == [1, 2]
    assert type(api("jobs.post_jobs_id_wait", job.id)) is m.CompletedReply
    assert api("queues.get_queues_queue_counts", queue).counts.completed == 1
    gone = api("jobs.get_jobs_id", "019ce9d7-6983-7000-946f-48737be2b0f9")
    assert (type(gone), gone.ok, gone.error) == (m.ErrorReply, False, "Job not found")


def test_limits_and_rules(api: Generated) -> None:
    m, queue = api.models, "generated-limits"
    limits = "rate_limiting_concurrency"
    assert api(f"{limits}.get_queues_queue_rate_limit", queue).limit is None
    assert api(f"{limits}.put_queues_queue_rate_limit", queue, body=m.LimitBody(limit=5)).ok is True
    assert api(f"{limits}.get_queues_queue_rate_limit", queue).limit == 5
    assert api(f"{limits}.get_queues_queue_concurrency", queue).limit is None
    assert api("configuration.get_queues_queue_stall_config", queue).config.max_stalls == 3


def test_the_other_doors(api: Generated) -> None:
    m, place = api.models, ("generated", "letters")
    made = api("messages.post_namespaces_ns_queues_queue", *place, body=m.QueueBody(max_retries=1))
    assert (made.status, made.name) == ("created", api.unset)
    told = api("messages.post_namespaces_ns_queues_queue_messages", *place, body=m.MessageBody(body="aGk="))
    (message,) = api("messages.get_namespaces_ns_queues_queue_messages", *place, n=5).messages
    assert (message.id, message.body, message.attempt) == (told.id, "aGk=", 1)
    assert api.status("messages.post_messages_receipt_nack", message.receipt_handle) == 204
    assert api.status("messages.post_messages_receipt_nack", message.receipt_handle) == 410
    (dead,) = api("messages.get_namespaces_ns_queues_queue_dlq", *place, limit=3).messages
    assert dead.id == told.id
    assert api("messages.post_namespaces_ns_queues_queue_dlq_replay", *place, limit=3).replayed in (0, 1)
    assert api("messages.get_api_stats", page=1, limit=1).limit == 1
    where = {"namespace": "generated", "topic": "batch"}
    (first,) = api("batches.post_enqueue", body=[m.EnqueueItem(**where, payload="aGk=")])
    (item,) = api("batches.get_dequeue", **where)
    assert (item.id, item.payload, item.retries, item.last_error) == (first, "aGk=", 0, None)
    assert api("batches.post_ack", body=m.ItemBody(id=item.id, **where)) == "OK"
    types: Any = importlib.import_module(f"{NAME}.types")
    assert api.status("topics.post_publish_topic", "generated-topic", body=types.File(io.BytesIO(b"hello"))) == 201
    assert api.status("topics.delete_topic", "generated-topic") == 200


def test_operators(api: Generated) -> None:
    assert api("monitoring.get_health").status == "healthy"
    assert api("monitoring.get_ready").ready is True
    assert "bunqueue_jobs_waiting" in api("monitoring.get_prometheus")
    assert api("monitoring.get_stats").stats.uptime >= 0
    assert api("bulk.get_bulk").shards[0].shard == 0
