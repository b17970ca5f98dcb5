"""The page about security: every test, limit and setting that it names exists."""

from __future__ import annotations

import ast
import re

from penstock import config
from penstock.core import limits
from tests.docs.generate import ROOT, SECURITY_LIMITS

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{file}::{name}"


def test_every_risk_has_a_row_with_a_test() -> None:
    rows = re.findall(r"^\| API(\d+) .*$", PAGE, re.MULTILINE)
    assert list(map(int, rows)) == list(range(1, 11))
    for line in re.findall(r"^\| API\d+ .*$", PAGE, re.MULTILINE):
        assert "::test_" in line, line[:40]


def test_every_limit_and_setting_that_is_named_exists() -> None:
    listed = {name for names in SECURITY_LIMITS.values() for name in names}
    assert all(hasattr(limits, name) for name in listed)
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", PAGE))
    assert words <= listed | set(config.SETTINGS), words - listed - set(config.SETTINGS)


def test_every_listener_has_a_row() -> None:
    listeners = [name for name in config.SETTINGS if name in {"http", "tcp", "resp", "resp_plain", "metrics"}]
    listeners += ["batches", "topics", "messages"]
    boundaries = PAGE.split("### Trust boundaries")[1].split("\n## ")[0]
    assert all(f"`{name}`" in boundaries for name in listeners)
