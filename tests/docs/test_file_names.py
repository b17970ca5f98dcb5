"""The pages that guide readers through the source name files that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.generate import ROOT


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    places = [ROOT / name for name in ("src", "tests", "bench", "deploy")]
    files = [f"/{path.relative_to(ROOT).as_posix()}" for place in places for path in place.rglob("*.py")]
    names = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    assert names
    assert not [name for name in sorted(names) if not any(each.endswith(f"/{name}") for each in files)]
