"""What is in deploy/ fits together and fits the server: metrics that exist, files that are mounted, settings that are known."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx2
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock import config
from penstock.core.errors import ServerError
from tests.docs.generate import ROOT
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
#: Labels that Prometheus adds to every sample.
ADDED = {"instance", "job"}


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


COMPOSE = load("compose.yaml")
RULES = [rule for group in load("alerts.yml")["groups"] for rule in group["rules"]]
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "penstock.json").read_text(encoding="utf-8"))


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the alerts and of the dashboard, with its name."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "5m")


class Used:
    """Which metrics an expression reads, and which labels it names."""

    def __init__(self, expression: str) -> None:
        self.metrics: set[str] = set()
        self.labels: set[str] = set()
        promql_parser.walk(promql_parser.parse(expression), pre_visit=self._visit)

    def _visit(self, node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None
            self.metrics.add(node.name)
            self.labels |= {matcher.name for matcher in node.matchers.matchers}
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            self.labels |= set(node.modifier.labels)
        return True


@pytest.fixture(scope="session")
def scraped(server: ServerProcess) -> dict[str, set[str]]:
    """Every metric of a real server, with its labels."""
    httpx2.post(f"{server.url}/queues/scraped/jobs", json={"data": 1}).raise_for_status()
    claim = {"epoch": 1, "max": 1, "lease_ms": 60_000, "queues": ["scraped"]}
    httpx2.post(f"{server.url}/bulk/groups/scraped/claim", json=claim).raise_for_status()
    found: dict[str, set[str]] = {"up": set()}
    text = ""
    while "penstock_group_lag{" not in text:  # groups are looked at once a second
        text = httpx2.get(f"{server.url}/prometheus").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", [pytest.param(expr, id=name) for name, expr in expressions()])
def test_every_metric_and_label_exists_at_a_real_server(expression: str, scraped: dict[str, set[str]]) -> None:
    used = Used(expression)
    assert used.metrics
    assert used.metrics <= scraped.keys()
    assert used.labels - ADDED <= set().union(*(scraped[name] for name in used.metrics))


def test_the_check_sees_into_ranges_and_aggregations() -> None:
    used = Used('sum by (le) (rate(a_bucket{x="1"}[5m])) / max(b) > 0 and topk(3, c)')
    assert used.metrics == {"a_bucket", "b", "c"}
    assert used.labels == {"le", "x"}


def test_alerts_say_what_and_how_bad_and_use_labels_that_are_left() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == 6
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        text = " ".join(rule["annotations"].values())
        used = Used(rule["expr"])
        kept = set(re.findall(r"\$labels\.(\w+)", text))
        if "max(" in rule["expr"] or "sum(" in rule["expr"]:  # nothing is left after those
            assert not kept
        elif " by " in rule["expr"]:
            assert kept <= used.labels


def test_the_dashboard_fits_its_datasource_and_has_no_panel_twice() -> None:
    (source,) = load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    panels = BOARD["panels"]
    for panel in panels:
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": source["type"], "uid": source["uid"]}
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie on each other"
    assert max(x for x, _ in cells) < 24
    (provider,) = load("grafana/provisioning/dashboards/penstock.yaml")["providers"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in COMPOSE["services"]["grafana"]["volumes"]


def test_prometheus_scrapes_every_server_and_loads_the_alerts() -> None:
    prometheus = load("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    servers = {f"{name}:6790" for name in COMPOSE["services"] if name.startswith("server")}
    assert set(job["static_configs"][0]["targets"]) == servers
    assert job["job_name"] == "penstock"
    for file in prometheus["rule_files"]:
        assert f"./{file}:/etc/prometheus/{file}:ro" in COMPOSE["services"]["prometheus"]["volumes"]


def test_what_compose_mounts_and_builds_from_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "opened to other machines"
    build = COMPOSE["services"]["server1"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_every_variable_of_compose_is_in_the_example_and_none_has_a_value() -> None:
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8")))
    lines = (DEPLOY / ".env.example").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if line and not line.startswith("#")} == {f"{name}=" for name in used}


def test_servers_of_compose_and_image_use_settings_that_exist() -> None:
    known = {variable for setting in config.SETTINGS.values() for variable in setting.env}
    block = DOCKERFILE.split("\nENV PATH=")[1].split("\nUSER ")[0]
    image = dict(re.findall(r"((?:PENSTOCK|LOG)_\w+)=(\S+)", block))
    server = COMPOSE["services"]["server1"]["environment"]
    filled = {name: re.sub(r"\$\{\w+(:\?[^}]*)?\}", "s3cret", text) for name, text in server.items()}
    assert set(image) | set(server) <= known
    loaded = config.load({}, image | filled, None)
    assert loaded.stores == tuple(f"postgresql://penstock:s3cret@shard{number}/penstock" for number in (0, 1))
    assert str(loaded.http) == "0.0.0.0:6790"
    with pytest.raises(ServerError, match="AUTH_TOKENS"):
        config.load({}, image, None)


def test_the_image_is_pinned_and_unprivileged() -> None:
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(stages) == 2
    assert len(set(stages)) == 1, "the virtual environment of one stage runs on the Python of the other"
    installs = re.findall(r"pip (?:--python \S+ )?install (.*)", DOCKERFILE)
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-deps dist/" in line for line in installs)
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in ("pyproject.toml", "README.md", "LICENSE", "src", "requirements/*.lock"):
        assert f"!{source}" in ignored


def test_every_image_has_a_version_and_can_be_pinned_by_its_digest() -> None:
    (argument,) = re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE)
    compose = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    defaults = [argument, *re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", compose)]
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == [f"${{{argument[0]}}}"] * 2
    written = {service["image"] for service in COMPOSE["services"].values()} - {"penstock:0.1.0"}
    assert written == {f"${{{name}:-{image}}}" for name, image in defaults if name != argument[0]}
    assert len({name for name, _ in defaults}) == len(set(defaults)), "the Dockerfile and compose.yaml agree"
    for name, image in [*defaults, ("the server's own", "penstock:0.1.0")]:
        assert re.search(r"@sha256:[0-9a-f]{64}$|:(?!latest)[\w.-]*\d[\w.-]*$", image), f"{name}: {image} is any version"


def test_the_healthcheck_of_the_image_tells_alive_from_dead(server: ServerProcess) -> None:
    found = re.search(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    python, *rest = json.loads(found[1])
    assert python == "python"
    for port, code in ((server.port, 0), (free_port(), 1)):
        command = [sys.executable, *(word.replace("6790", str(port)) for word in rest)]
        assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == code
