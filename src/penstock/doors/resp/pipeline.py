"""PULL, DONE and FAIL: consecutive commands are given to the engine together if the outcome is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import ServerError
from penstock.doors.jobs.base import in_words
from penstock.doors.jobs.job_handlers import NOT_ACTIVE
from penstock.doors.jobs.mapping import job_ref, token_value
from penstock.doors.resp import arguments
from penstock.doors.resp.engine_calls import ask
from penstock.doors.resp.pulls import Pulls
from penstock.doors.resp.replies import OK, code_of, error
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.core.queue import QueueKey
    from penstock.doors.resp.pulls import Pull, PulledJobs
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import ItemOutcome


class SettleCommand(NamedTuple):
    """The arguments of a DONE or FAIL."""

    text: str  #: the id, as the client wrote it
    hold: LeaseRef
    failed: bool = False
    error: str | None = None  #: the error text of a FAIL

    @property
    def fenced(self) -> bool:
        """Return whether it has a token, and so applies to one delivery only."""
        return self.hold.token is not None


def new_settle_command(command: Sequence[bytes], *, failed: bool) -> SettleCommand:
    """Parse a DONE or FAIL. An empty token means no token. Raises InvalidInput."""
    name = arguments.text(command[1], "id")
    token = arguments.text(command[2], "token") if len(command) > 2 and command[2] else None
    why = arguments.text(command[3], "error", limits.error_chars_max) if len(command) > 3 and command[3] else None
    return SettleCommand(name, LeaseRef(job_ref(name), token_value(token)), failed, why)


class Pipeline:
    """Pulls and settlements that are answered together."""

    def __init__(self, engine: EngineApi, namespace: str, slots: list[bytes], held: PulledJobs) -> None:
        self._engine = engine
        self._namespace = namespace
        self._slots = slots  #: the replies, in order
        self._held = held
        self._pulls: dict[QueueKey, Pulls] = {}
        self._jobs = 0  #: the number of jobs that the pulls request
        self._settlings: list[tuple[SettleCommand, int]] = []

    def takes_pull(self, pull: Pull) -> bool:
        """Return whether a pull can be executed together with these commands."""
        fenced = not self._settlings or self._settlings[0][0].fenced
        return fenced and (self._jobs + pull.jobs <= limits.claim_jobs_max or not self._jobs)

    def takes_settling(self, settling: SettleCommand) -> bool:
        """Return whether a settlement can be executed together with these commands."""
        if self._pulls and not settling.fenced:
            return False
        first = self._settlings[0][0] if self._settlings else settling
        return (first.failed, first.fenced) == (settling.failed, settling.fenced)

    def add_pull(self, pull: Pull) -> None:
        """Add a pull; its reply goes to the end of the slots."""
        pulls = self._pulls.get(pull.queue)
        if pulls is None:
            pulls = self._pulls[pull.queue] = Pulls(self._engine, pull.queue, self._held)
        pulls.add(pull, len(self._slots))
        self._jobs += pull.jobs
        self._slots.append(b"")

    def add_settling(self, settling: SettleCommand) -> None:
        """Add a settlement; its reply goes to the end of the slots."""
        self._settlings.append((settling, len(self._slots)))
        self._slots.append(b"")

    async def finish(self) -> None:
        """Execute the commands, and fill the slots."""
        settled = [(part, self._settle(part)) for part in self._parts()]
        for pulls in self._pulls.values():
            pulls.begin()
        for part, answer in settled:
            try:
                outcomes: Sequence[ItemOutcome] = await answer
            except ServerError as problem:
                outcomes = [problem] * len(part)
            for (settling, place), outcome in zip(part, outcomes, strict=True):
                self._slots[place] = self._said(settling, outcome)
        for pulls in self._pulls.values():
            await pulls.finish(self._slots)

    def _parts(self) -> list[list[tuple[SettleCommand, int]]]:
        """Group the settlements into engine commands: all together or, for failures, those with the same error."""
        parts: list[list[tuple[SettleCommand, int]]] = []
        for each in self._settlings:
            if not parts or parts[-1][0][0].error != each[0].error:
                parts.append([])
            parts[-1].append(each)
        return parts

    def _settle(self, part: Sequence[tuple[SettleCommand, int]]) -> asyncio.Future[list[ItemOutcome]]:
        first, holds = part[0][0], [settling.hold for settling, _ in part]
        if first.failed:
            return ask(self._engine, Nack(self._namespace, holds, first.error))
        return ask(self._engine, Ack(self._namespace, holds, [None] * len(holds)))

    def _said(self, settling: SettleCommand, outcome: ItemOutcome) -> bytes:
        if outcome is None:
            self._held.drop(settling.hold.ref)
            return OK
        return error(f"{code_of(outcome)} {in_words(outcome, settling.text, NOT_ACTIVE)}")
