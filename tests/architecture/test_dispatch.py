"""Every command of the engine is applied: one that ``dispatch`` does not know would never be answered."""

from __future__ import annotations

import importlib
import pkgutil

from penstock import engine
from penstock.engine.command import Command, QueueCommand
from penstock.engine.dispatch import BEFORE_SWEEP
from penstock.engine.jobs.claim import Claim
from penstock.engine.prefetch.commands import Prefetch


def subclasses(base: type) -> set[type]:
    children: list[type] = base.__subclasses__()
    return {each for child in children for each in (child, *subclasses(child))}


def test_each_command_is_applied() -> None:
    for module in pkgutil.walk_packages(engine.__path__, "penstock.engine."):
        importlib.import_module(module.name)
    last = {each for each in subclasses(Command) if each.__module__.startswith("penstock.") and not each.__subclasses__()}
    assert {QueueCommand, Command}.isdisjoint(last)
    unknown = last - set(BEFORE_SWEEP) - {Claim, Prefetch}
    assert {each.__name__ for each in unknown} == set()
