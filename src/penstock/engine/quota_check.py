"""The quota check: counts each push for its namespace before it is done. Optional; see ``submit.py``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.core.errors import OutcomeUnknown, PartlyDone, PenstockError
from penstock.engine.jobs.push import Push, PushAcross

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.engine.command import Command
    from penstock.engine.submit import Submit

T = TypeVar("T")


class QuotaCheck(Protocol):
    """Counts the jobs that each namespace is given. A namespace without a quota may be given any number."""

    def of(self, namespace: str) -> int | None:
        """Return the quota of a namespace, in jobs per minute. None: it has none."""

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


def metered(following: Submit, quotas: QuotaCheck) -> Submit:
    """Return what counts a push before it is submitted, and gives the quota back if nothing of the push was stored."""

    async def push_when_admitted(push: Command[Any], counts: Mapping[str, int]) -> Any:
        await quotas.admit(counts)
        try:
            return await following(push)
        except (OutcomeUnknown, PartlyDone):  # some of it may be stored
            raise
        except PenstockError:
            quotas.give_back(counts)
            raise

    def submit(command: Command[T]) -> asyncio.Future[T]:
        if isinstance(command, Push | PushAcross) and (counts := _counts(command, quotas)):
            return asyncio.ensure_future(push_when_admitted(command, counts))
        return following(command)

    return submit


def _counts(push: Push | PushAcross, quotas: QuotaCheck) -> dict[str, int]:
    """Return the number of jobs in a push for each namespace that has a quota."""
    counts: dict[str, int] = {}
    for queue, jobs in ((push.queue, push.jobs),) if isinstance(push, Push) else push.parts:
        if quotas.of(queue.namespace) is not None:
            counts[queue.namespace] = counts.get(queue.namespace, 0) + len(jobs)
    return counts
