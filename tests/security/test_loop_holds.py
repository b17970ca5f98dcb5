"""Large legal requests and answers: no step of the event loop is long compared with all of the work that they need.

It is measured in processor time (``ticked``): it does not matter what else the machine does.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.doors.jobs import flow_push
from tests.security.measure import MB, cpu_s, settled
from tests.security.ticked import TickedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Of the processor time of a request, the part that one step of the event loop may have.
PART_MAX = 0.3
#: The same of a listing: reading it from the store is done by a thread.
LISTED_PART_MAX = 0.15
#: The same of the results of children.
RESULTS_PART_MAX = 0.25
DEEP = b"[" + (b"[" * 61 + b"]" * 61 + b",") * (4 * MB // 123) + b"1]"
NUMBERS = b'{"data":[%b]}' % b",".join([b"1"] * 480)


class Ticked(TickedServer):
    """What the tests here ask of it."""

    def post(self, path: str, body: bytes) -> bytes:
        with self.client() as client:
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.is_success, answer.text
            return answer.content

    def command(self, **fields: object) -> dict[str, object]:
        frame = msgspec.msgpack.encode(fields)
        with socket.create_connection(("127.0.0.1", self.tcp_port), timeout=60) as link, link.makefile("rb") as replies:
            link.sendall(struct.pack(">I", len(frame)) + frame)
            (size,) = struct.unpack(">I", replies.read(4))
            reply: dict[str, object] = msgspec.msgpack.decode(replies.read(size))
            return reply

    def publish(self, name: bytes, payload: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.resp_port), timeout=60) as link, link.makefile("rb") as replies:
            link.sendall(b"*3\r\n$%d\r\n%b\r\n$5\r\ntopic\r\n$%d\r\n%b\r\n" % (len(name), name, len(payload), payload))
            assert replies.read(1) in b"+$"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ticked]:
    with Ticked(tmp_path_factory.mktemp("ticked")) as running:
        yield running


@pytest.fixture(scope="module")
def listed(server: Ticked) -> int:
    """Return how many jobs of a kilobyte wait in the queue ``listed``."""
    jobs = 9_000
    server.post("/queues/listed/jobs/bulk", b'{"jobs":[%b]}' % b",".join([NUMBERS] * jobs))
    return jobs


def test_publishing_a_deep_message_is_done_in_steps(server: Ticked) -> None:
    assert server.longest_part(lambda: server.post("/publish/topic", DEEP)) < PART_MAX


@pytest.mark.parametrize("name", [b"PUBLISH", b"PUSH"])
def test_publishing_a_deep_message_over_resp_is_done_in_steps(server: Ticked, name: bytes) -> None:
    assert server.longest_part(lambda: server.publish(name, DEEP)) < PART_MAX


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (["jobId"], b""),
        (["uniqueKey"], b""),
        (["groupId"], b""),
        (["jobId", "uniqueKey", "groupId"], b',"dependsOn":["needed"],"tags":["a"]'),
    ],
    ids=["names", "unique keys", "groups", "all"],
)
def test_a_bulk_push_is_stored_in_steps(server: Ticked, names: list[str], more: bytes) -> None:
    """All jobs of a bulk push are one transaction, which pauses for other requests."""
    if more:
        server.post("/queues/needed/jobs", b'{"data":1,"jobId":"needed"}')
    job = b'{"data":1%b%b}' % (
        b"".join(b',"%b":"%b-%%d"' % (name.encode(), "".join(names).encode()) for name in names),
        more,
    )
    jobs = b",".join(job % ((number,) * len(names)) for number in range(10_000))
    path = f"/queues/{''.join(names)}/jobs/bulk"
    assert server.longest_part(lambda: server.post(path, b'{"jobs":[%b]}' % jobs)) < PART_MAX


def test_a_flow_is_pushed_in_steps(server: Ticked) -> None:
    """10,000 jobs in one command: a thousand chains of ten."""

    def job(number: int) -> dict[str, object]:
        given = {"data": {"number": number, "text": "x" * 300}, "dependsOn": [f"flow-{number - 1}"] if number % 10 else []}
        return {"id": f"flow-{number}", "queue": "flow", "input": given}

    def ask() -> None:
        reply = server.command(cmd="PUSHF", jobs=[job(number) for number in range(10_000)])
        assert len(reply["data"]["jobs"]) == 10_000  # type: ignore[index]

    assert server.longest_part(ask) < PART_MAX


def test_a_flow_is_checked_and_shown_job_by_job() -> None:
    """Each step is short, however many jobs the flow has."""
    jobs = [{"id": str(number), "queue": "q", "input": {"data": {}}} for number in range(1_000)]
    jobs[-1]["input"] = {"data": {}, "dependsOn": ["0"]}
    body = msgspec.json.decode(json.dumps({"jobs": jobs}), type=flow_push.FlowBody)
    assert sum(1 for _ in flow_push.plan_steps(body.jobs)) >= 3 * len(jobs)


def test_a_large_listing_is_spelled_in_steps(server: Ticked) -> None:
    for _ in range(4):
        server.post("/queues/large/jobs/bulk", b'{"jobs":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * (MB - 100))] * 10))

    def ask() -> None:
        with server.client() as client:
            answer = client.get("/queues/large/jobs/list")
        assert len(answer.json()["jobs"]) == 40
        assert answer.headers["content-length"] == str(len(answer.content))
        assert "transfer-encoding" not in answer.headers

    assert server.longest_part(ask) < LISTED_PART_MAX


def test_a_long_reply_over_tcp_is_spelled_in_steps(server: Ticked, listed: int) -> None:
    def ask() -> None:
        reply = server.command(cmd="GetJobs", queue="listed", reqId="7")
        assert (len(reply["jobs"]), reply["reqId"]) == (listed, "7")  # type: ignore[arg-type]

    assert server.longest_part(ask) < LISTED_PART_MAX


@pytest.fixture(scope="module")
def parent(server: Ticked) -> str:
    """Return a job that needs 30 jobs with results of a megabyte each."""
    server.post(
        "/queues/children/jobs/bulk", b'{"jobs":[%b]}' % b",".join(b'{"data":1,"jobId":"%d"}' % n for n in range(30))
    )
    needs = ",".join(f'"{number}"' for number in range(30))
    made = json.loads(server.post("/queues/parents/jobs", b'{"data":1,"dependsOn":[%b]}' % needs.encode()))["id"]
    with server.client() as client:
        for _ in range(30):
            taken = client.get("/queues/children/jobs").json()
            body = {"token": taken["token"], "result": "x" * (MB - 100)}
            assert client.post(f"/jobs/{taken['job']['id']}/ack", json=body).is_success
    return str(made)


def test_large_results_of_children_are_spelled_in_steps(server: Ticked, parent: str) -> None:
    def ask() -> None:
        with server.client() as client:
            assert len(client.get(f"/jobs/{parent}/children").json()["values"]) == 30

    assert server.longest_part(ask) < RESULTS_PART_MAX


def test_large_results_of_children_over_tcp_are_spelled_in_steps(server: Ticked, parent: str) -> None:
    def ask() -> None:
        reply = server.command(cmd="GetChildrenValues", id=parent, reqId="7")
        assert (len(reply["data"]["values"]), reply["reqId"]) == (30, "7")  # type: ignore[index]

    assert server.longest_part(ask) < RESULTS_PART_MAX


@pytest.fixture(scope="module")
def priorities(server: Ticked) -> int:
    """Return how many priorities the jobs in the queue ``priorities`` have."""
    count = 120_000
    for start in range(0, count, 10_000):
        jobs = [b'{"data":1,"priority":%d}' % priority for priority in range(start, start + 10_000)]
        server.post("/queues/priorities/jobs/bulk", b'{"jobs":[%b]}' % b",".join(jobs))
    return count


def test_counts_of_many_priorities_are_spelled_in_steps(server: Ticked, priorities: int) -> None:
    def ask() -> None:
        with server.client() as client:
            answer = client.get("/queues/priorities/priority-counts")
        assert answer.json()["counts"] == dict.fromkeys(map(str, range(priorities)), 1)

    assert server.longest_part(ask) < LISTED_PART_MAX


def test_counts_of_many_priorities_over_tcp_are_spelled_in_steps(server: Ticked, priorities: int) -> None:
    def ask() -> None:
        reply = server.command(cmd="GetCountsPerPriority", queue="priorities", reqId="7")
        assert reply["counts"] == dict.fromkeys(map(str, range(priorities)), 1)
        assert reply["reqId"] == "7"

    assert server.longest_part(ask) < LISTED_PART_MAX


def test_a_reply_with_a_deep_payload_over_tcp_is_made_in_steps(server: Ticked) -> None:
    server.post("/queues/deep/jobs", b'{"data":%b}' % DEEP)
    replies: list[dict[str, object]] = []
    assert server.longest_part(lambda: replies.append(server.command(cmd="PULL", queue="deep"))) < PART_MAX
    assert replies[0]["job"]["data"] == json.loads(DEEP)  # type: ignore[index]


def test_the_first_description_is_made_in_steps(tmp_path: Path) -> None:
    with Ticked(tmp_path) as server, server.client() as client:
        assert server.longest_part(lambda: client.get("/openapi.json").json()["paths"]) < PART_MAX


def test_a_good_bulk_push_of_numbers_costs_little_more_than_one_of_text(server: Ticked) -> None:
    """Both have as many jobs and bytes, and the structure of a body is looked at without a step for each number."""
    text = json.dumps({"data": "x" * (len(NUMBERS) - 11)}).encode()
    costs = []
    for job in (text, NUMBERS):
        body = b'{"jobs":[%b]}' % b",".join([job] * 9_000)
        settled(server)
        before = cpu_s(server.pid)
        for _ in range(2):
            server.post("/queues/costs/jobs/bulk", body)
        costs.append(cpu_s(server.pid) - before)
    assert costs[1] < 3.5 * costs[0]
