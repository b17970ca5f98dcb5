"""Asking somebody before every push, without costing anything where nobody is to be asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.core.errors import OutcomeUnknown, PartlyDone, PenstockError
from penstock.engine.jobs.push import Push, PushAcross

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock.engine.command import Command

    Run = Callable[[Command[Any]], asyncio.Future[Any]]
    Admit = Callable[[Push | PushAcross], "Admission | None"]


class QuotaCheck(Protocol):
    """Counts what namespaces are given. Without a quota, a namespace may be given anything."""

    async def admit(self, counts: Mapping[str, int]) -> None:
        """Count jobs for namespaces, all of them or none. Raises why not."""

    def give_back(self, counts: Mapping[str, int]) -> None:
        """Have jobs not counted that were admitted, and are not stored."""

    async def grant(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Count as many jobs for each namespace as there is room for; return how many, of those that have a quota."""

    async def charge(self, counts: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
        """Count jobs that have to be made whether there is room or not.

        Returns, by namespace, how many ms to put off those that there was no room for: they come at the pace of the quota.
        """


class Admission(NamedTuple):
    """What has to be asked before a push."""

    answer: Awaitable[None]  #: raises why not
    undo: Callable[[], None]  #: to be called if the push was admitted, and then nothing was stored


def metered(run: Run, admit: Admit) -> Run:
    """Return a way of running commands that asks ``admit`` before a push."""

    async def when_admitted(admission: Admission, push: Command[Any]) -> Any:
        await admission.answer
        try:
            return await run(push)
        except (OutcomeUnknown, PartlyDone):  # some of it may be stored
            raise
        except PenstockError:
            admission.undo()
            raise

    def ask(command: Command[Any]) -> asyncio.Future[Any]:
        admission = admit(command) if isinstance(command, Push | PushAcross) else None
        return run(command) if admission is None else asyncio.ensure_future(when_admitted(admission, command))

    return ask
