"""The page on the architecture names the files that a push passes. This test sends pushes to a real server and compares."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.docs.generate import ROOT
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "architecture.md"
PUSHES = 20


def named_files() -> list[str]:
    """Return the files that the page names, in their order."""
    section = PAGE.read_text(encoding="utf-8").partition("## The files that a push passes\n")[2].partition("\n## ")[0]
    return [name for row in section.splitlines() if row.startswith("|") for name in re.findall(r"`([\w/]+\.py)`", row)]


def test_the_page_names_the_files_that_a_push_passes(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    launcher = ("-m", "tests.support.traced_server")
    with (
        ServerProcess(tmp_path / "data", env={"TRACE_FILE": str(trace)}, launcher=launcher) as server,
        server.client() as client,
    ):
        for number in range(PUSHES + 5):
            assert client.post("/queues/traced/jobs", json={"data": {"number": number}}).json()["ok"]
    passed = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()][
        5:
    ]  # the first pushes make the queue
    always = [name for name in passed[0] if all(name in each for each in passed)]
    assert len(passed) == PUSHES
    assert sorted(named_files()) == sorted(always)
