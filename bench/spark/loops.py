"""What a user would write without the data source: loops over the REST API, for ``foreachPartition`` and ``mapPartitions``.

Each keeps one connection for its partition, and gives plain rows. They run in Spark's workers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: What the loops give to Spark.
LISTED: Final = "id string, queue string, priority int, created_at long, value string"
EVENTS: Final = "seq long, kind string, queue string, job_id string, at long"
PULLED: Final = "id string, queue string, value string"


def _client(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=60)


def nothing(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Give back what comes: to have Spark's workers started, with everything loaded that loops need."""
    for row in rows:
        yield (row.id,)


def push_each(url: str, queue: str) -> Callable[[Iterable[Any]], None]:
    """Push row by row."""

    def push(rows: Iterable[Any]) -> None:
        with _client(url) as http:
            for row in rows:
                http.post(f"/queues/{queue}/jobs", content=b'{"data":%b}' % row.value.encode()).raise_for_status()

    return push


def push_hundreds(url: str, queue: str) -> Callable[[Iterable[Any]], None]:
    """Push a hundred rows in each request."""

    def send(http: httpx2.Client, jobs: list[bytes]) -> None:
        body = b'{"jobs":[' + b",".join(jobs) + b"]}"
        http.post(f"/queues/{queue}/jobs/bulk", content=body).raise_for_status()

    def push(rows: Iterable[Any]) -> None:
        with _client(url) as http:
            jobs: list[bytes] = []
            for row in rows:
                jobs.append(b'{"data":%b}' % row.value.encode())
                if len(jobs) == 100:
                    send(http, jobs)
                    jobs = []
            if jobs:
                send(http, jobs)

    return push


def list_jobs(url: str, queue: str, page: int) -> Callable[[Iterable[Any]], Iterator[tuple[Any, ...]]]:
    """List the jobs of a queue, page by page; a partition's rows say from where (``begin``) to where (``end``)."""

    def read(stretches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        with _client(url) as http:
            for stretch in stretches:
                for offset in range(stretch.begin, stretch.end, page):
                    params = {"state": "waiting", "limit": min(page, stretch.end - offset), "offset": offset}
                    reply = http.get(f"/queues/{queue}/jobs/list", params=params).raise_for_status().json()
                    for job in reply["jobs"]:
                        yield job["id"], job["queue"], job["priority"], job["createdAt"], json.dumps(job["data"])

    return read


def follow_events(url: str, namespace: str) -> Callable[[Iterable[Any]], Iterator[tuple[Any, ...]]]:
    """Read so many events (``wanted``) of a namespace from the event stream, after one (``begin``); comes back when cut off."""

    def read(stretches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for stretch in stretches:
            last, left = stretch.begin, stretch.wanted
            while left:
                headers = {"Last-Event-ID": str(last), "X-Namespace": namespace}
                with _client(url) as http, http.stream("GET", "/events?format=typed", headers=headers) as reply:
                    kind, number = "", None
                    for line in reply.raise_for_status().iter_lines():
                        if line.startswith("event: "):
                            kind = line[7:]
                        elif line.startswith("id: "):
                            number = int(line[4:])
                        elif line.startswith("data: ") and number is not None:
                            data = json.loads(line[6:])
                            yield number, kind, data.get("queue"), data.get("jobId"), data["timestamp"]
                            last, number, left = number, None, left - 1
                            if not left:
                                break

    return read


def pull_each(url: str, queue: str, count: int) -> Callable[[Iterable[Any]], Iterator[tuple[Any, ...]]]:
    """Pull a job, give it to Spark, acknowledge it, and so on, until a partition had so many."""

    def read(_rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        with _client(url) as http:
            for _ in range(count):
                reply = http.get(f"/queues/{queue}/jobs").raise_for_status().json()
                job = reply["job"]
                if job is None:
                    return
                yield job["id"], job["queue"], json.dumps(job["data"])
                http.post(f"/jobs/{job['id']}/ack", json={"token": reply["token"]}).raise_for_status()

    return read


def pull_hundreds(url: str, queue: str, count: int) -> Callable[[Iterable[Any]], Iterator[tuple[Any, ...]]]:
    """The same, a hundred jobs in each request."""

    def read(_rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        with _client(url) as http:
            for _ in range(0, count, 100):
                reply = http.post(f"/queues/{queue}/jobs/pull-batch", json={"count": 100}).raise_for_status().json()
                jobs = reply["jobs"]
                if not jobs:
                    return
                for job in jobs:
                    yield job["id"], job["queue"], json.dumps(job["data"])
                done = {"ids": [job["id"] for job in jobs], "tokens": reply["tokens"]}
                http.post("/jobs/ack-batch", json=done).raise_for_status()

    return read
