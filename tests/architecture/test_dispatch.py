"""Every command of the engine is applied, and counts by what it costs.

One that ``dispatch`` does not know would never be answered.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

from penstock import engine
from penstock.engine.command import Command, NamespaceCommand, QueueCommand
from penstock.engine.dispatch import BEFORE_SWEEP
from penstock.engine.jobs.claim import Claim
from penstock.engine.prefetch.commands import Prefetch


def subclasses(base: type) -> set[type]:
    children: list[type] = base.__subclasses__()
    return {each for child in children for each in (child, *subclasses(child))}


def commands() -> set[type[Command[object]]]:
    """Return all commands, without their bases."""
    for module in pkgutil.walk_packages(engine.__path__, "penstock.engine."):
        importlib.import_module(module.name)
    return {each for each in subclasses(Command) if each.__module__.startswith("penstock.") and not each.__subclasses__()}


def arguments(command: type[Command[object]]) -> dict[str, str]:
    return {name: str(each.annotation) for name, each in inspect.signature(command).parameters.items()}


def test_each_command_is_applied() -> None:
    last = commands()
    assert {QueueCommand, NamespaceCommand, Command}.isdisjoint(last)
    unknown = last - set(BEFORE_SWEEP) - {Claim, Prefetch}
    assert {each.__name__ for each in unknown} == set()


#: Commands whose lists are short: a handful of names that are written as one value.
SHORT = {"RecordEpoch", "RecordGroupUse", "RecordPublished"}


def test_a_command_with_a_list_counts_what_is_in_it() -> None:
    """A command that weighs less than it costs makes long transactions, for which all namespaces wait."""
    several = re.compile(r"Sequence|Mapping|[Ss]et\[|list\[|dict\[|bytes|message")
    heavy = {
        each.__name__
        for each in commands()
        if each.weight is Command.weight and any(several.search(f"{name} {kind}") for name, kind in arguments(each).items())
    }
    assert heavy - SHORT == {"CancelChildren"}  # how many children there are is known when it is applied


def test_a_command_for_a_namespace_uses_the_share_of_that_namespace() -> None:
    about = re.compile(r"\b(namespace|QueueKey|CronKey)\b")
    unshared = {
        each.__name__
        for each in commands()
        if each.tenant is Command.tenant and any(about.search(f"{name} {kind}") for name, kind in arguments(each).items())
    }
    moves = {each.__name__ for each in commands() if each.__module__ == "penstock.engine.sharding.queue_move"}
    assert unshared - moves == set()
