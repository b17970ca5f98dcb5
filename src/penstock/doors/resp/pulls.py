"""PULL: its arguments, and the jobs that a client holds until it settles them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.binary_payload import unwrap
from penstock.core.errors import ServerError
from penstock.core.ids import to_uuid
from penstock.doors.jobs.mapping import job_name
from penstock.doors.resp import arguments
from penstock.doors.resp.engine_calls import ask
from penstock.doors.resp.replies import array, bulk, refusal
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.settle import LeaseRef, release_left

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi

_OPTIONS = (b"COUNT", b"WAIT")
_FLAGS = (b"DETACH",)


class Pull(NamedTuple):
    """The arguments of a PULL. ``detached``: the jobs stay leased when the connection ends."""

    queue: QueueKey
    jobs: int = 1
    wait_ms: int = 0
    detached: bool = False


def new_pull(queue: QueueKey, command: Sequence[bytes]) -> Pull:
    """Parse a PULL. Raises InvalidInput."""
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
    """The jobs that a client has pulled and not settled. They are released when its connection ends.

    If there are too many, the oldest are no longer tracked, and their leases expire.
    """

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine
        self._tokens: dict[int | str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def take(self, pull: Pull, deliveries: Sequence[Delivery]) -> bytes:
        """Record the jobs of a pull, and return the reply: for each job its id, its token and its payload."""
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
        """Remove a job that is settled."""
        self._tokens.pop(ref, None)

    async def release_all(self, namespace: str) -> None:
        """Release all jobs: they are ready again, without a counted attempt. If that fails, their leases expire."""
        holds = [LeaseRef(ref, token) for ref, token in self._tokens.items()]
        self._tokens.clear()
        await release_left(self._engine, namespace, holds)


class Pulls:
    """Pulls of one queue that do not wait. One claim serves them all, first come, first served."""

    def __init__(self, engine: EngineApi, queue: QueueKey, held: PulledJobs) -> None:
        self._engine = engine
        self._queue = queue
        self._held = held
        self._pulls: list[tuple[Pull, int]] = []
        self._wanted = 0
        self._first: asyncio.Future[list[Delivery]]

    def add(self, pull: Pull, place: int) -> None:
        """Add a pull; its reply goes to a place in the slots."""
        self._pulls.append((pull, place))
        self._wanted += pull.jobs

    def begin(self) -> None:
        """Submit the claim."""
        self._first = ask(self._engine, Claim(self._queue, self._wanted))

    async def finish(self, slots: list[bytes]) -> None:
        """Fill the slots with the replies."""
        deliveries: list[Delivery] = []
        problem: ServerError | None = None
        try:
            deliveries += await self._first
            await self._ask_again(deliveries)
        except ServerError as error:
            problem = error
        given = 0
        for pull, place in self._pulls:
            share = deliveries[given : given + pull.jobs]
            given += len(share)
            slots[place] = self._held.take(pull, share) if share or problem is None else refusal(problem)

    async def _ask_again(self, deliveries: list[Delivery]) -> None:
        """Claim again, because some of the jobs in front may have expired and more may be ready for the last pulls.

        The engine returns a limited number of bytes at once. Beyond that limit, the last pulls get no jobs.
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
