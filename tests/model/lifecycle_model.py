"""A small model of what Penstock promises, written from the documentation and not from the code.

It keeps jobs in a dictionary, sorts lists, and walks through time event by event. It is slow, simple and obviously right; the
state machine beside it compares the real thing with it after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

DAY = 86_400_000
QUEUED = ("waiting", "delayed", "waiting-children")
LIVE = (*QUEUED, "active")


#: What a job's failure means for a job that needs it: where that need stands then, whether the other is dead, or free.
POLICIES = {
    None: ("failed", False, False),
    "fail": ("failed", True, False),
    "continue": ("continued", False, True),
    "ignore": ("ignored", False, False),
    "drop": ("dropped", False, False),
}
OPEN = ("pending", "failed")


class Need(NamedTuple):
    """Where a job stands with one that it needs."""

    state: str
    result: bytes | None = None


@dataclass
class ModelJob:
    id: int
    state: str
    created_at: int
    run_at: int
    place: int
    priority: int = 0
    lifo: bool = False
    max_attempts: int = 3
    backoff: int = 1_000
    timeout: int | None = None
    expires_at: int | None = None
    group: str | None = None
    unique: str | None = None
    custom: str | None = None
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    attempts: int = 0
    stalls: int = 0
    progress: int = 0
    lease_ms: int = 0
    lease_until: int | None = None
    deadline: int | None = None
    data: bytes = b"{}"
    result: bytes | None = None
    policy: str | None = None
    needs: dict[int, Need] = field(default_factory=dict)
    unique_until: int | None = None
    uncounted: bool = False
    dacks: int = 0
    put_off: tuple[int, int] | None = None  #: when, as compared to ids of jobs


@dataclass
class Model:
    """One queue. Times are milliseconds."""

    now: int
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    paused: bool = False
    concurrency: int | None = None
    max_stalls: int = 3
    lease_ms: int = 30_000
    _places: int = 0
    _ended: list[tuple[ModelJob, bool]] = field(default_factory=list)

    # Looking.

    def in_state(self, *states: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state in states]

    def line(self) -> list[ModelJob]:
        return sorted(self.in_state("waiting"), key=lambda job: (-job.priority, job.place))

    def holder_of_unique(self, key: str) -> ModelJob | None:
        return next((job for job in self.in_state(*LIVE) if job.unique == key), None)

    def holder_of_custom(self, key: str) -> ModelJob | None:
        return next((job for job in self.jobs.values() if job.custom == key), None)

    # Changing.

    def _next_place(self, job: ModelJob) -> int:
        self._places += 1
        return -self._places if job.lifo else self._places

    def push(self, job: ModelJob, needed: list[ModelJob]) -> None:
        free = False
        for each in needed:
            if each.state == "completed":
                job.needs[each.id] = Need("done", each.result)
            elif each.state == "dead":
                state, _, frees = POLICIES[each.policy]
                job.needs[each.id] = Need(state)
                free = free or frees
            else:
                job.needs[each.id] = Need("pending")
        if not free and any(need.state in OPEN for need in job.needs.values()):
            job.state = "waiting-children"
        if job.state == "waiting":
            job.place = self._next_place(job)
        self.jobs[job.id] = job

    def is_hopeless(self, needed: ModelJob) -> bool:
        return needed.state == "dead" and needed.policy == "fail"

    def key_is_over(self, job: ModelJob) -> bool:
        return job.unique_until is not None and job.unique_until <= self.now

    def replace(self, job: ModelJob, new: ModelJob, *, extends: bool) -> None:
        """A duplicate takes the place of a job that nobody works on."""
        new.id, new.needs, new.unique = job.id, job.needs, job.unique
        if not extends:
            new.unique_until = job.unique_until
        if new.state == "waiting":
            new.place = self._next_place(new)
        self.jobs[job.id] = new

    def claim(self, count: int, lease_ms: int | None) -> list[int]:
        if self.paused:
            return []
        room = count
        if self.concurrency is not None:
            room = min(room, self.concurrency - len(self.in_state("active")))
        busy = {job.group for job in self.in_state("active") if job.group is not None}
        taken: list[int] = []
        for job in self.line():
            if len(taken) >= room:
                break
            if job.group is not None:
                if job.group in busy:
                    continue
                busy.add(job.group)
            job.state = "active"
            job.lease_ms = self.lease_ms if lease_ms is None else lease_ms
            job.deadline = None if job.timeout is None else self.now + job.timeout
            self.renew(job, job.lease_ms)
            taken.append(job.id)
        return taken

    def renew(self, job: ModelJob, lease_ms: int) -> None:
        ends = [moment for moment in (self.now + lease_ms if lease_ms else None, job.deadline) if moment is not None]
        job.lease_until = min(ends, default=None)

    def beat(self, job: ModelJob) -> None:
        before = job.lease_until
        self.renew(job, job.lease_ms)
        if before is not None and job.lease_until is not None:
            job.lease_until = max(before, job.lease_until)

    def complete(self, job: ModelJob, result: bytes | None) -> None:
        job.result = result
        self._leave(job, "completed", removed=job.remove_on_complete)
        self._ended.append((job, True))
        self.follow_up()

    def fail(self, job: ModelJob) -> None:
        job.attempts += 1
        if job.attempts >= job.max_attempts:
            self._leave(job, "dead", removed=job.remove_on_fail)
            self._ended.append((job, False))
            self.follow_up()
            return
        delay = min(job.backoff * 2 ** (job.attempts - 1), DAY)
        if delay:
            self._leave(job, "delayed")
            job.run_at = self.now + delay
        else:
            self._leave(job, "waiting")
            job.place = self._next_place(job)
        self.pass_time(0)  # its time-to-live may have ended while it was worked on

    def expiry(self, job: ModelJob) -> None:
        if job.uncounted:
            self._leave(job, "waiting")
            return
        job.attempts += 1
        job.stalls += 1
        too_slow = job.deadline is not None and job.deadline <= self.now
        final = job.attempts >= job.max_attempts or (job.stalls >= self.max_stalls and not too_slow)
        self._leave(job, "dead" if final else "waiting", removed=final and job.remove_on_fail)
        if final:
            self._ended.append((job, False))

    def release(self, job: ModelJob) -> None:
        self._leave(job, "waiting")
        self.pass_time(0)

    def postpone(self, job: ModelJob, delay: int) -> None:
        self._leave(job, "delayed")
        job.run_at = self.now + delay
        self.pass_time(0)

    def to_front(self, jobs: list[ModelJob]) -> None:
        for job in sorted(jobs, key=lambda each: each.place, reverse=True):
            self._places += 1
            job.place = -self._places
            self._leave(job, "waiting")
        self.pass_time(0)

    def to_back(self, job: ModelJob) -> None:
        job.lifo = False
        job.place = self._next_place(job)
        self._leave(job, "waiting")
        self.pass_time(0)

    def snooze(self, job: ModelJob, delay: int) -> None:
        self._places += 1
        job.lifo, job.put_off, job.dacks = True, (max(self.jobs), self._places), job.dacks + 1
        self.postpone(job, delay)

    def promote(self, job: ModelJob) -> None:
        job.state = "waiting"
        job.put_off = None
        job.place = self._next_place(job)

    def start_over(self, job: ModelJob) -> None:
        job.attempts = job.stalls = job.progress = 0
        job.result = job.expires_at = None
        self.promote(job)

    def discard(self, job: ModelJob) -> None:
        self._leave(job, "dead")
        self._ended.append((job, False))
        self.follow_up()

    def remove(self, jobs: list[ModelJob]) -> None:
        """Remove jobs together."""
        for job in jobs:
            self._leave(job, job.state, removed=True)
            self._ended.append((job, False))
        self.follow_up()

    def _leave(self, job: ModelJob, state: str, *, removed: bool = False) -> None:
        job.lease_until = job.deadline = None
        job.state = state
        if removed:
            del self.jobs[job.id]

    # Flows.

    def follow_up(self) -> None:
        """See what the jobs that have ended mean for those that need them, and so on along the chain."""
        while self._ended:
            ended, self._ended = self._ended, []
            for job, completed in ended:
                for parent in [each for each in self.jobs.values() if job.id in each.needs]:
                    self._tell(parent, job, completed=completed)

    def _tell(self, parent: ModelJob, job: ModelJob, *, completed: bool) -> None:
        need, buries, frees = parent.needs[job.id].state, False, False
        if completed and need in OPEN:
            parent.needs[job.id] = Need("done", job.result)
        elif not completed and need == "pending":
            state, buries, frees = POLICIES[job.policy]
            parent.needs[job.id] = Need(state)
        else:
            return
        if parent.state != "waiting-children":
            return
        if buries:
            self._leave(parent, "dead", removed=parent.remove_on_fail)
            self._ended.append((parent, False))
        elif frees or not any(each.state in OPEN for each in parent.needs.values()):
            if parent.run_at > self.now:
                parent.state = "delayed"
            else:
                self.promote(parent)

    # Time.

    def pass_time(self, ms: int) -> None:
        target = self.now + ms
        while True:
            moments = [job.expires_at for job in self.in_state(*QUEUED) if job.expires_at is not None]
            moments += [job.lease_until for job in self.in_state("active") if job.lease_until is not None]
            moments += [job.run_at for job in self.in_state("delayed")]
            due = [moment for moment in moments if moment <= target]
            if not due:
                break
            self.now = max(self.now, min(due))
            self._happen()
        self.now = target

    def _happen(self) -> None:
        for job in self.in_state(*QUEUED):
            if job.expires_at is not None and job.expires_at <= self.now:
                del self.jobs[job.id]
                self._ended.append((job, False))
        for job in self.in_state("active"):
            if job.lease_until is not None and job.lease_until <= self.now:
                self.expiry(job)
        for job in sorted(self.in_state("delayed"), key=lambda job: (job.run_at, job.put_off or (job.id, 0))):
            if job.run_at <= self.now:
                self.promote(job)
        self.follow_up()
