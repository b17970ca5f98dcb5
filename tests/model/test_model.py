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
from penstock.core.errors import InvalidInput, ServerError
from penstock.core.events import EventKind
from penstock.core.job import Dedup, JobFlag, JobSpec, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack, Release, Renew, ReportProgress, Requeue
from penstock.engine.jobs.update import EditData, MoveJob
from penstock.engine.queues import admin
from penstock.engine.queues.admin import Configure
from penstock.store.contract import Page
from penstock.store.sqlite import SqliteStore
from tests.model.lifecycle_model import Model, ModelJob, Need
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
    "waiting-children": State.WAITING_CHILDREN,
}
POLICY_FLAGS = {
    JobFlag.FAIL_PARENT: "fail",
    JobFlag.CONTINUE_PARENT: "continue",
    JobFlag.IGNORE_FAILURE: "ignore",
    JobFlag.DROP_DEPENDENCY: "drop",
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
        "flags": st.sampled_from(
            [0, JobFlag.LIFO, JobFlag.REMOVE_ON_COMPLETE, JobFlag.REMOVE_ON_FAIL, JobFlag.UNCOUNTED, *POLICY_FLAGS]
        ),
        "dedup": st.builds(Dedup, st.sampled_from([None, 400, 8_000]), st.booleans(), st.booleans()),
    },
)
pick = st.integers(0, 1_000)
picks = st.lists(pick, max_size=3)


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
        self.push_all([(each, []) for each in batch])

    @rule(batch=st.lists(st.tuples(options, picks), min_size=1, max_size=3))
    def push_needing(self, batch: list[tuple[dict[str, Any], list[int]]]) -> None:
        self.push_all([(each, self.several(numbers)) for each, numbers in batch])

    @rule(policies=st.lists(st.sampled_from([0, *POLICY_FLAGS]), min_size=1, max_size=2), parent=options)
    def push_family(self, policies: list[int], parent: dict[str, Any]) -> None:
        """Children of which each has something agreed for its failure, and a parent that needs them."""
        before = set(self.model.jobs)
        self.push_all([({"flags": policy, "max_attempts": 1}, []) for policy in policies])
        children = [job for job_id, job in self.model.jobs.items() if job_id not in before]
        self.push_all([({name: value for name, value in parent.items() if name != "job_id"}, children)])

    def several(self, numbers: list[int]) -> list[ModelJob]:
        jobs = list(self.model.jobs.values())
        return list({id(job): job for job in (jobs[number % len(jobs)] for number in numbers)}.values()) if jobs else []

    def push_all(self, batch: list[tuple[dict[str, Any], list[ModelJob]]]) -> None:
        new = [
            JobSpec(str(n).encode(), **each, needs=tuple(job.id for job in needed)) for n, (each, needed) in enumerate(batch)
        ]
        try:
            pushed = self.submit(Push(QUEUE, new))
        except InvalidInput:
            assert any(self.model.is_hopeless(job) for _, needed in batch for job in needed)
            return
        assert not any(self.model.is_hopeless(job) for _, needed in batch for job in needed)
        assert len(pushed) == len(batch)
        for number, (job, (each, needed)) in enumerate(zip(pushed, batch, strict=True)):
            self.model_push(job.id, str(number).encode(), each, [self.model.jobs[other.id] for other in needed])

    def model_push(self, job_id: int, data: bytes, options: dict[str, Any], needed: list[ModelJob]) -> None:
        """Push to the model, which must come to the same id."""
        model, now, flags = self.model, self.model.now, options.get("flags", 0)
        ttl, dedup = options.get("ttl"), options.get("dedup") or Dedup()
        job = ModelJob(
            job_id,
            "delayed" if options.get("delay") else "waiting",
            now,
            now + options.get("delay", 0),
            0,
            priority=options.get("priority", 0),
            lifo=bool(flags & JobFlag.LIFO),
            max_attempts=options.get("max_attempts", 3),
            backoff=options.get("backoff", 1_000),
            timeout=options.get("timeout"),
            expires_at=ttl and now + ttl,
            group=options.get("group_id"),
            unique=options.get("unique_key"),
            custom=options.get("job_id"),
            remove_on_complete=bool(flags & JobFlag.REMOVE_ON_COMPLETE),
            remove_on_fail=bool(flags & JobFlag.REMOVE_ON_FAIL),
            uncounted=bool(flags & JobFlag.UNCOUNTED),
            data=data,
            policy=POLICY_FLAGS.get(flags),
            unique_until=dedup.ttl and now + dedup.ttl,
        )
        named = job.custom and model.holder_of_custom(job.custom)
        if named:
            assert job_id == named.id
            return
        holder = job.unique and model.holder_of_unique(job.unique)
        if holder and model.key_is_over(holder):
            holder.unique = None
        elif holder:
            assert job_id == holder.id
            extends = dedup.extend and dedup.ttl is not None
            if dedup.replace and not needed and holder.state in ("waiting", "delayed"):
                job.custom = holder.custom
                model.replace(holder, job, extends=extends)
            elif extends and holder.unique_until is not None:
                holder.unique_until = job.unique_until
            return
        assert job_id not in model.jobs
        model.push(job, needed)

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
            assert self.submit(Ack("default", [LeaseRef(job.id, token)], [result])) == [None]
            self.model.complete(job, result)

    @rule(number=pick, show=st.booleans())
    def fail(self, number: int, show: bool) -> None:
        job = self.some(number, "active")
        if job is not None:
            token = self.tokens[job.id][-1] if show else None
            assert self.submit(Nack("default", [LeaseRef(job.id, token)], "x")) == [None]
            self.model.fail(job)

    @rule(number=pick, lease=st.sampled_from([None, 1_000, 60_000]))
    def renew(self, number: int, lease: int | None) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Renew("default", [LeaseRef(job.id)], [lease])) == [None]
            if lease is None:
                self.model.beat(job)
            else:
                self.model.renew(job, lease)

    @rule(number=pick)
    def release(self, number: int) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Release("default", [LeaseRef(job.id)])) == [None]
            self.model.release(job)

    @rule(numbers=st.lists(pick, min_size=1, max_size=3))
    def to_front(self, numbers: list[int]) -> None:
        jobs = {job.id: job for number in numbers if (job := self.some(number, "active")) is not None}
        if jobs:
            holds = [LeaseRef(job_id) for job_id in jobs]
            assert self.submit(Requeue("default", holds, Arrow.RETURN)) == [None] * len(jobs)
            self.model.to_front(list(jobs.values()))

    @rule(number=pick)
    def to_back(self, number: int) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Requeue("default", [LeaseRef(job.id)], Arrow.SEND_BACK)) == [None]
            self.model.to_back(job)

    @rule(number=pick, delay=st.sampled_from([0, 100, 1_000]))
    def snooze(self, number: int, delay: int) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(Requeue("default", [LeaseRef(job.id)], Arrow.SNOOZE, delay)) == [None]
            self.model.snooze(job, delay)

    @rule(number=pick, progress=st.integers(0, 100))
    def progress(self, number: int, progress: int) -> None:
        job = self.some(number, "active")
        if job is not None:
            assert self.submit(ReportProgress("default", [LeaseRef(job.id)], progress, None)) == [None]
            job.progress = progress
            self.model.beat(job)

    @rule(number=pick)
    def stale_words_change_nothing(self, number: int) -> None:
        old = [(job_id, token) for job_id, tokens in self.tokens.items() for token in tokens[:-1]]
        old += [(job_id, tokens[-1]) for job_id, tokens in self.tokens.items() if self._state(job_id) != "active"]
        if old:
            hold = LeaseRef(*old[number % len(old)])
            for command in (
                Ack("default", [hold], [b"late"]),
                Nack("default", [hold], "late"),
                Renew("default", [hold], [None]),
            ):
                (outcome,) = self.submit(command)
                assert isinstance(outcome, ServerError)

    @rule(number=pick)
    def words_about_jobs_nobody_holds_change_nothing(self, number: int) -> None:
        job = self.some(number, "waiting", "delayed", "completed", "dead")
        if job is not None:
            (outcome,) = self.submit(Ack("default", [LeaseRef(job.id)], [None]))
            assert isinstance(outcome, ServerError)

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
            Arrow.REPRIORITIZE: ("waiting", "delayed", "waiting-children"),
            Arrow.DISCARD: ("waiting", "delayed", "active", "waiting-children"),
            Arrow.CANCEL: ("waiting", "delayed", "active", "waiting-children"),
            Arrow.REVIVE: ("dead",),
            Arrow.REPLAY: ("completed",),
        }[arrow]
        if arrow in (Arrow.REVIVE, Arrow.REPLAY) and job.state in allowed and self.model.key_is_over(job):
            job.unique = None
        blocked = arrow in (Arrow.REVIVE, Arrow.REPLAY) and job.unique and self.model.holder_of_unique(job.unique)
        try:
            self.submit(MoveJob("default", job.id, arrow, value))
        except ServerError:
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
            self.model.discard(job)
        elif arrow is Arrow.CANCEL:
            self.model.remove([job])
        else:
            self.model.start_over(job)

    @rule(number=pick, data=st.sampled_from([b"edited", b""]))
    def edit(self, number: int, data: bytes) -> None:
        job = self.some(number, *STATES)
        if job is None:
            return
        try:
            self.submit(EditData("default", job.id, data))
        except ServerError:
            assert job.state in ("completed", "dead")
        else:
            assert job.state in ("waiting", "delayed", "active", "waiting-children")
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
        # A drain takes the waiting, then the delayed: a job that may run because one it needed is gone can be among the latter.
        groups = {"drain": ("waiting", "delayed"), "purge": ("dead",), "obliterate": ()}[which] or (tuple(STATES),)
        count = self.run(
            {"drain": admin.drain, "purge": admin.purge, "obliterate": admin.obliterate}[which](self.engine, QUEUE)
        )
        for states in groups:
            doomed = self.model.in_state(*([states] if isinstance(states, str) else states))
            doomed.sort(key=lambda job: (job.run_at if job.state == "delayed" else 0, job.id))
            self.model.remove(doomed)
            count -= len(doomed)
        assert count == 0
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
            assert details_of(job).dacks == expected.dacks
            if expected.state == "delayed":
                assert job.run_at == expected.run_at
            if expected.needs:
                needs = {each.needs: Need(each.state.name.lower(), each.result) for each in self.run(self.needs_of(job.id))}
                assert needs == expected.needs

    async def needs_of(self, job_id: int) -> list[Any]:
        return await self.store.need_list(job_id)

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
