"""Runs several engine commands at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import ServerError

if TYPE_CHECKING:
    from penstock.engine.api import EngineApi
    from penstock.engine.command import Command

T = TypeVar("T")


def ask(engine: EngineApi, command: Command[T]) -> asyncio.Future[T]:
    """Run a command. An error at submission is returned in the future, so that callers can submit others first."""
    try:
        return engine.run(command)
    except ServerError as problem:
        refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        refused.set_exception(problem)
        return refused
