"""Flows whose jobs are in many queues: on shards, on all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.api import Api
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

WAIT_MS = 20_000


class Flow:
    """One parent queue and several for children. What another shard is told takes a moment, so waiting is by long poll."""

    def __init__(self, api: Api, tcp: TcpClient) -> None:
        self.api = api
        self.tcp = tcp
        self.parents = Api(api.http, f"{api.queue}-parents")
        self.queues = [Api(api.http, f"{api.queue}-{number}") for number in range(5)]

    def children(self, **options: Any) -> list[str]:
        return [queue.push(number, **options) for number, queue in enumerate(self.queues)]

    def complete(self, queue: Api, result: Any = 1) -> str:
        job, token = queue.take(timeout=WAIT_MS)
        queue.ok("POST", f"/jobs/{job}/ack", {"token": token, "result": result})
        return job

    def fail(self, queue: Api, error: str = "broken") -> str:
        job, token = queue.take(timeout=WAIT_MS)
        queue.ok("POST", f"/jobs/{job}/fail", {"token": token, "error": error})
        return job

    def runs(self, parent: str) -> bool:
        """Tell whether a parent comes, and nobody else."""
        job = self.parents.pull(timeout=WAIT_MS)
        return job is not None and job["id"] == parent

    def becomes(self, job: str, state: str) -> bool:
        return any(self.api.state(job) == state for _ in range(10_000))


@pytest.fixture
def flow(api: Api, server: ServerProcess) -> Iterator[Flow]:
    with TcpClient(server.tcp_port) as client:
        yield Flow(api, client)


@pytest.mark.parametrize("keep", [True, False])
def test_a_parent_runs_once_after_children_in_many_queues_and_has_their_results(flow: Flow, keep: bool) -> None:
    children = flow.children(removeOnComplete=not keep)
    parent = flow.parents.push("sum", dependsOn=children)
    for number, queue in enumerate(flow.queues):
        assert flow.parents.pull() is None
        assert flow.api.state(parent) == "waiting-children"
        flow.complete(queue, number)
    assert flow.runs(parent)
    values = flow.api.ok("GET", f"/jobs/{parent}/children")["values"]
    assert sorted(values.values()) == [0, 1, 2, 3, 4]
    assert flow.parents.pull() is None


def test_children_are_named_by_their_own_ids(flow: Flow) -> None:
    names = [queue.push(1, jobId=f"{queue.queue}/own") for queue in flow.queues]
    parent = flow.parents.push("sum", dependsOn=names, jobId=f"{flow.api.queue}/parent")
    for queue in flow.queues:
        flow.complete(queue)
    assert flow.runs(parent)
    assert sorted(flow.api.ok("GET", f"/jobs/{parent}/children")["values"]) == sorted(names)


def test_a_tree_and_a_chain_over_many_queues(flow: Flow) -> None:
    below: list[str] = []
    for queue in flow.queues:
        below = [queue.push(dependsOn=below), queue.push(dependsOn=below)]
    parent = flow.parents.push(dependsOn=below)
    for queue in flow.queues:
        flow.complete(queue)
        flow.complete(queue)
    assert flow.runs(parent)


@pytest.mark.parametrize(
    ("policy", "ends_as"),
    [
        ({}, "waiting-children"),
        ({"failParentOnFailure": True}, "failed"),
        ({"continueParentOnFailure": True}, "waiting"),
        ({"ignoreDependencyOnFailure": True}, "waiting"),
        ({"removeDependencyOnFailure": True}, "waiting"),
    ],
)
def test_what_the_failure_of_a_child_in_another_queue_means(flow: Flow, policy: Any, ends_as: str) -> None:
    children = [queue.push(maxAttempts=1, **policy) for queue in flow.queues]
    parent = flow.parents.push(dependsOn=children)
    for queue in flow.queues:
        flow.fail(queue)
    if not policy:  # all were told, and nothing happens
        while len(flow.tcp.ok("GetFailedChildrenValues", id=parent)["values"]) < len(children):
            time.sleep(0.01)
    assert flow.becomes(parent, ends_as)
    errors = {
        command: set(flow.tcp.ok(command, id=parent)["values"].values())
        for command in ("GetFailedChildrenValues", "GetIgnoredChildrenFailures")
    }
    if policy == {"ignoreDependencyOnFailure": True}:
        assert errors == {"GetFailedChildrenValues": set(), "GetIgnoredChildrenFailures": {"broken"}}
    if policy == {"continueParentOnFailure": True}:
        assert errors == {"GetFailedChildrenValues": {"broken"}, "GetIgnoredChildrenFailures": set()}
    if not policy:
        assert set(flow.tcp.ok("GetFailedChildrenValues", id=parent)["values"].values()) == {"broken"}
        for queue in flow.queues:
            queue.ok("POST", "{q}/dlq/retry")
            flow.complete(queue)
        assert flow.runs(parent)


def test_children_in_other_queues_are_cancelled_dropped_and_adopted(flow: Flow) -> None:
    children = flow.children()
    parent = flow.parents.push(dependsOn=children)
    for child in children:
        assert flow.tcp.ok("UpdateParent", childId=child, parentId=parent)["ok"] is True
        assert flow.api.job(child)["parentId"] == parent
    assert flow.tcp.ok("RemoveChildDependency", id=children[0])["removed"] is True
    busy, token = flow.queues[1].take()
    assert flow.tcp.ok("RemoveUnprocessedChildren", id=parent)["count"] == 3
    assert [queue.pull() is None for queue in flow.queues[2:]] == [True] * 3
    assert flow.api.state(parent) == "waiting-children"
    flow.api.ok("POST", f"/jobs/{busy}/ack", {"token": token})
    assert flow.runs(parent)


def test_what_is_removed_elsewhere_has_failed(flow: Flow) -> None:
    children = flow.children(continueParentOnFailure=True)
    parent = flow.parents.push(dependsOn=children)
    flow.queues[-1].ok("POST", "{q}/drain")
    assert flow.runs(parent)


def test_a_bulk_push_needs_what_is_elsewhere_and_what_is_in_it(flow: Flow) -> None:
    children = flow.children()
    name = f"{flow.api.queue}/first"
    jobs = [{"data": 1, "jobId": name, "dependsOn": children}, {"data": 2, "dependsOn": [name, children[0]]}]
    first, second = flow.parents.ok("POST", "{q}/jobs/bulk", {"jobs": jobs})["ids"]
    for queue in flow.queues:
        flow.complete(queue)
    assert flow.complete(flow.parents) == first
    assert flow.runs(second)


def test_nobody_needs_what_is_not_there_in_any_queue(flow: Flow) -> None:
    gone = flow.queues[0].push()
    flow.api.ok("DELETE", f"/jobs/{gone}")
    for queue in flow.queues:
        assert queue.refused("POST", "{q}/jobs", {"data": 1, "dependsOn": [gone]}) == (
            400,
            f"Dependency job not found: {gone}",
        )
    assert flow.parents.refused("POST", "{q}/jobs", {"data": 1, "dependsOn": ["x"]}) == (400, "Dependency job not found: x")


def test_the_dependencies_of_one_request_are_bounded(flow: Flow) -> None:
    needed = flow.parents.push()
    jobs = [{"data": 1, "dependsOn": [needed] * 1_000} for _ in range(11)]
    status, error = flow.parents.refused("POST", "{q}/jobs/bulk", {"jobs": jobs})
    assert (status, error.partition(",")[0]) == (400, "Too many dependencies in one request: 11000")
    many = [{"id": str(number), "queue": flow.parents.queue, "input": {"data": {}}} for number in range(1_000)]
    names = [str(number) for number in range(1_000)]
    many += [{**many[0], "id": f"p{number}", "input": {"data": {}, "dependsOn": names}} for number in range(11)]
    assert flow.tcp.refused("PUSHF", jobs=many).startswith("Too many dependencies in one request: 11000")
    assert len(flow.parents.ok("POST", "{q}/jobs/bulk", {"jobs": jobs[:10]})["ids"]) == 10


def test_a_large_result_for_many_parents_is_refused_over_all_protocols(flow: Flow) -> None:
    """The parents are in the queue of the child, and so on its shard."""
    child, other = flow.api.push("large"), flow.api.push("small")
    flow.api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1, "dependsOn": [child]}] * 8})
    (_, token), (_, other_token) = flow.api.take(), flow.api.take()
    result = "x" * 9_000_000
    status, error = flow.api.refused("POST", f"/jobs/{child}/ack", {"token": token, "result": result})
    assert status == 400
    assert error.startswith("The result has 9000002 bytes, and more than 7 jobs need it.")
    assert flow.tcp.refused("ACK", id=child, token=token, result=result) == error
    batch = {"ids": [child, other], "tokens": [token, other_token], "results": [result, 1]}
    reply = flow.api.ok("POST", "/jobs/ack-batch", batch)
    assert (reply["count"], reply["errors"]) == (1, [{"id": child, "error": error}])
    assert flow.api.state(child) == "active"
    flow.api.ok("POST", f"/jobs/{child}/ack", {"token": token, "result": "a reference"})
    assert flow.api.counts()["waiting"] == 8
