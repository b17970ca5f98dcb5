"""Staged writes: out of sight until one small commit, and then there exactly once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.arrow import stream_of, values

if TYPE_CHECKING:
    from tests.doors.api import Api

WAIT = 30_000


def stage(api: Api, txn: str, body: bytes, **params: Any) -> dict[str, Any]:
    params.setdefault("queue", api.queue)
    response = api.http.post(f"/bulk/stages/{api.queue}-{txn}", params=params, content=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def commit(api: Api, key: str, *txns: str, wait_ms: int = WAIT) -> dict[str, Any]:
    names = [f"{api.queue}-{txn}" for txn in txns]
    response = api.http.post("/bulk/commits", json={"key": f"{api.queue}-{key}", "txns": names, "wait_ms": wait_ms})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    assert reply.pop("key") == f"{api.queue}-{key}"
    return reply


def refused(api: Api, body: bytes, **params: Any) -> tuple[int, str]:
    params.setdefault("queue", api.queue)
    return api.refused("POST", "/bulk/stages/refused", content=body, params=params)


def waiting(api: Api) -> int:
    count: int = api.ok("GET", "{q}/counts")["counts"]["waiting"]
    return count


def drained(api: Api) -> list[Any]:
    found = []
    while (job := api.pull()) is not None:
        found.append(job["data"])
        api.ok("POST", f"/jobs/{job['id']}/ack", {})
    return found


def test_rows_appear_with_the_commit_and_in_order(api: Api) -> None:
    assert stage(api, "a", values(range(1_200)))["rows"] == 1_200
    assert stage(api, "b", values(range(1_200, 1_203)))["rows"] == 3
    assert waiting(api) == 0
    assert commit(api, "k", "a", "b") == {"rows": 1_203, "state": "published", "duplicate": False, "known": 0}
    assert waiting(api) == 1_203
    assert api.ok("POST", "{q}/jobs/pull-batch", {"count": 1000})["jobs"][999]["data"] == 999


def test_the_same_key_again_changes_nothing(api: Api) -> None:
    stage(api, "a", values([1, 2]))
    commit(api, "k", "a")
    for txns in (("a",), ("something else",), ()):
        names = [txn for txn in txns if " " not in txn]
        assert commit(api, "k", *names) == {"rows": 2, "state": "published", "duplicate": True, "known": 0}
    assert waiting(api) == 2
    reply = api.http.get(f"/bulk/commits/{api.queue}-k").json()
    assert reply == {"key": f"{api.queue}-k", "rows": 2, "state": "published", "duplicate": False, "known": 0}


def test_an_abort_drops_what_is_staged_and_never_undoes_a_commit(api: Api) -> None:
    stage(api, "a", values([1, 2]))
    assert api.http.post(f"/bulk/stages/{api.queue}-a/abort").json() == {"rows": 2}
    status, error = api.refused("POST", "/bulk/commits", {"key": f"{api.queue}-k", "txns": [f"{api.queue}-a"]})
    assert (status, "Stage it again" in error) == (404, True)
    stage(api, "a", values([3]))
    commit(api, "k", "a", wait_ms=0)
    assert api.http.post(f"/bulk/stages/{api.queue}-a/abort").json() == {"rows": 0}
    assert commit(api, "k")["state"] == "published"
    assert drained(api) == [3]


def test_a_part_that_is_staged_again_takes_the_place_of_the_first(api: Api) -> None:
    stage(api, "a", values([1, 2]), part=3)
    stage(api, "a", values([4]), part=4)
    stage(api, "a", values([3]), part=3)
    assert commit(api, "k", "a")["rows"] == 2
    assert sorted(drained(api)) == [3, 4]


def test_nothing_to_write_is_a_commit_too(api: Api) -> None:
    assert stage(api, "a", values([])) == {"rows": 0, "bytes": 0}
    assert commit(api, "k", "a") == {"rows": 0, "state": "published", "duplicate": False, "known": 0}
    assert commit(api, "k2") == {"rows": 0, "state": "published", "duplicate": False, "known": 0}


def test_rows_whose_names_are_taken_are_counted(api: Api) -> None:
    """A key is good for one job in the whole namespace, so the same one on another queue makes none; a commit says how many."""
    keys = [f"{api.queue}-{number}" for number in range(1_200)]
    stage(api, "a", stream_of({"value": ["1"] * 1_200, "key": keys}))
    assert commit(api, "k", "a")["known"] == 0
    more = [f"{api.queue}-{number}" for number in range(1_100, 1_250)]
    table = {"value": ["2"] * 151, "key": [*more, None], "queue": [f"{api.queue}-two"] * 151}
    stage(api, "b", stream_of(table))
    assert commit(api, "k2", "b") == {"rows": 151, "state": "published", "duplicate": False, "known": 100}
    assert commit(api, "k2", "b") == {"rows": 151, "state": "published", "duplicate": True, "known": 100}
    assert api.http.get(f"/bulk/commits/{api.queue}-k2").json()["known"] == 100
    assert api.http.get(f"/queues/{api.queue}-two/counts").json()["counts"]["waiting"] == 51


def test_every_option_of_a_job_is_a_column(api: Api) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    body = stream_of(
        {
            "value": ['{"n":1}', '{"n":2}'],
            "queue": [api.queue, f"{api.queue}-two"],
            "key": [f"{api.queue}-one", None],
            "priority": pa.array([7, None], pa.int16()),
            "delay": pa.array([0, 60_000], pa.int32()),
            "max_attempts": [5, 1],
            "backoff": [10, 20],
            "ttl": [100_000, None],
            "timeout": [None, 5_000],
            "unique_key": ["u", None],
            "group_id": ["g", None],
            "headers": ['{"a":1}', None],
            "lifo": [True, False],
            "remove_on_complete": [False, True],
        },
        file=True,
    )
    stage(api, "a", body)
    stage(api, "b", stream_of({"value": [b"\xff\x00"], "run_at": pa.array([soon], pa.timestamp("us", tz="UTC"))}))
    assert commit(api, "k", "a", "b")["rows"] == 3
    first = api.job(f"{api.queue}-one")
    assert (first["data"], first["priority"], first["maxAttempts"], first["backoff"]) == ({"n": 1}, 7, 5, 10)
    assert (first["uniqueKey"], first["groupId"], first["customId"]) == ("u", "g", f"{api.queue}-one")
    (second,) = api.http.get(f"/queues/{api.queue}-two/jobs/list", params={"state": "delayed"}).json()["jobs"]
    assert (second["timeout"], second["removeOnComplete"], second["maxAttempts"]) == (5_000, True, 1)
    (third,) = api.ok("GET", "{q}/jobs/list", params={"state": "delayed"})["jobs"]
    assert third["runAt"] // 1000 == int(soon.timestamp())


def test_parameters_are_for_all_rows(api: Api) -> None:
    stage(api, "a", values([1, 2]), priority=9, max_attempts=7, remove_on_complete="true", headers='{"x":1}')
    commit(api, "k", "a")
    job = api.pull()
    assert (job["priority"], job["maxAttempts"], job["removeOnComplete"]) == (9, 7, True)


def test_a_name_that_is_taken_stays_whose_it_is(api: Api) -> None:
    names = [f"{api.queue}-{number}" for number in (1, 2, 2)]
    for txn in ("a", "b"):
        stage(api, txn, stream_of({"value": [b"1", b"2", b"3"], "key": names}))
        commit(api, txn, txn)
    assert waiting(api) == 2


@pytest.mark.parametrize(
    ("columns", "params", "words"),
    [
        ({"v": [b"1"]}, {}, "Unknown columns: v"),
        ({"queue": ["x"]}, {}, "column value is missing"),
        ({"value": [1]}, {}, "must be binary or string, not int64"),
        ({"value": [b"1", None]}, {}, "has nulls"),
        ({"value": [b"1"]}, {"queue": ""}, "queue must have between"),
        ({"value": [b"1"], "queue": ["bad queue"]}, {}, "contains invalid characters"),
        ({"value": [b"1"], "priority": [2_000_000]}, {}, "priority must be between"),
        ({"value": [b"1"], "priority": ["x"]}, {}, "priority must be an integer"),
        ({"value": [b"1"]}, {"delay": "soon"}, "delay must be a"),
        ({"value": [b"1"]}, {"colour": "red"}, "Unknown parameters: colour"),
        ({"value": [b"1"], "headers": ["[]"]}, {}, "headers must be a JSON object"),
        ({"value": [b"1"], "key": ["idempotency:1"]}, {}, "must not begin with"),
        ({"value": [b"1"]}, {"lifo": "yes"}, "lifo must be true or false"),
        ({"value": [b"1"], "lifo": [1]}, {}, "lifo must be a boolean"),
        ({"value": [b"1"]}, {"part": -1}, "part must be at least 0"),
        ({"value": [b"1"], "run_at": pa.array([2**62], pa.timestamp("s"))}, {}, "run_at must be between 0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(
    api: Api, columns: dict[str, Any], params: dict[str, Any], words: str
) -> None:
    status, error = refused(api, stream_of(columns), **params)
    assert (status, words in error) == (400, True), error


def test_what_is_not_arrow_is_refused(api: Api) -> None:
    for body in (b"", b"hello", values([1])[:-20], b"ARROW1\x00\x00nothing"):
        status, error = refused(api, body)
        assert (status, "Arrow IPC" in error) == (400, True), error
    assert api.refused("POST", "/bulk/stages/a b", content=values([1]))[0] == 400
    assert api.refused("GET", "/bulk/commits/unknown")[0] == 404


def test_what_is_damaged_in_arrow_is_refused(api: Api) -> None:
    good = stream_of({"value": ["abcdefgh", "ijklmnop"], "priority": [1, 2]})
    places = good.index(b"\0\0\0\0\x08\0\0\0\x10\0\0\0")  # where texts begin and end
    for body in (
        good[: places + 4] + b"\xf8\xff\xff\x7f" + good[places + 8 :],
        good[: places + 4] + b"\xf8\xff\xff\xff" + good[places + 8 :],
        good.replace(b"abcd", b"\xff\xfe\xfd\xfc"),
    ):
        status, error = refused(api, body)
        assert (status, "Arrow IPC" in error) == (400, True), error
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, twice.schema) as writer:
        writer.write_table(twice)
    assert refused(api, sink.getvalue().to_pybytes()) == (400, "Duplicate columns: value. Leave one of them out.")


def test_a_trailer_is_not_needed_and_must_be_right(api: Api) -> None:
    """What is read of this server may be sent to it as it is."""
    rows = values([1, 2])
    assert stage(api, "a", rows + b"PNSTROWS" + (2).to_bytes(8, "little"))["rows"] == 2
    for rest in (b"PNSTROWS" + (3).to_bytes(8, "little"), b"PNSTROWS", b"more", rows):
        status, error = refused(api, rows + rest)
        assert (status, "2 rows" in error) == (400, True), error


def test_a_body_may_be_larger_than_a_job(api: Api) -> None:
    too_large = api.refused("POST", "/bulk/stages/refused", content=b"x" * (65 * 2**20), params={"queue": api.queue})
    assert too_large == (413, "Request body too large (max 64MB). Send it in smaller parts.")
    large = [b'"' + b"x" * 1_000_000 + b'"'] * 20
    assert stage(api, "a", stream_of({"value": large}))["rows"] == 20
    assert commit(api, "k", "a")["state"] == "published"
    assert waiting(api) == 20
