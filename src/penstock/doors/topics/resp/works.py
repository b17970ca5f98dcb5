"""PULL, DONE and FAIL: what workers ask and say, given to the engine together where that makes no difference."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.core import limits
from penstock.core.errors import PenstockError
from penstock.core.ids import to_uuid
from penstock.doors.jobs.door import in_words
from penstock.doors.jobs.jobs import NOT_ACTIVE
from penstock.doors.jobs.views import job_name, job_ref, token_value
from penstock.doors.opaque import unwrap
from penstock.doors.topics.resp import words
from penstock.doors.topics.resp.replies import OK, array, bulk, code_of, error, refusal
from penstock.engine.claim import Claim, abandon
from penstock.engine.settle import Ack, Fail, Hold, Release

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.engine.command import Command
    from penstock.engine.fleet import AnyEngine
    from penstock.engine.settle import ItemOutcome, Settlement

T = TypeVar("T")

_OPTIONS = (b"COUNT", b"WAIT")
_FLAGS = (b"DETACH",)


class Pull(NamedTuple):
    """What a PULL asks for. ``detached``: the jobs stay the worker's when its connection ends."""

    claim: Claim
    detached: bool = False


def new_pull(key: QueueKey, command: Sequence[bytes]) -> Pull:
    """Read a PULL. Raises InvalidInput."""
    if len(command) == 2:
        return Pull(Claim(key))
    given = words.options(command[2:], _OPTIONS, _FLAGS)
    claim = Claim(
        key,
        words.whole(given.get(b"COUNT", b"1"), "COUNT", 1, limits.claim_jobs_max),
        wait_ms=words.whole(given.get(b"WAIT", b"0"), "WAIT", 0, limits.claim_wait_ms_max),
    )
    return Pull(claim, b"DETACH" in given)


class Settling(NamedTuple):
    """What a DONE or FAIL says."""

    text: str  #: the id as it was given
    hold: Hold
    failed: bool = False
    error: str | None = None  #: why, of a FAIL

    @property
    def fenced(self) -> bool:
        """Tell whether it has a token, and so means one delivery and no other."""
        return self.hold.token is not None


def new_settling(command: Sequence[bytes], *, failed: bool) -> Settling:
    """Read a DONE or FAIL. An empty token is none. Raises InvalidInput."""
    name = words.text(command[1], "id")
    token = words.text(command[2], "token") if len(command) > 2 and command[2] else None
    why = words.text(command[3], "error", limits.error_chars_max) if len(command) > 3 and command[3] else None
    return Settling(name, Hold(job_ref(name), token_value(token)), failed, why)


