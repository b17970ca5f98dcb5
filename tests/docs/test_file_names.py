"""The pages that guide readers through the source name files that exist, and packages with the imports that they have."""

from __future__ import annotations

import re

import grimp
import pytest

from tests.docs.generate import ROOT


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    places = [ROOT / name for name in ("src", "tests", "bench", "deploy")]
    files = [f"/{path.relative_to(ROOT).as_posix()}" for place in places for path in place.rglob("*.py")]
    names = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    assert names
    assert not [name for name in sorted(names) if not any(each.endswith(f"/{name}") for each in files)]


def test_the_table_of_packages_has_their_imports() -> None:
    graph = grimp.build_graph("penstock")
    packages = {name.removeprefix("penstock.") for name in graph.find_children("penstock")} - {"__main__", "masking"}
    real = {
        each: {
            imported.split(".")[1]
            for module in (f"penstock.{each}", *graph.find_descendants(f"penstock.{each}"))
            for imported in graph.find_modules_directly_imported_by(module)
            if "." in imported
        }
        - {each}
        for each in packages
    }
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| Package | What it is | Imports |\n|---|---|---|\n")
    rows = re.findall(r"\| `(\w+)/?` \|.*\| ([^|]*) \|", table.partition("\n\n")[0])
    written = {
        name: {each for each in re.findall(r"`(\w+)`", last) if each in packages | {"masking"}} for name, last in rows
    }
    assert written == real
