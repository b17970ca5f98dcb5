"""The page on the architecture names the files that a push passes. This test sends pushes to a real server and compares."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.docs.generate import ROOT
from tests.support.server import ServerProcess

PAGE = ROOT / "docs" / "architecture.md"
PUSHES = 20


def section() -> str:
    """Return the section of the page, without its title."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition("## The files that a push passes\n")[2].partition("\n## ")[0]


def named_files(pattern: str) -> list[str]:
    """Return the files in the table that match a pattern, sorted."""
    return sorted(name for row in section().splitlines() if row.startswith("|") for name in re.findall(pattern, row))


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What ``tests.support.traced_server`` records of some pushes. The first pushes, which make the queue, are left out."""
    directory = tmp_path_factory.mktemp("traced")
    trace = directory / "trace"
    launcher = ("-m", "tests.support.traced_server")
    with (
        ServerProcess(directory / "data", env={"TRACE_FILE": str(trace)}, launcher=launcher) as server,
        server.client() as client,
    ):
        for number in range(PUSHES + 5):
            assert client.post("/queues/traced/jobs", json={"data": {"number": number}}).json()["ok"]
    recorded = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()][5:]
    assert len(recorded) == PUSHES
    return recorded


def test_the_table_has_the_files_that_a_push_passes(pushes: list[dict[str, Any]]) -> None:
    always = set(pushes[0]["run"]).intersection(*(each["run"] for each in pushes))
    assert named_files(r"`([\w/]+\.py)`") == sorted(always)


def test_the_files_in_bold_are_on_the_call_path(pushes: list[dict[str, Any]]) -> None:
    path = pushes[0]["path"]
    assert list(path) == ["submit", "write", "sync"]
    assert all(each["path"] == path for each in pushes)
    files = {name for names in path.values() for name in names}
    assert named_files(r"\*\*`([\w/]+\.py)`\*\*") == sorted(files)
    assert f"A reader follows these {len(files)} files from the door to the disk" in section()