class Held:
    """The jobs a client has pulled and not settled. They go back when its connection ends.

    Of very many, the oldest are forgotten: their leases will run out.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._tokens: dict[int | str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def take(self, pull: Pull, deliveries: Sequence[Delivery]) -> bytes:
        """Take note of what a pull got, and spell it: of each job its id, its token and its payload."""
        if not pull.detached:
            for job, _ in deliveries:
                self._tokens[job.custom_id or job.id] = job.token
            while len(self._tokens) > limits.connection_jobs_max:
                del self._tokens[next(iter(self._tokens))]
        return array(
            b"*3\r\n%b%b%b" % (bulk(job_name(job).encode()), bulk(to_uuid(job.token).encode()), bulk(unwrap(payload)[0]))
            for job, payload in deliveries
        )

    def drop(self, ref: int | str) -> None:
        """Take note that a job is settled."""
        self._tokens.pop(ref, None)

    async def give_back(self, namespace: str) -> None:
        """Make them ready again, untouched. If that cannot be done now, their leases will run out."""
        holds = [Hold(ref, token) for ref, token in self._tokens.items()]
        self._tokens.clear()
        if holds:
            try:
                await self._engine.run(Release(namespace, holds))
            except PenstockError:
                return


class Works:
    """Pulls and settlements that are answered together."""

    def __init__(self, engine: AnyEngine, namespace: str, slots: list[bytes], held: Held) -> None:
        self._engine = engine
        self._namespace = namespace
        self._slots = slots  #: where the replies go
        self._held = held
        self._pulls: list[tuple[Pull, int]] = []
        self._jobs = 0  #: that are asked for
        self._settlings: list[tuple[Settling, int]] = []

    def takes_pull(self, pull: Pull) -> bool:
        """Tell whether a pull can be done together with these."""
        fenced = not self._settlings or self._settlings[0][0].fenced
        room = len(self._pulls) < limits.resp_turn_pulls and self._jobs + pull.claim.count <= limits.claim_jobs_max
        return fenced and (room or not self._pulls)

    def takes_settling(self, settling: Settling) -> bool:
        """Tell whether a settlement can be done together with these."""
        if self._pulls and not settling.fenced:
            return False
        first = self._settlings[0][0] if self._settlings else settling
        return (first.failed, first.fenced) == (settling.failed, settling.fenced)

    def add_pull(self, pull: Pull) -> None:
        """Take a pull; its reply goes to the end of the slots."""
        self._pulls.append((pull, len(self._slots)))
        self._jobs += pull.claim.count
        self._slots.append(b"")

    def add_settling(self, settling: Settling) -> None:
        """Take a settlement; its reply goes to the end of the slots."""
        self._settlings.append((settling, len(self._slots)))
        self._slots.append(b"")

    async def finish(self) -> None:
        """Do them, and fill the slots."""
        settlements = [(command, _submit(self._engine, command)) for command in self._commands()]
        claims = [_submit(self._engine, pull.claim) for pull, _ in self._pulls]
        outcomes: list[ItemOutcome] = []
        for settlement, answer in settlements:
            try:
                outcomes += await answer
            except PenstockError as problem:
                outcomes += [problem] * len(settlement.holds)
        for (settling, place), outcome in zip(self._settlings, outcomes, strict=True):
            if outcome is None:
                self._held.drop(settling.hold.ref)
                self._slots[place] = OK
            else:
                self._slots[place] = error(f"{code_of(outcome)} {in_words(outcome, settling.text, NOT_ACTIVE)}")
        for (pull, place), answer_of_it in zip(self._pulls, claims, strict=True):
            try:
                self._slots[place] = self._held.take(pull, await answer_of_it)
            except PenstockError as problem:
                self._slots[place] = refusal(problem)

    def _commands(self) -> list[Settlement]:
        """Return what the engine is asked to do: all of it at once or, if they failed differently, as often as that changes."""
        parts: list[tuple[Settling, list[Hold]]] = []
        for settling, _ in self._settlings:
            if not parts or parts[-1][0].error != settling.error:
                parts.append((settling, []))
            parts[-1][1].append(settling.hold)
        return [
            Fail(self._namespace, holds, first.error) if first.failed else Ack(self._namespace, holds, [None] * len(holds))
            for first, holds in parts
        ]


def _submit(engine: AnyEngine, command: Command[T]) -> Awaitable[T]:
    """Run a command; what keeps it from being queued is its answer, too."""
    try:
        return engine.run(command)
    except PenstockError as problem:
        refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        refused.set_exception(problem)
        return refused


class Wait:
    """A pull that waits, for a client that may hang up meanwhile: then nothing is claimed, or it is given back."""

    def __init__(self, engine: AnyEngine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim

    async def answer(self) -> Sequence[Delivery]:
        """Return what it got. Raises why there is nothing to be had."""
        try:
            deliveries = await asyncio.shield(self._engine.run(self._claim))
        except asyncio.CancelledError:
            if not self._claim.gone:
                self.give_up()
                raise
            return ()
        return () if self._claim.gone else deliveries

    def give_up(self) -> None:
        """The client is gone."""
        if not self._claim.gone:
            abandon(self._engine.of(self._claim.queue), self._claim)
