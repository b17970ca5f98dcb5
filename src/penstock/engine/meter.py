"""Asking somebody before every push, without costing anything where nobody is to be asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.engine.produce import Push, PushAcross

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.engine.command import Command

    Run = Callable[[Command[Any]], asyncio.Future[Any]]
    Admit = Callable[[Push | PushAcross], Awaitable[None] | None]


def metered(run: Run, admit: Admit) -> Run:
    """Return a way of running commands that asks ``admit`` before a push. It raises why not, now or when it is awaited."""

    async def when_admitted(answer: Awaitable[None], push: Command[Any]) -> Any:
        await answer
        return await run(push)

    def ask(command: Command[Any]) -> asyncio.Future[Any]:
        answer = admit(command) if isinstance(command, Push | PushAcross) else None
        return run(command) if answer is None else asyncio.ensure_future(when_admitted(answer, command))

    return ask
