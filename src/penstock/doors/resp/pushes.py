"""PUBLISH and PUSH: consecutive commands are given to the engine together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.binary_payload import wrap, wrap_steps
from penstock.core.errors import OutcomeUnknown, PartlyDone, ServerError
from penstock.core.job import JobSpec
from penstock.core.time_slices import in_slices
from penstock.doors.jobs.mapping import job_name
from penstock.doors.resp import arguments
from penstock.doors.resp.engine_calls import ask
from penstock.doors.resp.replies import OK, bulk, error, refusal
from penstock.engine.jobs.push import Push

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi

_OPTIONS = (b"PRIORITY", b"DELAY", b"ID")


async def new_large_job(command: Sequence[bytes]) -> JobSpec:
    """Build the job of a PUSH with a large payload, in slices: see ``new_job``."""
    return new_job(command, await in_slices(wrap_steps(command[2])))


def new_job(command: Sequence[bytes], wrapped: tuple[bytes, bytes | None] | None = None) -> JobSpec:
    """Build the job of a PUSH: with the given options, and with the defaults of the jobs door.

    ``wrapped``: the stored form of its payload, if it is known already. Raises InvalidInput.
    """
    data, options = wrap(command[2]) if wrapped is None else wrapped
    if len(command) == 3:
        return JobSpec(data, options)
    given = arguments.options(command[3:], _OPTIONS)
    return JobSpec(
        data,
        options,
        arguments.whole(given.get(b"PRIORITY", b"0"), "PRIORITY", limits.priority_min, limits.priority_max),
        arguments.whole(given.get(b"DELAY", b"0"), "DELAY", 0, limits.delay_ms_max),
        job_id=arguments.text(given[b"ID"], "ID") if b"ID" in given else None,
    )


class Pushes:
    """Pushes that are answered together: one engine command for each queue, so each queue keeps their order."""

    def __init__(self, engine: EngineApi, slots: list[bytes]) -> None:
        self._engine = engine
        self._slots = slots  #: the replies, in order
        self._lots: dict[QueueKey, tuple[list[JobSpec], list[int], list[bool]]] = {}
        self._named = False  #: some have a custom id: then the order over all queues matters

    def takes(self, key: QueueKey, job: JobSpec) -> bool:
        """Return whether a push can be executed together with these."""
        return not (self._named or job.job_id) or list(self._lots) == [key]

    def add(self, key: QueueKey, job: JobSpec, publish: bool) -> None:
        """Add a push; its reply goes to the end of the slots."""
        lot = self._lots.get(key)
        if lot is None:
            lot = self._lots[key] = ([], [], [])
        lot[0].append(job)
        lot[1].append(len(self._slots))
        lot[2].append(publish)
        self._slots.append(b"")
        if job.job_id is not None:
            self._named = True

    async def finish(self) -> None:
        """Execute the pushes, and fill the slots."""
        under_way = [ask(self._engine, Push(key, lot[0])) for key, lot in self._lots.items()]
        for (key, (jobs, places, publish)), answer in zip(self._lots.items(), under_way, strict=True):
            try:
                done: Sequence[JobRecord | ServerError] = await answer
            except (OutcomeUnknown, PartlyDone) as problem:
                done = [problem] * len(jobs)
            except ServerError as problem:
                done = [problem] if len(jobs) == 1 else await self._one_by_one(key, jobs)
            self._fill(done, places, publish)

    async def _one_by_one(self, key: QueueKey, jobs: Sequence[JobSpec]) -> list[JobRecord | ServerError]:
        """Push one by one after all were refused together, because one bad push must not refuse the others."""
        done: list[JobRecord | ServerError] = []
        for answer in [ask(self._engine, Push(key, [job])) for job in jobs]:
            try:
                done += await answer
            except ServerError as problem:
                done.append(problem)
        return done

    def _fill(self, done: Sequence[JobRecord | ServerError], places: Sequence[int], publish: Sequence[bool]) -> None:
        slots = self._slots
        for outcome, place, published in zip(done, places, publish, strict=True):
            if isinstance(outcome, ServerError):
                slots[place] = failed_to_publish(outcome) if published else refusal(outcome)
            else:
                slots[place] = OK if published else bulk(job_name(outcome).encode())


def failed_to_publish(problem: ServerError) -> bytes:
    """Return the error reply of a PUBLISH: the words of the contract, and the reason."""
    return error(f"failed to publish: {problem}")
