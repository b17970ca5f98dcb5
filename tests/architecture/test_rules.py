"""Rules of the code that a linter does not know: one clock, one place that changes states, no sleeping in tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
MODULES = sorted(SOURCE.rglob("*.py"))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


#: Modules that convert dates and never read the clock.
CALCULATE_WITH_DATES = {"client/_durations.py", "core/schedule.py", "core/timestamps.py", "doors/jobs/jsonable.py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_clock_asks_for_the_time(path: Path) -> None:
    if path.relative_to(SOURCE).as_posix() in ("core/clock.py", "client/_clock.py", "server/listeners.py"):
        pytest.skip("the clocks themselves, and the listeners, which wait for their own socket")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", "") or ""}
            forbidden = {"time", "datetime", "random"}
            if path.relative_to(SOURCE).as_posix() in CALCULATE_WITH_DATES:
                forbidden -= {"datetime"}
            assert not names & forbidden, f"line {node.lineno} imports {names}"
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            assert not called.endswith((".now", ".utcnow", ".today")), called
            assert not called.endswith((".time", "asyncio.sleep", ".call_later", "wait_for", "asyncio.timeout")), called


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_lifecycle_changes_a_state(path: Path) -> None:
    if path == SOURCE / "core" / "lifecycle.py":
        pytest.skip("the lifecycle itself")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        for target in targets:
            written = dotted(target)
            moved = ("state", "position", "run_at", "attempts", "stalls", "token", "lease_until", "deadline", "finished_at")
            assert not written.endswith(tuple(f"job.{name}" for name in moved)), f"line {target.lineno} changes {written}"


def test_no_module_writes_sql_outside_of_the_stores() -> None:
    for path in MODULES:
        if "store" not in path.parts:
            text = path.read_text(encoding="utf-8").lower()
            assert "select " not in text or " from jobs" not in text, path
            assert "insert into" not in text, path


def test_tests_do_not_sleep() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and dotted(node.func) in ("time.sleep", "asyncio.sleep"):
                argument = node.args[0]
                allowed = isinstance(argument, ast.Constant) and argument.value in (0, 0.01)
                assert allowed, f"{path.relative_to(ROOT)}:{node.lineno} sleeps"


def test_tests_do_not_spin() -> None:
    """Whoever asks again and again lets others work in between: there are more of them than processors."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.While):
                idle = all(isinstance(each, ast.Pass) for each in node.body)
                assert not idle, f"{path.relative_to(ROOT)}:{node.lineno} spins: time.sleep(0.01)"


def test_nothing_deserialises_code() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        for word in ("import pickle", "import marshal", r"yaml\.load\(", r"eval\(", r"exec\("):
            assert re.search(rf"\b{word}", text) is None, f"{path} uses {word}"


def test_a_server_on_a_file_starts_without_what_only_others_need() -> None:
    code = "import sys, penstock.cli.main, penstock.cli.serve; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"asyncpg", "redis", "jwt", "httpx2", "pyarrow", "pyspark"}


def test_every_command_of_the_command_line_is_found_by_its_name() -> None:
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
    assert main.get_command(context, "api") is None, "a module, but no command"


def test_every_class_has_a_name_of_its_own() -> None:
    """Who searches for a name finds one class. The synchronous client is made from the asynchronous one, name by name."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        module = path.relative_to(SOURCE).as_posix()
        if not module.startswith("client/_sync/"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
