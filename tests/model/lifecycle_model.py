"""A small model of what Penstock promises, written from the documentation and not from the code.

It keeps jobs in a dictionary, sorts lists, and walks through time event by event. It is slow, simple and obviously right; the
state machine beside it compares the real thing with it after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DAY = 86_400_000


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

    # Looking.

    def in_state(self, *states: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state in states]

    def line(self) -> list[ModelJob]:
        return sorted(self.in_state("waiting"), key=lambda job: (-job.priority, job.place))

    def holder_of_unique(self, key: str) -> ModelJob | None:
        return next((job for job in self.in_state("waiting", "delayed", "active") if job.unique == key), None)

    def holder_of_custom(self, key: str) -> ModelJob | None:
        return next((job for job in self.jobs.values() if job.custom == key), None)

    # Changing.

    def _next_place(self, job: ModelJob) -> int:
        self._places += 1
        return -self._places if job.lifo else self._places

    def push(self, job: ModelJob) -> None:
        if job.state == "waiting":
            job.place = self._next_place(job)
        self.jobs[job.id] = job

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

    def fail(self, job: ModelJob) -> None:
        job.attempts += 1
        if job.attempts >= job.max_attempts:
            self._leave(job, "dead", removed=job.remove_on_fail)
            return
        delay = min(job.backoff * 2 ** (job.attempts - 1), DAY)
        if delay:
            self._leave(job, "delayed")
            job.run_at = self.now + delay
        else:
            self._leave(job, "waiting")
            job.place = self._next_place(job)

    def lapse(self, job: ModelJob) -> None:
        job.attempts += 1
        job.stalls += 1
        too_slow = job.deadline is not None and job.deadline <= self.now
        final = job.attempts >= job.max_attempts or (job.stalls >= self.max_stalls and not too_slow)
        self._leave(job, "dead" if final else "waiting", removed=final and job.remove_on_fail)

    def release(self, job: ModelJob) -> None:
        self._leave(job, "waiting")

    def postpone(self, job: ModelJob, delay: int) -> None:
        self._leave(job, "delayed")
        job.run_at = self.now + delay
        self.pass_time(0)

    def promote(self, job: ModelJob) -> None:
        job.state = "waiting"
        job.place = self._next_place(job)

    def start_over(self, job: ModelJob) -> None:
        job.attempts = job.stalls = job.progress = 0
        job.result = job.expires_at = None
        self.promote(job)

    def _leave(self, job: ModelJob, state: str, *, removed: bool = False) -> None:
        job.lease_until = job.deadline = None
        job.state = state
        if removed:
            del self.jobs[job.id]

    # Time.

    def pass_time(self, ms: int) -> None:
        target = self.now + ms
        while True:
            moments = [job.expires_at for job in self.in_state("waiting", "delayed") if job.expires_at is not None]
            moments += [job.lease_until for job in self.in_state("active") if job.lease_until is not None]
            moments += [job.run_at for job in self.in_state("delayed")]
            due = [moment for moment in moments if moment <= target]
            if not due:
                break
            self.now = max(self.now, min(due))
            self._happen()
        self.now = target

    def _happen(self) -> None:
        for job in self.in_state("waiting", "delayed"):
            if job.expires_at is not None and job.expires_at <= self.now:
                del self.jobs[job.id]
        for job in self.in_state("active"):
            if job.lease_until is not None and job.lease_until <= self.now:
                self.lapse(job)
        for job in sorted(self.in_state("delayed"), key=lambda job: (job.run_at, job.id)):
            if job.run_at <= self.now:
                self.promote(job)
