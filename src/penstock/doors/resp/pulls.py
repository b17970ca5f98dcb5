"""PULL: what workers ask for, and what they hold until they say how it went."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.binary_payload import unwrap
from penstock.core.errors import PenstockError
from penstock.core.ids import to_uuid
from penstock.doors.jobs.mapping import job_name
from penstock.doors.resp import arguments
from penstock.doors.resp.engine_calls import ask
from penstock.doors.resp.replies import array, bulk, refusal
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.settle import LeaseRef, Release

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi

_OPTIONS = (b"COUNT", b"WAIT")
_FLAGS = (b"DETACH",)


class Pull(NamedTuple):
    """What a PULL asks for. ``detached``: the jobs stay the worker's when its connection ends."""

    queue: QueueKey
    jobs: int = 1
    wait_ms: int = 0
    detached: bool = False


def new_pull(queue: QueueKey, command: Sequence[bytes]) -> Pull:
    """Read a PULL. Raises InvalidInput."""
    if len(command) == 2:
        return Pull(queue)
    given = arguments.options(command[2:], _OPTIONS, _FLAGS)
    return Pull(
        queue,
        arguments.whole(given.get(b"COUNT", b"1"), "COUNT", 1, limits.claim_jobs_max),
        arguments.whole(given.get(b"WAIT", b"0"), "WAIT", 0, limits.claim_wait_ms_max),
        b"DETACH" in given,
    )


class PulledJobs:
    """The jobs a client has pulled and not settled. They go back when its connection ends.

    Of very many, the oldest are forgotten: their leases will run out.
    """

    def __init__(self, engine: EngineApi) -> None:
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
        holds = [LeaseRef(ref, token) for ref, token in self._tokens.items()]
        self._tokens.clear()
        if holds:
            with contextlib.suppress(PenstockError):
                await self._engine.run(Release(namespace, holds))


class Pulls:
    """Pulls that do not wait, from one queue: the engine is asked once, and each gets its share, first come first served."""

    def __init__(self, engine: EngineApi, queue: QueueKey, held: PulledJobs) -> None:
        self._engine = engine
        self._queue = queue
        self._held = held
        self._pulls: list[tuple[Pull, int]] = []
        self._wanted = 0
        self._first: asyncio.Future[list[Delivery]]

    def add(self, pull: Pull, place: int) -> None:
        """Take one more; its reply goes to a place."""
        self._pulls.append((pull, place))
        self._wanted += pull.jobs

    def begin(self) -> None:
        """Ask."""
        self._first = ask(self._engine, Claim(self._queue, self._wanted))

    async def finish(self, slots: list[bytes]) -> None:
        """Fill the slots."""
        deliveries: list[Delivery] = []
        problem: PenstockError | None = None
        try:
            deliveries += await self._first
            await self._ask_again(deliveries)
        except PenstockError as error:
            problem = error
        given = 0
        for pull, place in self._pulls:
            share = deliveries[given : given + pull.jobs]
            given += len(share)
            slots[place] = self._held.take(pull, share) if share or problem is None else refusal(problem)

    async def _ask_again(self, deliveries: list[Delivery]) -> None:
        """Some of the jobs in front may have expired: then there is more for those who come last.

        The engine hands out so many bytes at once and no more; beyond that, who comes last is told there is nothing.
        """
        while len(self._pulls) > 1 and deliveries and len(deliveries) < self._wanted and self._may_be_more():
            if sum(job.size for job, _ in deliveries) >= limits.claim_batch_bytes_max:
                return
            more = await self._engine.run(Claim(self._queue, self._wanted - len(deliveries)))
            if not more:
                return
            deliveries += more

    def _may_be_more(self) -> bool:
        queue = self._engine.store.queue_find(self._queue)
        return queue is not None and self._engine.of(self._queue).may_have_waiting(queue)
