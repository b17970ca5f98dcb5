"""The code blocks of all pages, and which test runs which of them.

A test says so with ``@runs("docs/flows.md", "sh")`` (all blocks of that language on that page) or ``"sh 2"`` (the second one),
and gets their text as ``blocks``. ``test_blocks.py`` fails for a block that no test runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from tests.docs.generate import ROOT, documents

if TYPE_CHECKING:
    from collections.abc import Callable

Test = TypeVar("Test", bound="Callable[..., Any]")

#: Blocks that cannot run: diagrams, what a program prints, and text.
SHOWN = frozenset({"text", "mermaid"})
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block. ``number`` counts the blocks of its language on its page, from 1."""

    page: str
    kind: str
    number: int
    line: int
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.kind} {self.number})"


#: Which test runs a block, by page, language and number.
RUN_BY: dict[tuple[str, str, int], str] = {}


def pages() -> list[str]:
    """Return all pages, by their path."""
    return [str(path.relative_to(ROOT)) for path in documents()]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    counts: dict[str, int] = {}
    found = []
    for match in _BLOCK.finditer(text):
        kind = match[2].strip()
        counts[kind] = counts.get(kind, 0) + 1
        found.append(Block(page, kind, counts[kind], text.count("\n", 0, match.start()) + 1, match[3]))
    return found


def runs(page: str, *wanted: str) -> Callable[[Test], Test]:
    """Give blocks of a page to a test, in the order of the page, and note that it runs them."""
    asked = {tuple(each.split()) for each in wanted}
    found = [each for each in blocks_of(page) if (each.kind,) in asked or (each.kind, str(each.number)) in asked]
    met = {(each.kind,) for each in found} | {(each.kind, str(each.number)) for each in found}
    if not asked <= met:
        raise ValueError(f"{page} has no {', '.join(' '.join(each) for each in asked - met)}")

    def decorate(test: Test) -> Test:
        for each in found:
            RUN_BY[each.page, each.kind, each.number] = f"{test.__module__}::{test.__name__}"
        given: Test = pytest.mark.parametrize("blocks", [[each.body for each in found]], ids=[page])(test)
        return given

    return decorate
