"""The glossary names classes that exist, and has one entry for each word."""

from __future__ import annotations

import re

from tests.docs.generate import ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def test_classes_that_the_glossary_names_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"`([A-Z][a-z]\w+)`", TEXT))
    assert named
    assert not [name for name in sorted(named) if not re.search(rf"^class {name}\b", source, re.MULTILINE)]


def test_each_word_has_one_entry() -> None:
    words = [
        word for row in re.findall(r"^\| (\*\*.*?) \|", TEXT, re.MULTILINE) for word in re.findall(r"\*\*(.+?)\*\*", row)
    ]
    assert len(words) == len(set(words))
