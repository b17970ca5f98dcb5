"""Two servers on one database want the same jobs at the same moment: one waits for the other, and never in a circle."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from penstock.core.job import JobSpec
from penstock.core.lifecycle import Arrow
from penstock.engine.jobs.dependencies import CancelChildren, DropDependency
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef, Renew
from penstock.engine.jobs.update import AddLog, ClearLog, EditData, MoveJob
from tests.support.engines import QUEUE, claim_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.engine.command import AnyCommand
    from penstock.engine.engine import Engine

    Pair = tuple[Engine, Engine]

pytestmark = pytest.mark.anyio
NAMESPACE = QUEUE.namespace
ROUNDS = 40


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The deadlocks that the database has found."""
    found: list[object] = []
    begin = asyncpg.DeadlockDetectedError.__init__

    def count(self: Any, *args: Any, **more: Any) -> None:
        found.append(args)
        begin(self, *args, **more)

    monkeypatch.setattr(asyncpg.DeadlockDetectedError, "__init__", count)
    return found


CHANGES: dict[str, list[Callable[[str, int], AnyCommand]]] = {
    "logs": [
        lambda name, _job: AddLog(NAMESPACE, name, "info", "x"),
        lambda _name, job: AddLog(NAMESPACE, job, "info", "x"),
    ],
    "logs deleted": [lambda _name, job: ClearLog(NAMESPACE, job)],
    "payloads": [lambda name, _job: EditData(NAMESPACE, name, b"2"), lambda _name, job: EditData(NAMESPACE, job, b"2")],
    "priorities": [lambda name, _job: MoveJob(NAMESPACE, name, Arrow.REPRIORITIZE, random.randint(0, 9))],
    "several kinds": [
        lambda name, _job: MoveJob(NAMESPACE, name, Arrow.REPRIORITIZE, random.randint(0, 9)),
        lambda _name, job: EditData(NAMESPACE, job, b"2"),
        lambda name, _job: AddLog(NAMESPACE, name, "info", "x"),
        lambda _name, job: MoveJob(NAMESPACE, job, Arrow.RESCHEDULE, random.randint(10**6, 10**7)),
        lambda name, _job: Push(QUEUE, [JobSpec(b"1", job_id=name)]),
        lambda _name, job: DropDependency(NAMESPACE, job),
    ],
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_jobs_are_locked_in_the_same_order_by_all_servers(pair: Pair, kind: str, deadlocks: list[object]) -> None:
    jobs = await pair[0].run(Push(QUEUE, [JobSpec(b"1", job_id=f"j{n}", delay=10**8) for n in range(20)]))

    async def change(engine: Engine) -> None:
        for _ in range(ROUNDS):
            wanted = random.sample(range(20), 20)
            commands = [random.choice(CHANGES[kind])(f"j{n}", jobs[n].id) for n in wanted]
            await asyncio.gather(*(engine.run(each) for each in commands), return_exceptions=True)

    await asyncio.gather(change(pair[0]), change(pair[1]))
    assert not deadlocks


async def test_a_flow_is_cancelled_while_its_jobs_are_done(pair: Pair, deadlocks: list[object]) -> None:
    a, b = pair
    for _ in range(ROUNDS // 4):
        children = await a.run(Push(QUEUE, [JobSpec(b"1") for _ in range(20)]))
        await a.run(Push(QUEUE, [JobSpec(b"1", job_id="parent", needs=tuple(each.id for each in children))]))
        held = await claim_all(a, 10)
        commands: list[tuple[Engine, AnyCommand]] = [(b, CancelChildren(NAMESPACE, "parent"))]
        commands += [(a, Ack(NAMESPACE, [LeaseRef(job.id, job.token)], [None])) for job in reversed(held)]
        commands += [(b, Renew(NAMESPACE, [LeaseRef(job.id, job.token)], [None])) for job in held]
        commands.append((a, CancelChildren(NAMESPACE, "parent")))
        await asyncio.gather(*(engine.run(command) for engine, command in commands), return_exceptions=True)
        for job in await claim_all(a, 10):
            await a.run(Ack(NAMESPACE, [LeaseRef(job.id, job.token)], [None]))
    assert not deadlocks
