"""The jobs of a client that has left are released in slices: one command has a bounded number of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.access.authenticator import Authenticator
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import StorageFailed
from penstock.core.job import Delivery, Payload
from penstock.core.lifecycle import State
from penstock.doors.jobs.session import JobsSession
from penstock.doors.resp.pulls import Pull, PulledJobs
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import abandon
from penstock.engine.jobs.settle import LeaseRef, Release, release_left
from tests.support.engines import QUEUE, claim_all, push_many, state
from tests.support.tcp import all_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.command import AnyCommand
    from penstock.engine.engine import Engine
    from penstock.engine.unit_of_work import UnitOfWork

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def slices_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "slice_jobs_max", 2)


@pytest.fixture
def released(engine: Engine) -> list[int]:
    """Return the number of jobs of each release from now on."""
    sizes: list[int] = []

    def note(work: UnitOfWork) -> None:
        sizes.extend(len(command.holds) for command, _ in work.answers if isinstance(command, Release))

    engine.signals.committed.subscribe(note)
    return sizes


async def waiting(engine: Engine, jobs: Sequence[JobRecord]) -> bool:
    return {await state(engine, job) for job in jobs} == {State.WAITING}


async def test_when_a_connection_with_many_jobs_ends(engine: Engine, released: list[int]) -> None:
    jobs = await push_many(engine, 5)
    session = JobsSession(all_commands(engine), Authenticator(engine.clock))
    assert len((await session.handle({"cmd": "PULLB", "queue": QUEUE.name, "count": 5}))["jobs"]) == 5
    await session.close()
    assert released == [2, 2, 1]
    assert await waiting(engine, jobs)


async def test_when_a_resp_connection_with_many_jobs_ends(engine: Engine, released: list[int]) -> None:
    jobs = await push_many(engine, 5)
    held = PulledJobs(engine)
    held.take(Pull(QUEUE, 5), [Delivery(job, Payload(b"1", None)) for job in await claim_all(engine)])
    await held.release_all(QUEUE.namespace)
    assert released == [2, 2, 1]
    assert await waiting(engine, jobs)


async def test_when_the_caller_of_a_claim_has_left(engine: Engine, released: list[int]) -> None:
    jobs = await push_many(engine, 5)
    command = Claim(QUEUE, 5, wait_ms=60_000)
    claiming = engine.run(command)
    abandon(engine, command)
    await claiming
    await yield_to_loop()
    assert released == [2, 2, 1]
    assert await waiting(engine, jobs)


async def test_a_slice_that_fails_does_not_stop_the_others() -> None:
    seen: list[int] = []

    async def run(command: AnyCommand) -> Any:
        assert isinstance(command, Release)
        seen.append(len(command.holds))
        if len(seen) == 1:
            raise StorageFailed

    engine: Any = SimpleNamespace(run=run)
    await release_left(engine, "default", [LeaseRef(number) for number in range(5)])
    assert seen == [2, 2, 1]
