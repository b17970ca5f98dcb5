"""Consumer groups: many jobs at once under numbers, so that asking twice is safe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.doors.bulk.test_stages import commit, stage
from tests.support.arrow import rows_of, stream_of, values

if TYPE_CHECKING:
    from tests.doors.api import Api

LEASE = 60_000


def ask(api: Api, what: str, **fields: Any) -> dict[str, Any]:
    response = api.http.post(f"/bulk/groups/{api.queue}/{what}", json=fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def claim(api: Api, epoch: int, most: int = 100, **more: Any) -> dict[str, Any]:
    reply = ask(api, "claim", **{"epoch": epoch, "queues": [api.queue], "max": most, "lease_ms": LEASE, **more})
    assert reply.pop("histories")
    return reply


def read(api: Api, epoch: int, split: int = 0, splits: int = 1) -> list[dict[str, Any]]:
    params = {"epoch": epoch, "split": split, "splits": splits}
    return rows_of(api.http.get(f"/bulk/groups/{api.queue}/read", params=params))


def fill(api: Api, count: int) -> None:
    stage(api, "fill", values(range(count)))
    commit(api, "fill", "fill")


def counts(api: Api) -> dict[str, int]:
    found: dict[str, int] = api.ok("GET", "{q}/counts")["counts"]
    return {state: count for state, count in found.items() if count}


def test_claim_read_ack(api: Api) -> None:
    fill(api, 2_500)
    assert claim(api, 1, 2_400) == {"epoch": 1, "rows": 2_400, "splits": 1}
    assert claim(api, 2) == {"epoch": 2, "rows": 100, "splits": 1}
    assert claim(api, 3) == {"epoch": 3, "rows": 0, "splits": 0}
    rows = [row for split in range(3) for row in read(api, 1, split, 3)]
    assert [int(row["value"]) for row in rows] == list(range(2_400))
    assert [row["offset"] for row in rows] == list(range(2_400))
    assert (rows[0]["queue"], rows[0]["namespace"], rows[0]["attempt"], rows[0]["key"]) == (api.queue, "default", 1, None)
    assert api.job(rows[7]["job_id"])["data"] == 7
    assert ask(api, "ack", epoch=1) == {"acked": 2_400, "lost": 0}
    assert ask(api, "ack", epoch=1) == {"acked": 0, "lost": 0}
    assert counts(api) == {"active": 100, "completed": 2_400}
    assert ask(api, "ack", epoch=9) == {"acked": 100, "lost": 0}


def test_the_same_epoch_again_is_the_same_jobs(api: Api) -> None:
    fill(api, 10)
    claim(api, 1, 4)
    first = read(api, 1)
    assert claim(api, 1, 9) == {"epoch": 1, "rows": 4, "splits": 1}
    assert read(api, 1) == first
    assert counts(api) == {"active": 4, "waiting": 6}


def test_an_epoch_that_was_acknowledged_is_over(api: Api) -> None:
    fill(api, 10)
    claim(api, 5, 4)
    ask(api, "ack", epoch=5)
    for epoch in (4, 5):
        status, error = api.refused(
            "POST", f"/bulk/groups/{api.queue}/claim", {"epoch": epoch, "queues": [api.queue], "max": 1}
        )
        assert (status, "epoch 6" in error) == (409, True)
    assert api.refused("GET", f"/bulk/groups/{api.queue}/read", params={"epoch": 5})[0] == 404
    assert claim(api, 6, 1)["rows"] == 1


def test_what_is_released_is_ready_again_at_its_place(api: Api) -> None:
    fill(api, 10)
    claim(api, 1, 3)
    claim(api, 2, 3)
    assert ask(api, "release") == {"released": 6}
    assert counts(api) == {"waiting": 10}
    assert claim(api, 1, 10)["rows"] == 10
    assert [int(row["value"]) for row in read(api, 1)] == list(range(10))


def test_bytes_and_headers_come_out_as_they_went_in(api: Api) -> None:
    data = [b"\xff\x00", b'{"a": 1}', b"plain text", b""]
    headers = ['{"h": 1}', None, '{"x":"\u00e4"}', None]
    keys = [f"{api.queue}-{number}" for number in range(4)]
    stage(api, "a", stream_of({"value": data, "headers": headers, "key": keys}))
    commit(api, "k", "a")
    claim(api, 1)
    rows = read(api, 1)
    assert [(row["value"], row["headers"], row["key"]) for row in rows] == list(zip(data, headers, keys, strict=True))


def test_leases_that_ran_out_are_told(api: Api) -> None:
    fill(api, 3)
    claim(api, 1, lease_ms=1)
    while api.ok("GET", "{q}/counts")["counts"]["active"]:
        time.sleep(0.01)
    params = {"epoch": 1}
    response = api.http.get(f"/bulk/groups/{api.queue}/read", params=params)
    assert response.status_code == 409
    assert response.headers["penstock-error"] == "leases_lost"
    assert {name: response.json()[name] for name in ("ok", "epoch", "lost")} == {"ok": False, "epoch": 1, "lost": 3}
    assert rows_of(api.http.get(f"/bulk/groups/{api.queue}/read", params={"epoch": 1, "lost": "skip"})) == []
    assert ask(api, "heartbeat", lease_ms=LEASE) == {"epochs": [1], "lost": 3}
    for _ in range(2):  # it is refused as a whole, and again
        response = api.http.post(f"/bulk/groups/{api.queue}/ack", json={"epoch": 1, "lost": "fail"})
        assert (response.status_code, response.headers["penstock-error"]) == (409, "leases_lost")
        assert response.json()["lost"] == 3
    assert ask(api, "ack", epoch=1) == {"acked": 0, "lost": 3}
    assert ask(api, "ack", epoch=1, lost="fail") == {"acked": 0, "lost": 0}
    claim(api, 2)
    assert ask(api, "ack", epoch=2, lost="fail") == {"acked": 3, "lost": 0}


def test_a_heartbeat_keeps_leases(api: Api) -> None:
    fill(api, 3)
    claim(api, 4, lease_ms=2_000)
    assert ask(api, "heartbeat", lease_ms=LEASE) == {"epochs": [4], "lost": 0}
    (job, *_) = read(api, 4)
    assert api.job(job["job_id"])["state"] == "active"


def test_a_claim_waits_for_the_first_job_of_any_queue(api: Api) -> None:
    api.push(1)
    both = [f"{api.queue}-none", api.queue]
    assert claim(api, 1, queues=both, wait_ms=20_000)["rows"] == 1
    assert claim(api, 2, queues=both, wait_ms=50)["rows"] == 0


def test_groups_are_listed_with_their_lag(api: Api) -> None:
    fill(api, 10)
    claim(api, 1, 3)
    claim(api, 2, 2)
    groups = [each for each in api.http.get("/bulk/groups").json() if each["group"] == api.queue]
    (group,) = groups
    assert group.pop("last_seen") > 1_700_000_000_000
    assert group == {
        "namespace": "default", "group": api.queue, "queues": [api.queue], "epochs": [1, 2], "in_flight": 5, "lag": 5
    }  # fmt: skip


def test_what_cannot_be_is_refused(api: Api) -> None:
    path = f"/bulk/groups/{api.queue}"
    for body in ({"epoch": 0, "queues": ["a"], "max": 1}, {"epoch": 1, "queues": [], "max": 1}, {"epoch": 1}):
        assert api.refused("POST", f"{path}/claim", body)[0] == 400
    assert api.refused("POST", f"{path}/claim", {"epoch": 1, "queues": ["a b"], "max": 1})[0] == 400
    assert api.refused("GET", f"{path}/read", params={"epoch": 1})[0] == 404
    assert api.refused("GET", f"{path}/read", params={"epoch": 1, "split": 2, "splits": 2})[0] == 400
    assert api.refused("POST", "/bulk/groups/a b/ack", {"epoch": 1})[0] == 400
    assert ask(api, "heartbeat") == {"epochs": [], "lost": 0}
    assert ask(api, "release") == {"released": 0}
