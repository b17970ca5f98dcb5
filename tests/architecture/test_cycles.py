"""Modules that import each other in a circle, imports for types included: such modules can only be read together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grimp
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Cycles that stay, each with its reason. Names are relative to ``penstock``.
EXCEPTIONS: Final[Mapping[frozenset[str], str]] = {
    frozenset({"store.sqlite.store", "store.sqlite.transaction"}): "a transaction is a part of its store",
    frozenset(
        {"store.postgres.follower", "store.postgres.store", "store.postgres.transaction"}
    ): "a transaction and a follower are parts of their store",
    frozenset(
        {"doors.resp.connection_commands", "doors.resp.session", "doors.resp.subscription"}
    ): "commands change the session that runs them",
    frozenset({"doors.jobs.command_call", "doors.jobs.queue_events", "doors.jobs.session"}): (
        "commands change the session that runs them"
    ),
    frozenset({"doors.net.connections", "doors.net.incoming_messages", "doors.net.raw_sockets"}): (
        "they share the table of the connections"
    ),
    frozenset({"doors.ops.health", "doors.ops.metrics"}): "both show what the other measures",
    frozenset(
        {
            "client._async.client", "client._async.crons", "client._async.jobs", "client._backend", "client._sync.client",
            "client._sync.crons", "client._sync.jobs", "client._task_call", "client.handle", "client.options",
        }
    ): "a client makes handles, and handles call their client; the generated sync client mirrors that",
    frozenset({"spark.direct", "spark.journal"}): "the journal is read through the server or directly, by configuration",
}  # fmt: skip


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


def test_the_modules_of_the_engine_form_no_cycle(imports: dict[str, list[str]]) -> None:
    assert [sorted(cycle) for cycle in cycles(imports) if any(each.startswith("engine") for each in cycle)] == []


def test_other_cycles_are_listed_with_their_reason(imports: dict[str, list[str]]) -> None:
    assert set(cycles(imports)) == set(EXCEPTIONS)


def test_a_cycle_is_found() -> None:
    imports = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": [], "f": ["a", "f"]}
    assert list(cycles(imports)) == [frozenset({"a", "b", "c"})]
