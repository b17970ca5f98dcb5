"""Modules that import each other in a circle, imports for types included: such modules can only be read together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grimp
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Imports that may close a cycle, each with its reason: (module, what it imports), names relative to ``penstock``.
EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("client.options", "client.handle"): "options make handles, and a handle calls the client that its options name",
    ("doors.jobs.command_call", "doors.jobs.session"): "a command may change the session that runs it",
    ("doors.jobs.queue_events", "doors.jobs.session"): "a command may change the session that runs it",
    ("doors.net.raw_sockets", "doors.net.incoming_messages"): "sockets hold what has arrived of their messages",
    ("doors.ops.metrics", "doors.ops.health"): "metrics and health show some of the same figures",
    ("doors.resp.connection_commands", "doors.resp.session"): "a command may change the session that runs it",
    ("doors.resp.subscription", "doors.resp.session"): "a command may change the session that runs it",
    ("spark.direct", "spark.journal"): "the journal is read through the server or directly, in the same form",
    ("store.postgres.follower", "store.postgres.store"): "a follower is a part of its store",
    ("store.postgres.transaction", "store.postgres.store"): "a transaction is a part of its store",
    ("store.postgres.transaction_base", "store.postgres.catalog"): "a transaction changes the catalog of its store",
    ("store.postgres.transaction_base", "store.postgres.job_groups"): "the base makes the part for groups of jobs",
    ("store.postgres.transaction_base", "store.postgres.store"): "a transaction is a part of its store",
    ("store.sqlite.transaction", "store.sqlite.store"): "a transaction is a part of its store",
    ("store.sqlite.transaction_base", "store.sqlite.job_groups"): "the base makes the part for groups of jobs",
    ("store.sqlite.transaction_base", "store.sqlite.store"): "a transaction is a part of its store",
}


@pytest.fixture(scope="module")
def imports() -> dict[str, list[str]]:
    """The modules that each module imports, for types too."""
    graph = grimp.build_graph("penstock", exclude_type_checking_imports=False, cache_dir=None)
    return {module: sorted(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}


def cycles(imports: Mapping[str, list[str]]) -> Iterator[frozenset[str]]:
    """The groups of modules of which each imports all others, in steps (Kosaraju)."""
    finished: list[str] = []
    seen: set[str] = set()
    for start in imports:
        _visit(imports, start, seen, finished)
    imported_by: dict[str, list[str]] = {module: [] for module in imports}
    for module, others in imports.items():
        for other in others:
            imported_by[other].append(module)
    seen = set()
    for module in reversed(finished):
        group: list[str] = []
        _visit(imported_by, module, seen, group)
        if len(group) > 1:
            yield frozenset(each.removeprefix("penstock.") for each in group)


def _visit(edges: Mapping[str, list[str]], start: str, seen: set[str], finished: list[str]) -> None:
    """Add what can be reached from a module and is not seen yet to ``finished``, deepest first."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(edges[start]))]
    while stack:
        module, others = stack[-1]
        following = next((other for other in others if other not in seen), None)
        if following is None:
            finished.append(module)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(edges[following])))


def without_exceptions(imports: Mapping[str, list[str]]) -> dict[str, list[str]]:
    allowed = {(f"penstock.{module}", f"penstock.{other}") for module, other in EXCEPTIONS}
    return {module: [other for other in others if (module, other) not in allowed] for module, others in imports.items()}


def test_modules_form_no_cycle(imports: dict[str, list[str]]) -> None:
    assert [sorted(cycle) for cycle in cycles(without_exceptions(imports))] == []


def test_the_engine_needs_no_exception() -> None:
    assert not [pair for pair in EXCEPTIONS if any(module.startswith("engine") for module in pair)]


def test_each_exception_is_needed(imports: dict[str, list[str]]) -> None:
    groups = list(cycles(imports))
    for module, other in EXCEPTIONS:
        assert f"penstock.{other}" in imports[f"penstock.{module}"], f"{module} does not import {other}"
        assert any({module, other} <= group for group in groups), f"{module} and {other} are in no cycle"


def test_a_cycle_is_found() -> None:
    imports = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": [], "f": ["a", "f"]}
    assert list(cycles(imports)) == [frozenset({"a", "b", "c"})]
