"""Every block of code on every page is run by a test."""

from __future__ import annotations

import importlib

import pytest

from tests.docs.blocks import RUN_BY, SHOWN, Block, blocks_of, pages
from tests.docs.generate import ROOT

#: Tests outside of this directory that run blocks.
ELSEWHERE = tuple(f"tests.spark.{name}" for name in ("test_cluster", "test_direct", "test_docs", "test_pages"))


@pytest.fixture(scope="module", autouse=True)
def every_test_has_said_what_it_runs() -> None:
    here = [f"tests.docs.{path.stem}" for path in (ROOT / "tests" / "docs").glob("test_*.py")]
    for name in (*here, *ELSEWHERE):
        importlib.import_module(name)


def not_run(page: str) -> list[Block]:
    return [each for each in blocks_of(page) if each.kind not in SHOWN and (each.page, each.kind, each.number) not in RUN_BY]


@pytest.mark.parametrize("page", sorted(pages()))
def test_every_block_says_its_language_and_is_run(page: str) -> None:
    assert not [str(each) for each in blocks_of(page) if not each.kind], (
        "say sh, python, json …, or text for what cannot run"
    )
    missing = [str(each) for each in not_run(page)]
    assert not missing, "give it a test with @runs: see tests/docs/blocks.py"
