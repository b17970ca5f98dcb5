"""Random verbs against the real engine and store, and against the model: no difference, ever."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.clock import ManualClock
from penstock.core.durability import Durability
from penstock.core.errors import PenstockError
from penstock.core.events import EventKind
from penstock.core.job import JobFlag, NewJob
from penstock.core.lifecycle import Arrow, State
from penstock.engine import admin
from penstock.engine.admin import Configure
from penstock.engine.change import EditData, MoveJob
from penstock.engine.claim import Claim
from penstock.engine.engine import Engine
from penstock.engine.produce import Push
from penstock.engine.settle import Ack, Fail, Hold, Progress, Release, Renew
from penstock.store.contract import Page
from penstock.store.sqlite import SqliteStore
from tests.model.lifecycle_model import Model, ModelJob
from tests.support.engines import QUEUE

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.core.queue import Queue, QueueSettings

START = 1_800_000_000_000
STATES = {
    "waiting": State.WAITING,
    "delayed": State.DELAYED,
    "active": State.ACTIVE,
    "completed": State.COMPLETED,
    "dead": State.DEAD,
}

options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-2, 2),
        "delay": st.sampled_from([0, 1, 500, 10_000]),
        "max_attempts": st.integers(1, 3),
        "backoff": st.sampled_from([0, 100, 1_000]),
        "ttl": st.sampled_from([50, 5_000, 100_000]),
        "timeout": st.sampled_from([100, 20_000, 40_000]),
        "unique_key": st.sampled_from(["u1", "u2"]),
        "job_id": st.sampled_from(["c1", "c2"]),
        "group_id": st.sampled_from(["g1", "g2"]),
        "flags": st.sampled_from([0, JobFlag.LIFO, JobFlag.REMOVE_ON_COMPLETE, JobFlag.REMOVE_ON_FAIL]),
    },
)
pick = st.integers(0, 1_000)


class QueueMachine(RuleBasedStateMachine):
    """Every rule does one thing to both, and compares what they answer; the invariants compare everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.clock = ManualClock(START)
        self.model = Model(START)
        self.tokens: dict[int, list[int]] = {}
        self.run(self.open())

    def teardown(self) -> None:
        self.run(self.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def run(self, doing: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(doing)

    async def open(self) -> None:
        self.store = await SqliteStore.open(self.directory, self.clock, ballast_bytes=0, read_inline=True)
        self.engine = Engine(self.store, self.clock, durability=Durability.NEVER)
        self.engine.timer.start()

    async def close(self) -> None:
        await self.engine.close()
        await self.store.close()

    def submit(self, command: Any) -> Any:
        async def one() -> Any:
            return await self.engine.run(command)

        return self.run(one())

    def some(self, number: int, *states: str) -> ModelJob | None:
        jobs = self.model.in_state(*states)
        return jobs[number % len(jobs)] if jobs else None

    # Producers.

    @rule(batch=st.lists(options, min_size=1, max_size=4))
    def push(self, batch: list[dict[str, Any]]) -> None:
        pushed = self.submit(Push(QUEUE, [NewJob(str(n).encode(), **each) for n, each in enumerate(batch)]))
        assert len(pushed) == len(batch)
        for number, (job, each) in enumerate(zip(pushed, batch, strict=True)):
            taken = each.get("job_id") and self.model.holder_of_custom(each["job_id"])
            taken = taken or (each.get("unique_key") and self.model.holder_of_unique(each["unique_key"]))
            if taken:
                assert job.id == taken.id
                continue
            now, flags = self.model.now, each.get("flags", 0)
            ttl = each.get("ttl")
            self.model.push(
                ModelJob(
                    job.id,
                    "delayed" if each.get("delay") else "waiting",
                    now,
                    now + each.get("delay", 0),
                    0,
                    priority=each.get("priority", 0),
                    lifo=bool(flags & JobFlag.LIFO),
                    max_attempts=each.get("max_attempts", 3),
                    backoff=each.get("backoff", 1_000),
                    timeout=each.get("timeout"),
                    expires_at=ttl and now + ttl,
                    group=each.get("group_id"),
                    unique=each.get("unique_key"),
                    custom=each.get("job_id"),
                    remove_on_complete=bool(flags & JobFlag.REMOVE_ON_COMPLETE),
                    remove_on_fail=bool(flags & JobFlag.REMOVE_ON_FAIL),
                    data=str(number).encode(),
                )
            )

    @rule(count=st.integers(1, 3), group=st.sampled_from([None, "g1"]))
    def push_some(self, count: int, group: str | None) -> None:
        self.push([{"group_id": group} if group else {}] * count)

    # Workers.

    @rule(count=st.sampled_from([1, 1, 1, 2, 4]), lease=st.sampled_from([None, 1_000, 60_000]))
    def claim(self, count: int, lease: int | None) -> None:
        claimed = self.submit(Claim(QUEUE, count, lease_ms=lease))
        assert [delivery.job.id for delivery in claimed] == self.model.claim(count, lease)
        for job, payload in claimed:
            assert payload.data == self.model.jobs[job.id].data
            assert job.token > max(self.tokens.get(job.id, [0]))
            self.tokens.setdefault(job.id, []).append(job.token)

    @rule(number=pick, result=st.sampled_from([None, b"1"]), show=st.booleans())
    def ack(self, number: int, result: bytes | None, show: bool) -> None:
        job = self.some(number, "active")
        if job is not None:
            token = self.tokens[job.id][-1] if show else None
            assert self.submit(Ack("default", [Hold(job.id, token)], [result])) == [None]
            self.model.complete(job, result)

    @rule(number=pick, show=st.booleans())
    def fail(self, number: int, show: bool) -> None:
        job = self.some(number, "active")
        if job is not None:
            token = self.tokens[job.id][-1] if show else None
            assert self.submit(Fail("default", [Hold(job.id, token)], "x")) == [None]
            self.model.fail(job)

    @rule(number=pick, lease=st.sampled_from([None, 1_000, 60_000]))
    def renew(self, number: int, lease: int | None) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Renew("default", [Hold(job.id)], [lease])) == [None]
            if lease is None:
                self.model.beat(job)
            else:
                self.model.renew(job, lease)

    @rule(number=pick)
    def release(self, number: int) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Release("default", [Hold(job.id)])) == [None]
            self.model.release(job)

    @rule(number=pick, progress=st.integers(0, 100))
    def progress(self, number: int, progress: int) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Progress("default", [Hold(job.id)], progress, None)) == [None]
            job.progress = progress
            self.model.beat(job)

    @rule(number=pick)
    def stale_words_change_nothing(self, number: int) -> None:
        old = [(job_id, token) for job_id, tokens in self.tokens.items() for token in tokens[:-1]]
        old += [(job_id, tokens[-1]) for job_id, tokens in self.tokens.items() if self._state(job_id) != "active"]
        if old:
            hold = Hold(*old[number % len(old)])
            for command in (
                Ack("default", [hold], [b"late"]),
                Fail("default", [hold], "late"),
                Renew("default", [hold], [None]),
            ):
                (outcome,) = self.submit(command)
                assert isinstance(outcome, PenstockError)

    @rule(number=pick)
    def words_about_jobs_nobody_holds_change_nothing(self, number: int) -> None:
        job = self.some(number, "waiting", "delayed", "completed", "dead")
        if job is not None:
            (outcome,) = self.submit(Ack("default", [Hold(job.id)], [None]))
            assert isinstance(outcome, PenstockError)

    def _state(self, job_id: int) -> str | None:
        return self.model.jobs[job_id].state if job_id in self.model.jobs else None

    # Interventions: from every state, allowed or not.

    @rule(
        number=pick,
        arrow=st.sampled_from(
            [
                Arrow.PROMOTE,
                Arrow.POSTPONE,
                Arrow.RESCHEDULE,
                Arrow.REPRIORITIZE,
                Arrow.DISCARD,
                Arrow.CANCEL,
                Arrow.REVIVE,
                Arrow.REPLAY,
            ]
        ),
        value=st.sampled_from([0, 1, 2_000]),
    )
    def move(self, number: int, arrow: Arrow, value: int) -> None:
        job = self.some(number, *STATES)
        if job is None:
            return
        allowed = {
            Arrow.PROMOTE: ("delayed",),
            Arrow.POSTPONE: ("active",),
            Arrow.RESCHEDULE: ("delayed",),
            Arrow.REPRIORITIZE: ("waiting", "delayed"),
            Arrow.DISCARD: ("waiting", "delayed", "active"),
            Arrow.CANCEL: ("waiting", "delayed", "active"),
            Arrow.REVIVE: ("dead",),
            Arrow.REPLAY: ("completed",),
        }[arrow]
        blocked = arrow in (Arrow.REVIVE, Arrow.REPLAY) and job.unique and self.model.holder_of_unique(job.unique)
        try:
            self.submit(MoveJob("default", job.id, arrow, value))
        except PenstockError:
            assert job.state not in allowed or blocked
            return
        assert job.state in allowed
        if arrow is Arrow.PROMOTE:
            self.model.promote(job)
        elif arrow is Arrow.POSTPONE:
            self.model.postpone(job, value)
        elif arrow is Arrow.RESCHEDULE:
            job.run_at = self.model.now + value
            self.model.pass_time(0)
        elif arrow is Arrow.REPRIORITIZE:
            job.priority = value
        elif arrow is Arrow.DISCARD:
            job.state, job.lease_until, job.deadline = "dead", None, None
        elif arrow is Arrow.CANCEL:
            del self.model.jobs[job.id]
        else:
            self.model.start_over(job)

    @rule(number=pick, data=st.sampled_from([b"edited", b""]))
    def edit(self, number: int, data: bytes) -> None:
        job = self.some(number, *STATES)
        if job is None:
            return
        try:
            self.submit(EditData("default", job.id, data))
        except PenstockError:
            assert job.state in ("completed", "dead")
        else:
            assert job.state in ("waiting", "delayed", "active")
            job.data = data

    # The queue.

    @rule(paused=st.booleans(), concurrency=st.sampled_from([None, 1, 3]))
    def configure(self, paused: bool, concurrency: int | None) -> None:
        def change(old: QueueSettings) -> QueueSettings:
            return msgspec.structs.replace(old, paused=paused, concurrency=concurrency)

        self.submit(Configure(QUEUE, EventKind.QUEUE_PAUSED, change))
        self.model.paused, self.model.concurrency = paused, concurrency

    @rule(which=st.sampled_from(["drain", "purge", "obliterate"]))
    def remove_many(self, which: str) -> None:
        states = {"drain": ("waiting", "delayed"), "purge": ("dead",), "obliterate": tuple(STATES)}[which]
        doomed = self.model.in_state(*states)
        count = self.run(
            {"drain": admin.drain, "purge": admin.purge, "obliterate": admin.obliterate}[which](self.engine, QUEUE)
        )
        assert count == len(doomed)
        for job in doomed:
            del self.model.jobs[job.id]
        if which == "obliterate":
            self.model.paused, self.model.concurrency = False, None

    @rule(limit=st.sampled_from([None, 1, 2]))
    def promote_many(self, limit: int | None) -> None:
        delayed = sorted(self.model.in_state("delayed"), key=lambda job: (job.run_at, job.id))[:limit]
        assert self.run(admin.move_many(self.engine, QUEUE, Arrow.PROMOTE, limit=limit)) == len(delayed)
        for job in delayed:
            self.model.promote(job)

    # Time and crashes.

    @rule(ms=st.sampled_from([1, 49, 500, 1_000, 9_999, 30_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.run(self.clock.advance(ms))
        self.model.pass_time(ms)

    @rule()
    def restart(self) -> None:
        self.run(self.close())
        self.run(self.open())

    @rule(number=pick)
    def let_a_lease_run_out(self, number: int) -> None:
        job = self.some(number, "active")
        if job is not None and job.lease_until is not None:
            self.pass_time(job.lease_until - self.model.now)
            self.claim(1, 1_000)

    @rule(number=pick)
    def let_a_job_run_its_course(self, number: int) -> None:
        self.claim(2, None)
        self.ack(number, b"1", show=True)
        self.fail(number, show=True)

    # What must always hold.

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        queue = self.store.queue_find(QUEUE)
        listed = [] if queue is None else self.run(self.all_jobs(queue))
        assert {job.id for job, _ in listed} == set(self.model.jobs)
        for job, payload in listed:
            expected = self.model.jobs[job.id]
            assert State(job.state) is STATES[expected.state], expected
            found = (job.priority, job.attempts, job.stalls, job.progress, job.lease_until, job.deadline)
            assert found == (
                expected.priority,
                expected.attempts,
                expected.stalls,
                expected.progress,
                expected.lease_until,
                expected.deadline,
            )
            assert payload.data == expected.data
            if expected.state == "delayed":
                assert job.run_at == expected.run_at

    async def all_jobs(self, queue: Queue) -> list[Any]:
        return await self.store.job_page(Page(queue, tuple(STATES.values()), 10_000))

    @invariant()
    def counts_agree(self) -> None:
        totals = self.store.totals()
        assert [totals.of(state) for state in STATES.values()] == [len(self.model.in_state(name)) for name in STATES]

    @precondition(lambda self: self.model.in_state("completed"))
    @invariant()
    def results_are_kept(self) -> None:
        for job in self.model.in_state("completed"):
            assert self.run(self.store.result_get(job.id)) == job.result


QueueMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestModel = QueueMachine.TestCase
