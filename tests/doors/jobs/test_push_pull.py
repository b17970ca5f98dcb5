"""Jobs door: push, bulk, pull, pull-batch."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.api import UNKNOWN_ID, Api

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_a_push_answers_with_a_uuid7_and_the_pull_gives_the_job(api: Api) -> None:
    job_id = api.push({"to": "user@test.com", "subject": "Welcome"}, priority=10, tags=["a", "b"])
    assert UUID7.fullmatch(job_id)
    job = api.pull()
    expected = {
        "id": job_id, "queue": api.queue, "data": {"to": "user@test.com", "subject": "Welcome"}, "priority": 10, "attempts": 0,
        "maxAttempts": 3, "backoff": 1000, "progress": 0, "tags": ["a", "b"], "lifo": False, "removeOnComplete": False,
        "removeOnFail": False,
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    assert job["createdAt"] == job["runAt"]
    assert api.pull() is None


@pytest.mark.parametrize("data", [None, 0, "text", [1, [2]], {}, True, 1.5e300, 2**63, "\u0000", "ünï😀", {"": {"": []}}])
def test_any_json_value_is_a_payload_and_comes_back_as_it_was(api: Api, data: Any) -> None:
    job_id = api.push(data)
    assert api.pull()["data"] == data
    assert api.job(job_id)["data"] == data


def test_the_payloads_bytes_are_not_touched(api: Api) -> None:
    raw = b'{ "b" : 1.00, "a":[ 1 ,2],"big":123456789012345678901234567890 }'
    response = api.call("POST", "{q}/jobs", content=b'{"data":' + raw + b"}")
    assert response.status_code == 200
    assert raw in api.call("GET", "{q}/jobs").content


def test_pushes_of_one_connection_come_out_in_order(api: Api) -> None:
    pushed = [api.push(number) for number in range(20)]
    assert pushed == sorted(pushed)
    assert [api.pull()["id"] for _ in range(20)] == pushed


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"data": 1, "priority": 1.5}, "priority must be an integer"),
        ({"data": 1, "priority": "high"}, "priority must be a number"),
        ({"data": 1, "priority": True}, "priority must be a number"),
        ({"data": 1, "priority": 1_000_001}, "priority must be at most 1000000"),
        ({"data": 1, "priority": -1_000_001}, "priority must be at least -1000000"),
        ({"data": 1, "delay": -1}, "delay must be at least 0"),
        ({"data": 1, "delay": 31_536_000_001}, "delay must be at most 31536000000"),
        ({"data": 1, "delay": "5"}, "delay must be a number"),
        ({"data": 1, "timeout": 86_400_001}, "timeout must be at most 86400000"),
        ({"data": 1, "maxAttempts": 0}, "maxAttempts must be at least 1"),
        ({"data": 1, "maxAttempts": 1_001}, "maxAttempts must be at most 1000"),
        ({"data": 1, "maxAttempts": 2.5}, "maxAttempts must be an integer"),
        ({"data": 1, "backoff": -1}, "backoff must be at least 0"),
        ({"data": 1, "backoff": "fixed"}, "backoff must be a number"),
        ({"data": 1, "backoff": [1]}, "backoff must be a number"),
        ({"data": 1, "backoff": {"type": "linear"}}, "backoff.type must be one of: exponential, fixed"),
        ({"data": 1, "backoff": {"delay": -1}}, "backoff.delay must be at least 0"),
        ({"data": 1, "backoff": {"maxDelay": 86_400_001}}, "backoff.maxDelay must be at most 86400000"),
        ({"data": 1, "dedup": {"ttl": 5}}, "dedup needs a uniqueKey"),
        ({"data": 1, "dedup": True, "uniqueKey": "k"}, "dedup must be an object"),
        ({"data": 1, "dedup": {"ttl": -1}, "uniqueKey": "k"}, "dedup.ttl must be at least 0"),
        ({"data": 1, "dedup": {"replace": 1}, "uniqueKey": "k"}, "dedup.replace must be a boolean"),
        ({"data": 1, "debounceTtl": 5}, "debounceTtl needs a debounceId"),
        (
            {"data": 1, "debounceId": "k", "dependsOn": ["x"]},
            "A job that depends on others cannot replace another. Leave out dedup.replace and debounceId.",
        ),
        ({"data": 1, "stallTimeout": 86_400_001}, "stallTimeout must be at most 86400000"),
        ({"data": 1, "stackTraceLimit": -1}, "stackTraceLimit must be at least 0"),
        ({"data": 1, "keepLogs": "all"}, "keepLogs must be a number"),
        ({"data": "12345", "sizeLimit": 5}, "Job data too large: 7 bytes, and its sizeLimit is 5"),
        ({"data": 1, "timestamp": -1}, "timestamp must be at least 0"),
        ({"data": 1, "removeOnComplete": {"age": 5}}, "removeOnComplete must be a boolean"),
        ({"data": 1, "removeOnFail": 10}, "removeOnFail must be a boolean"),
        ({"data": 1, "ttl": 10**20}, "ttl must be at most 31536000000"),
        ({"data": 1, "uniqueKey": 5}, "uniqueKey must be a string"),
        ({"data": 1, "uniqueKey": ""}, "uniqueKey must not be empty"),
        ({"data": 1, "uniqueKey": "a\u0000b"}, "uniqueKey contains invalid characters"),
        ({"data": 1, "jobId": "x" * 1025}, "jobId must be at most 1024 characters"),
        ({"data": 1, "tags": "a"}, "tags must be an array"),
        ({"data": 1, "tags": ["a", 5]}, "tags[1] must be a string"),
        ({"data": 1, "lifo": "yes"}, "lifo must be a boolean"),
        ({"data": 1, "dependsOn": ["x"]}, "Dependency job not found: x"),
        ({"data": 1, "repeat": {}}, "repeat must have either every or cron"),
        ({"data": 1, "repeat": 5}, "repeat must be an object"),
        ({"data": 1, "repeat": {"every": 0}}, "repeat.every must be at least 1"),
        ({"data": 1, "repeat": {"every": 1.5}}, "repeat.every must be an integer"),
        ({"data": 1, "repeat": {"every": 5, "limit": 0}}, "repeat.limit must be at least 1"),
        ({"data": 1, "repeat": {"cron": "61 * * * *"}}, "Invalid cron expression: Bad minute"),
        ({"data": 1, "repeat": {"pattern": "* *"}}, "Invalid cron expression: Wrong number of fields"),
        ({"data": 1, "repeat": {"cron": "* * * * *", "tz": "Nowhere"}}, "Invalid timezone: Nowhere"),
        ({"priority": 5}, "data is required"),
        ([1, 2], "Invalid JSON body"),
        ("text", "Invalid JSON body"),
        (5, "Invalid JSON body"),
    ],
)
def test_a_push_that_is_wrong_is_refused_in_the_contracts_words(api: Api, body: Any, error: str) -> None:
    assert api.refused("POST", "{q}/jobs", body) == (400, error)
    assert api.counts()["waiting"] == 0


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b'{"data":}', b'{"data":1,}', b'{"data":NaN}', b'{"data":Infinity}', b"{'data':1}", b'{"data":"\xff"}',
        b'{"data":01}', b'\xef\xbb\xbf{"data":1}', b'{"data":1}x', b'{"data":"\\ud8"}', b"\x00", '{"data":1}'.encode("utf-16"),
        b'{"data":1,"priority":NaN}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(api: Api, content: bytes) -> None:
    response = api.call("POST", "{q}/jobs", content=content)
    assert (response.status_code, response.json()) == (400, {"ok": False, "error": "Invalid JSON body"})


def test_numbers_out_of_all_range_are_refused(api: Api) -> None:
    response = api.call("POST", "{q}/jobs", content=b'{"data":1,"priority":1e999}')
    assert (response.status_code, response.json()["error"]) == (400, "priority must be a finite number")
    response = api.call("POST", "{q}/jobs", content=b'{"data":1,"priority":' + b"9" * 5_000 + b"}")
    assert (response.status_code, response.json()["error"]) == (400, "priority must be a finite number")


def test_null_means_not_given_and_a_whole_float_is_an_integer(api: Api) -> None:
    response = api.call("POST", "{q}/jobs", content=b'{"data":1,"priority":5.0,"ttl":null,"delay":0.9,"lifo":null,"zzz":1}')
    job = api.job(response.json()["id"])
    assert (job["priority"], job["ttl"], job["lifo"], job["state"]) == (5, None, False, "waiting")


@pytest.mark.parametrize(("levels", "status"), [(64, 200), (65, 400), (1_000, 400), (500_000, 400)])
def test_nesting_is_limited(api: Api, levels: int, status: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        content = b'{"data":' + opening * levels + b"1" + closing * levels + b"}"
        response = api.call("POST", "{q}/jobs", content=content)
        assert response.status_code == status, response.text
    if status == 400:
        assert response.json()["error"] in ("JSON nested too deeply (max 64 levels)", "Invalid JSON body")


def test_brackets_in_strings_are_not_levels_and_hide_none(api: Api) -> None:
    assert api.push("[" * 1_000)
    assert api.push([{"a": "}]" * 50}] * 50)
    sneaky = b'{"data":' + b'["]",' * 70 + b"1" + b"]" * 70 + b"}"
    assert api.call("POST", "{q}/jobs", content=sneaky).status_code == 400


def test_a_payload_of_ten_megabytes_fits_and_one_more_byte_does_not(api: Api) -> None:
    limit = 10 * 1024 * 1024
    job_id = api.push("x" * (limit - 2))
    assert api.refused("POST", "{q}/jobs", {"data": "x" * (limit - 1)}) == (400, "Job data too large (max 10MB)")
    assert api.refused("POST", "{q}/jobs", {"data": "x" * (limit * 2)}) == (400, "Job data too large (max 10MB)")
    assert len(api.pull()["data"]) == limit - 2
    api.ok("DELETE", f"/jobs/{job_id}")


def test_a_body_that_announces_too_much_is_refused_before_it_is_sent(api: Api, server: ServerProcess) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(
            f"POST /queues/{api.queue}/jobs/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000000\r\n\r\n".encode()
        )
        assert b"413" in raw.recv(4096).split(b"\r\n")[0]


def test_a_chunked_body_without_end_is_cut_off(api: Api) -> None:
    def endless() -> Any:
        for _ in range(40):
            yield b"x" * 1_000_000

    response = api.call("POST", "{q}/jobs/bulk", content=endless())
    assert response.status_code == 413
    assert response.json()["error"].startswith("Request body too large (max 10MB)")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "Queue name is required"),
        ("x" * 257, "Queue name too long (max 256 characters)"),
        ("a b", "Queue name contains invalid characters"),
        ("a%00b", "Queue name contains invalid characters"),
        ("%C3%A4", "Queue name contains invalid characters"),
        ("%FF", "Queue name contains invalid characters"),
        ("a;b", "Queue name contains invalid characters"),
        ("a%0A", "Queue name contains invalid characters"),
        ("%7Bx%7D", "Queue name contains invalid characters"),
    ],
)
def test_bad_queue_names_are_refused(api: Api, name: str, error: str) -> None:
    api.queue = name
    assert api.refused("POST", "{q}/jobs", {"data": 1}) == (400, error)
    assert api.refused("GET", "{q}/jobs") == (400, error)
    assert api.refused("POST", "{q}/pause") == (400, error)


def test_good_queue_names_are_taken(api: Api) -> None:
    for name in ("a", "A-1_b.c:d", "x" * 256, "-"):
        api.queue = name
        api.push(1)
        api.ok("POST", "{q}/obliterate")


def test_the_answers_have_the_words_of_the_contract(api: Api) -> None:
    reply = api.ok("POST", "{q}/jobs", {"data": 1})
    assert set(reply) == {"ok", "id"}
    assert api.call("GET", "/queues/nothing-here/jobs").json() == {"ok": True, "job": None}


def test_aliases_of_fields(api: Api) -> None:
    assert api.job(api.push(attempts=7))["maxAttempts"] == 7
    assert api.push(customId="alias-1") == "alias-1"
    assert api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1, "jobId": "alias-1"}]})["ids"] == ["alias-1"]


def test_options_are_kept(api: Api) -> None:
    options = {
        "priority": -5, "maxAttempts": 9, "backoff": 50, "ttl": 600_000, "timeout": 7_000, "uniqueKey": "u", "tags": ["t"],
        "groupId": "g", "lifo": True, "removeOnComplete": True, "removeOnFail": True,
    }  # fmt: skip
    job = api.job(api.push(**options))
    assert {name: job[name] for name in options} == options


def test_a_job_id_is_the_id_and_pushing_it_again_changes_nothing(api: Api) -> None:
    own = f"order-{api.queue}"
    assert api.push("first", jobId=own) == own
    assert api.push("second", jobId=own) == own
    assert api.counts()["waiting"] == 1
    assert api.job(own)["data"] == "first"
    assert api.ok("GET", f"/jobs/custom/{own}")["job"]["customId"] == own
    assert api.pull()["id"] == own
    api.ok("POST", f"/jobs/{own}/ack")
    assert api.push("third", jobId=own) == own
    assert api.state(own) == "completed"


def test_a_unique_key_is_silently_ignored_while_it_is_held(api: Api) -> None:
    job_id = api.push(uniqueKey="k")
    assert api.push(uniqueKey="k") == job_id
    api.take()
    assert api.push(uniqueKey="k") == job_id
    api.ok("POST", f"/jobs/{job_id}/ack")
    assert api.push(uniqueKey="k") != job_id


def test_durable_is_accepted(api: Api) -> None:
    assert api.state(api.push(durable=True)) == "waiting"


def test_lifo_priority_and_delay_decide_who_is_next(api: Api) -> None:
    api.push("fifo")
    api.push("lifo", lifo=True)
    api.push("urgent", priority=5)
    api.push("later", delay=60_000, priority=99)
    assert [api.pull()["data"] for _ in range(3)] == ["urgent", "lifo", "fifo"]
    assert api.pull() is None
    assert api.counts() == {
        "waiting": 0,
        "active": 3,
        "delayed": 1,
        "completed": 0,
        "failed": 0,
        "waiting-children": 0,
        "prioritized": 0,
        "paused": 0,
    }


def test_a_group_runs_one_at_a_time_and_others_pass_it(api: Api) -> None:
    first = api.push(1, groupId="g")
    api.push(2, groupId="g")
    api.push(3, groupId="h")
    assert [api.pull()["data"] for _ in range(2)] == [1, 3]
    assert api.pull() is None
    api.ok("POST", f"/jobs/{first}/ack")
    assert api.pull()["data"] == 2


# Bulk.


def test_a_bulk_answers_ids_in_order(api: Api) -> None:
    reply = api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": n, "priority": n} for n in range(5)]})
    assert set(reply) == {"ok", "ids"}
    assert [api.job(job_id)["data"] for job_id in reply["ids"]] == [0, 1, 2, 3, 4]
    assert api.ok("POST", "{q}/jobs/bulk", {"jobs": []})["ids"] == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"data": 1, "priority": "x"}, "jobs[1]: priority must be a number"),
        ({"priority": 1}, "jobs[1]: data is required"),
        (5, "jobs[1] must be an object"),
        ({"data": 1, "dependsOn": ["x"]}, "Dependency job not found: x"),
    ],
)
def test_a_bulk_with_one_bad_job_stores_none(api: Api, bad: Any, error: str) -> None:
    assert api.refused("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1}, bad, {"data": 3}]}) == (400, error)
    assert api.counts()["waiting"] == 0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "jobs is required"),
        ({"jobs": 5}, "jobs must be an array"),
        ({"jobs": [1] * 10_001}, "jobs must have at most 10000 items"),
    ],
)
def test_a_bulk_of_the_wrong_shape_is_refused(api: Api, body: Any, error: str) -> None:
    assert api.refused("POST", "{q}/jobs/bulk", body) == (400, error)


def test_a_bulk_of_the_largest_size_is_taken_whole(api: Api) -> None:
    assert len(api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1}] * 10_000})["ids"]) == 10_000
    assert api.ok("POST", "{q}/drain")["count"] == 10_000


# Pull.


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"timeout": -1}, "timeout must be at least 0"),
        ({"timeout": 60_001}, "timeout must be at most 60000"),
        ({"timeout": "soon"}, "timeout must be a number"),
        ({"timeout": "NaN"}, "timeout must be a finite number"),
        ({"timeout": "1e400"}, "timeout must be a finite number"),
    ],
)
def test_a_pull_with_a_bad_timeout_is_refused(api: Api, query: dict[str, Any], error: str) -> None:
    assert api.refused("GET", "{q}/jobs", params=query) == (400, error)


def test_a_long_poll_gets_the_job_that_arrives_meanwhile(api: Api, server: ServerProcess) -> None:
    answers: list[Any] = []

    def poll() -> None:
        with server.client() as client:
            answers.append(Api(client, api.queue).pull(timeout=20_000))

    waiting = threading.Thread(target=poll)
    waiting.start()
    while api.ok("GET", "/stats")["collections"]["waitingCallers"] == 0:
        time.sleep(0.01)
    job_id = api.push("late")
    waiting.join(20)
    assert answers[0]["id"] == job_id


def test_a_long_poll_gets_a_delayed_job_the_moment_it_is_due(api: Api) -> None:
    api.push("soon", delay=150)
    assert api.pull() is None
    job = api.pull(timeout=20_000)
    assert job["data"] == "soon"
    assert job["startedAt"] >= job["runAt"] == job["createdAt"] + 150


def test_a_long_poll_of_an_empty_queue_ends_with_nothing(api: Api) -> None:
    assert api.pull(timeout=50) is None


def test_a_client_that_hangs_up_takes_no_job_with_it(api: Api, server: ServerProcess) -> None:
    import socket

    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.sendall(f"GET /queues/{api.queue}/jobs?timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    while api.ok("GET", "/stats")["collections"]["waitingCallers"] == 0:
        time.sleep(0.01)
    raw.close()
    while api.ok("GET", "/stats")["collections"]["waitingCallers"] > 0:
        time.sleep(0.01)
    job_id = api.push(1)
    assert api.pull()["id"] == job_id


@pytest.mark.parametrize("batch", [False, True])
def test_a_pull_that_waits_can_be_ended_by_its_id(api: Api, server: ServerProcess, batch: bool) -> None:
    answers: list[Any] = []

    def poll() -> None:
        with server.client() as client:
            mine = Api(client, api.queue)
            if batch:
                body = {"count": 3, "timeout": 60_000, "waitId": api.queue}
                answers.append(mine.ok("POST", "{q}/jobs/pull-batch", body)["jobs"])
            else:
                answers.append(mine.pull(timeout=60_000, waitId=api.queue))

    def stop(**more: Any) -> Any:
        return api.ok("POST", "/jobs/stop-waiting", {"waitId": api.queue}, **more)["count"]

    assert stop() == 0
    waiting = [threading.Thread(target=poll) for _ in range(2)]
    for each in waiting:
        each.start()
    while api.ok("GET", "/stats")["collections"]["waitingCallers"] < 2:
        time.sleep(0.01)
    assert stop(headers={"X-Namespace": "another"}) == 0
    assert stop() == 2
    for each in waiting:
        each.join(20)
    nothing: Any = [] if batch else None
    assert answers == [nothing, nothing]
    assert stop() == 0
    job_id = api.push(1)
    assert api.pull()["id"] == job_id
    assert api.refused("POST", "/jobs/stop-waiting", {}) == (400, "waitId is required")


def test_a_batch_is_pulled_with_tokens(api: Api) -> None:
    pushed = [api.push(n) for n in range(3)]
    reply = api.ok("POST", "{q}/jobs/pull-batch", {"count": 10, "owner": "w1", "lockTtl": 60_000})
    assert [job["id"] for job in reply["jobs"]] == pushed
    assert len(set(reply["tokens"])) == 3
    assert api.ok("POST", "{q}/jobs/pull-batch", {"count": 1})["jobs"] == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "count is required"),
        ({"count": 0}, "count must be at least 1"),
        ({"count": 1_001}, "count must be at most 1000"),
        ({"count": 1.5}, "count must be an integer"),
        ({"count": "3"}, "count must be a number"),
        ({"count": 1, "timeout": 60_001}, "timeout must be at most 60000"),
        ({"count": 1, "lockTtl": 0}, "lockTtl must be at least 1"),
        ({"count": 1, "owner": 5}, "owner must be a string"),
    ],
)
def test_a_bad_batch_pull_is_refused(api: Api, body: Any, error: str) -> None:
    assert api.refused("POST", "{q}/jobs/pull-batch", body) == (400, error)


# Flows.


def test_a_flow_over_http(api: Api) -> None:
    first, second = api.push(1), api.push(2, removeOnComplete=True)
    parent = api.push("sum", dependsOn=[first, second], parentId="somebody", childrenIds=[first])
    assert api.state(parent) == "waiting-children"
    assert api.counts()["waiting-children"] == 1
    for _ in range(2):
        job_id, token = api.take()
        api.ok("POST", f"/jobs/{job_id}/ack", {"token": token, "result": {"of": job_id}})
    job = api.pull()
    assert (job["id"], job["dependsOn"], job["parentId"], job["childrenIds"]) == (
        parent,
        [first, second],
        "somebody",
        [first],
    )
    assert api.ok("GET", f"/jobs/{parent}/children")["values"] == {first: {"of": first}, second: {"of": second}}
    assert api.ok("GET", f"/jobs/{parent}/children?limit=1&offset=1")["values"] == {second: {"of": second}}
    assert api.refused("GET", f"/jobs/{parent}/children?limit=0") == (400, "limit must be at least 1")
    assert api.ok("GET", f"/jobs/{first}/children")["values"] == {}
    assert api.refused("GET", f"/jobs/{UNKNOWN_ID}/children") == (404, "Job not found")


def test_a_failing_child_takes_its_parent_with_it_if_that_was_agreed(api: Api) -> None:
    child = api.push(1, failParentOnFailure=True, maxAttempts=1)
    parent = api.push(2, dependsOn=[child])
    api.take()
    api.ok("POST", f"/jobs/{child}/fail", {"error": "no"})
    assert api.state(parent) == "failed"
    assert api.job(parent)["error"] == f"Child job {child} failed: no"


def test_fields_that_do_not_exist_are_ignored_and_named(api: Api) -> None:
    def warning(path: str, body: Any) -> str | None:
        answer = api.call("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.headers.get("penstock-warning")

    assert warning("{q}/jobs", {"data": 1, "priority": 5}) is None
    assert warning("{q}/jobs", {"data": {"prioritiy": 1}, "delay": None, "priority": 5.0}) is None
    assert warning("{q}/jobs", {"data": 1, "prioritiy": 5}) == "Ignored: prioritiy (did you mean priority?)"
    assert warning("{q}/jobs", {"data": 1, "ä\n": 1, "backoff": {"delay": 1, "maxdelay": 2}}) == (
        "Ignored: ??; backoff.maxdelay (did you mean maxDelay?)"
    )
    for name, given, shown in (
        ("backoff", {"typ": "fixed", "delay": 5}, "backoff.typ (did you mean type?)"),
        ("dedup", {"ttll": 5}, "dedup.ttll (did you mean ttl?)"),
        ("repeat", {"every": 60_000, "limitt": 1}, "repeat.limitt (did you mean limit?)"),
    ):
        body = {"data": 1, "uniqueKey": name, name: given}
        assert warning("{q}/jobs", body) == f"Ignored: {shown}"
        assert warning("{q}/jobs/bulk", {"jobs": [body]}) == f"Ignored: jobs[0].{shown}"
    assert warning("{q}/jobs/bulk", {"jobs": [{"data": 1}, {"data": 2, "uniqueKye": "a"}], "zzz": 1}) == (
        "Ignored: jobs[1].uniqueKye (did you mean uniqueKey?); zzz"
    )
    many = {"jobs": [{"data": 1, "qqqqqq": 1}] * 100}
    assert (warning("{q}/jobs/bulk", many) or "").count("qqqqqq") == 5
    assert api.refused("POST", "{q}/jobs", {"data": 1, "prioritiy": 5, "delay": -1}) == (400, "delay must be at least 0")
