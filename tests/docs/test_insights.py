"""The page on insights: a server and a report on a lake that is there, without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from tests.docs.blocks import runs
from tests.docs.shapes import fits
from tests.docs.shell import Terminal, check_install, commands, own_ports, put
from tests.support.lakes import Business

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = "/data/lake"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("insights") / "lake"
    Business(minutes=120).write(place)
    return place


@runs("docs/insights.md", "sh", "json", "yaml")
def test_a_server_and_a_report(blocks: list[str], lake: Path, tmp_path: Path) -> None:
    start, ask, answer, objectives = blocks
    install, serve, report = commands(start)
    check_install(install)
    (lake / "objectives.yaml").write_text(objectives, encoding="utf-8")
    ports = own_ports()
    port = int(ports["HTTP_PORT"])
    with Terminal(tmp_path, env=ports).running(put(serve, {SHOWN: str(lake)})):
        told, shown = json.loads(Terminal(tmp_path / "other", port).run(ask)), json.loads(answer)
        assert fits(told, shown)
        assert fits(told["rows"][0], shown["rows"][0])
        assert {row["queue"] for row in told["rows"]} == {"mail"}
        found = httpx2.get(f"http://127.0.0.1:{port}/insights/slo").json()["rows"]
        assert {row["objective"] for row in found} == {each["name"] for each in yaml.safe_load(objectives)["objectives"]}
    Terminal(tmp_path).run(put(report, {SHOWN: str(lake)}))
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@runs("docs/insights.md", "python")
def test_in_python(blocks: list[str], lake: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(put(blocks[0], {SHOWN: str(lake)}), "insights.md", "exec"), names)
    assert names["table"].num_rows > 0
    assert {"p50", "p99"} <= set(names["table"].column_names)
