"""Asking the engine for several things at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.engine.api import EngineApi
    from penstock.engine.command import Command

T = TypeVar("T")


def ask(engine: EngineApi, command: Command[T]) -> asyncio.Future[T]:
    """Run a command. What keeps it from being queued is its answer too, so that others can be asked for before that is seen."""
    try:
        return engine.run(command)
    except PenstockError as problem:
        refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        refused.set_exception(problem)
        return refused
