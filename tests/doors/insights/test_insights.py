"""``/insights`` over a real socket, on a lake that no Spark has built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core import limits
from penstock.doors.insights import wire
from penstock.lake.queries.api import Insights, Question
from penstock.lake.tables import LATENCY, MINUTES
from tests.doors.api import Api
from tests.support import lakes
from tests.support.arrow import values
from tests.support.bulk import table_of
from tests.support.lakes import HOUR, MINUTE, Business, histogram, rows_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from penstock.lake.location import Lake

ARROW = "application/vnd.apache.arrow.stream"
REPLIES: dict[str, type[msgspec.Struct]] = {
    "queues": wire.QueueFiguresReply,
    "series": wire.SeriesReply,
    "latency": wire.LatencyReply,
    "failures": wire.FailuresReply,
    "backlog": wire.BacklogReply,
    "workers": wire.UtilisationReply,
    "tenants": wire.TenantsReply,
    "slo": wire.ObjectivesReply,
    "forecast": wire.ForecastReply,
}


class World:
    """A lake of some hours, what is in it, and a server that knows it."""

    def __init__(self, directory: Path) -> None:
        self.business = Business(minutes=180)
        self.directory = directory / "lake"
        self.lake: Lake = self.business.write(self.directory, pieces=3)
        self.server = ServerProcess(
            directory / "data",
            "--lake",
            str(self.directory),
            env={"PENSTOCK_AUTH_API_KEY": "root", "PENSTOCK_BULK_PROCESSES": "1"},
        )

    def count(self, column: str, **chosen: str) -> int:
        rows = self.business.rows[MINUTES]
        return sum(row[column] for row in rows if all(row[name] == value for name, value in chosen.items()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("insights"))
    with made.server:
        yield made


@pytest.fixture
def client(world: World) -> Iterator[httpx2.Client]:
    with world.server.client(headers={"X-Api-Key": "root"}) as made:
        yield made


def ask(client: httpx2.Client, path: str, *, namespace: str = "*", **query: Any) -> Any:
    reply = client.get(f"/insights/{path}", params=query, headers={"X-Namespace": namespace})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    msgspec.convert(body, REPLIES[path], strict=True)  # as the document says
    return body


def refused(client: httpx2.Client, path: str, **query: Any) -> tuple[int, str]:
    reply = client.get(path, params=query, headers={"X-Namespace": "*"})
    assert set(reply.json()) == {"ok", "error"}
    return reply.status_code, reply.json()["error"]


@pytest.mark.parametrize("path", REPLIES)
def test_every_question_is_answered_in_json_and_in_arrow(client: httpx2.Client, path: str) -> None:
    body = ask(client, path)
    assert body["ok"] is True
    assert body["rows"]
    reply = client.get(f"/insights/{path}", headers={"X-Namespace": "*", "Accept": ARROW})
    assert reply.headers["content-type"] == ARROW
    table = table_of(reply.content)
    assert reply.headers["x-penstock-rows"] == str(table.num_rows) == str(len(body["rows"]))
    assert table.column_names == list(body["rows"][0])


def test_the_figures_are_those_of_the_lake(client: httpx2.Client, world: World) -> None:
    window: dict[str, Any] = {"from": world.business.start, "to": world.business.end}
    rows = {(row["namespace"], row["queue"]): row for row in ask(client, "queues", **window)["rows"]}
    assert set(rows) == {("default", "mail"), ("default", "payments"), ("shop", "images")}
    for (namespace, queue), row in rows.items():
        for name in ("arrivals", "completions", "failures", "dead", "bytes_in"):
            assert row[name] == world.count(name, namespace=namespace, queue=queue)
        assert row["depth"] == row["arrivals"] - row["completions"] - row["dead"]
    hourly = ask(client, "series", queue="mail", step="1h", columns="arrivals,dead", **window)
    assert hourly["step_ms"] == HOUR
    assert [row["at"] for row in hourly["rows"]] == [world.business.start + hour * HOUR for hour in range(3)]
    assert sum(row["arrivals"] for row in hourly["rows"]) == world.count("arrivals", queue="mail")
    assert set(hourly["rows"][0]) == {"namespace", "queue", "at", "arrivals", "dead"}
    (every,) = ask(client, "series", by="all", step="1d", **window)["rows"]
    assert every["completions"] == world.count("completions")
    depths = ask(client, "backlog", queue="mail", step="1h", **window)["rows"]
    assert depths[-1]["depth"] == rows["default", "mail"]["depth"]


def test_percentiles_of_any_window(client: httpx2.Client) -> None:
    rows = ask(client, "latency", kind="run", q="0.5,0.99,0.999", step="1h")["rows"]
    assert set(rows[0]) == {"namespace", "queue", "at", "n", "mean_ms", "p50", "p99", "p99.9"}
    assert all(row["p50"] < row["p99"] <= row["p99.9"] for row in rows)
    (whole,) = ask(client, "latency", kind="run", whole="yes", by="all")["rows"]
    assert whole["n"] == sum(row["n"] for row in rows)
    assert whole["p50"] == pytest.approx(665, rel=0.1)  # e^6.5


def test_one_namespace_sees_itself_only(client: httpx2.Client) -> None:
    for path in REPLIES:
        rows = ask(client, path, namespace="shop")["rows"]
        assert rows
        assert {row.get("namespace") for row in rows} == {"shop"}
    tenants = ask(client, "tenants", namespace="shop")
    assert tenants["jain"] == {"busy_ms": None, "completions": None, "served": None}
    assert tenants["rows"][0]["share_busy_ms"] is None
    assert ask(client, "tenants")["jain"]["busy_ms"] < 1
    assert ask(client, "queues", namespace="nobody")["rows"] == []


def test_rights(client: httpx2.Client, world: World) -> None:
    def key(**body: Any) -> str:
        reply = client.post("/keys", json=body)
        assert reply.status_code in (200, 201), reply.text
        found: str = reply.json()["secret"]
        return found

    shop = key(namespaces=["shop"], roles=["admin"], label="shop")
    with world.server.client(headers={"X-Api-Key": shop}) as mine:
        assert mine.get("/insights/queues", headers={"X-Namespace": "shop"}).status_code == 200
        for namespace in ("*", "default"):
            for path in ("", *(f"/{each}" for each in REPLIES)):
                assert mine.get(f"/insights{path}", headers={"X-Namespace": namespace}).status_code == 403
    with world.server.client() as nobody:
        assert nobody.get("/insights").status_code == 401


def test_how_fresh_it_is_and_who_else_consumes(client: httpx2.Client, world: World) -> None:
    headers = {"X-Namespace": "shop"}
    api = Api(client, "images")
    assert (
        client.post(
            "/bulk/stages/t", params={"queue": "images"}, content=values(list(range(5))), headers=headers
        ).status_code
        == 200
    )
    body = {"key": "k", "txns": ["t"], "wait_ms": 10_000}
    assert client.post("/bulk/commits", json=body, headers=headers).json()["state"] == "published"
    claim = {"epoch": 1, "queues": ["images"], "max": 2, "lease_ms": 60_000}
    assert client.post("/bulk/groups/spark/claim", json=claim, headers=headers).json()["rows"] == 2

    told = client.get("/insights", headers=headers).json()
    msgspec.convert(told, wire.InsightsReply, strict=True)
    assert (told["last_batch"], told["known_from"], told["known_until"]) == (2, world.business.start, world.business.end)
    assert {row["table"]: row["version"] for row in told["tables"]}["gold/minutes"] == 3
    assert 0 <= told["lag_ms"] < HOUR
    (group,) = told["groups"]
    assert (group["group"], group["lag"], group["in_flight"]) == ("spark", 3, 2)
    assert client.get("/insights", headers={"X-Namespace": "default"}).json()["groups"] == []

    metrics = client.get("/prometheus").text
    assert 'penstock_group_lag{group="spark",namespace="shop"} 3.0' in metrics
    assert 'penstock_group_in_flight{group="spark",namespace="shop"} 2.0' in metrics
    for path in ("/workers", "/queues/images/workers"):
        (group,) = client.get(path, headers=headers).json()["data"]["groups"]
        assert (group["group"], group["lag"], group["inFlight"], group["queues"]) == ("spark", 3, 2, ["images"])
    assert "groups" not in client.get("/queues/other/workers", headers=headers).json()["data"]
    assert "groups" not in api.ok("GET", "/workers")["data"]


def test_what_is_new_in_the_lake_is_seen_at_once(client: httpx2.Client, world: World) -> None:
    key = {"namespace": "late", "queue": "q", "minute": world.business.end}
    for round_ in (1, 2):
        lakes.write(world.lake, MINUTES, rows_of(MINUTES, [{**key, "arrivals": 5}]))
        lakes.write(world.lake, LATENCY, rows_of(LATENCY, histogram([10, 20], **key, kind="wait")))
        (row,) = ask(client, "queues", namespace="late")["rows"]
        assert row["arrivals"] == 5 * round_
        (whole,) = ask(client, "latency", namespace="late", whole="yes")["rows"]
        assert (whole["n"], whole["p99"]) == (2 * round_, 20)


def test_the_server_itself_does_not_load_what_reads_the_lake(client: httpx2.Client, world: World) -> None:
    ask(client, "queues")
    assert "deltalake" not in Path(f"/proc/{world.server.pid}/maps").read_text(encoding="utf-8")


def test_what_was_read_is_kept_as_long_as_nothing_changes(world: World) -> None:
    insights = Insights(world.lake)
    asked = Question(namespace="default", queue="mail")
    first = insights.ask("latency", asked)
    reads = insights.reads
    again = insights.ask("latency", Question(namespace="default", queue="mail", quantiles=[0.1]))
    assert insights.reads == reads
    assert first.rows["n"].to_pylist() == again.rows["n"].to_pylist()


@pytest.mark.parametrize(
    ("path", "query", "error"),
    [
        ("series", {"step": "5"}, "step must be minutes, hours or days"),
        ("series", {"step": "0m"}, "step must be minutes, hours or days"),
        ("series", {"step": "90s"}, "step must be minutes, hours or days"),
        ("series", {"from": 5, "to": 5}, "from must be before to"),
        ("series", {"from": "yesterday"}, "from must be a number"),
        ("series", {"columns": "arrivals,departures"}, "columns has 'departures': expected some of arrivals"),
        ("series", {"by": "day"}, "by must be one of: all, namespace, queue"),
        ("series", {"limit": 0}, "limit must be at least 1"),
        ("latency", {"q": "50"}, "q must be shares from 0 to 1"),
        ("latency", {"q": "x"}, "q must be shares from 0 to 1"),
        ("latency", {"q": ",".join(["0.5", *(f"0.{each}1" for each in range(20))])}, "q must be at most 20 shares"),
        ("latency", {"kind": "sleep"}, "kind must be one of: run, total, wait"),
        ("backlog", {"from": 1, "to": 10_000 * MINUTE + 2 * MINUTE, "step": "1m"}, "(insight_steps_max)"),
    ],
)
def test_bad_questions_are_told_what_is_wrong(client: httpx2.Client, path: str, query: dict[str, Any], error: str) -> None:
    status, text = refused(client, f"/insights/{path}", **query)
    assert status == 400
    assert error in text


def test_answers_are_bounded(client: httpx2.Client, world: World) -> None:
    window: dict[str, Any] = {"from": world.business.end - 9_000 * MINUTE, "to": world.business.end, "step": "1m"}
    status, text = refused(client, "/insights/backlog", **window)
    assert status == 400
    assert f"at most {limits.insight_json_rows_max} are returned (insight_rows_max)" in text
    assert len(ask(client, "backlog", limit=7, **window)["rows"]) == 7
    reply = client.get("/insights/backlog", params=window, headers={"X-Namespace": "*", "Accept": ARROW})
    assert table_of(reply.content).num_rows == 27_000


def test_objectives_of_the_lake(client: httpx2.Client, world: World) -> None:
    file = world.directory / "objectives.yaml"
    try:
        file.write_text("objectives: [{name: quick, queue: mail, kind: run, within: 10m, target: 0.5}]")
        (row,) = ask(client, "slo")["rows"]
        assert (row["objective"], row["queue"], row["attained"], row["budget_left"]) == ("quick", "mail", 1, 1)
        file.write_text("objectives: [{name: quick, kind: speed, target: 0.5}]")
        status, text = refused(client, "/insights/slo")
        assert status == 500
        assert "objective 1: kind must be one of" in text
    finally:
        file.unlink()
    assert {row["objective"] for row in ask(client, "slo")["rows"]} == {"jobs start within a minute"}


def test_a_server_without_a_lake_says_what_to_do(server: ServerProcess) -> None:
    with server.client() as client:
        for path in ("/insights", "/insights/queues"):
            reply = client.get(path)
            assert (reply.status_code, reply.headers["penstock-error"]) == (404, "lake_unset")
            assert "penstock pipeline run --lake DIR" in reply.json()["error"]
            assert "PENSTOCK_LAKE" in reply.json()["error"]


def test_a_lake_that_is_not_there_yet(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--lake", str(tmp_path / "lake")) as server, server.client() as client:
        for path in ("/insights", "/insights/queues", "/insights/forecast"):
            reply = client.get(path)
            assert (reply.status_code, reply.headers["penstock-error"]) == (404, "lake_not_found")
            assert "penstock pipeline run --lake DIR" in reply.json()["error"]
        Business(minutes=30).write(tmp_path / "lake")
        assert client.get("/insights/queues").json()["rows"]
        assert json.loads(client.get("/insights/series", params={"limit": 1}).text)["rows"]
