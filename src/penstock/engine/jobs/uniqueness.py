"""Which job has a name: a push checks this before it makes a job. For names over all shards see ``name_registry.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core import ids, limits
from penstock.core.dependencies import RemoteJob
from penstock.core.errors import InvalidInput
from penstock.core.events import EventKind
from penstock.core.job import IDEMPOTENCY_PREFIX, JobFlag, details_of, put_details, unique_key_is_over
from penstock.core.lifecycle import Arrow, State
from penstock.engine.jobs import dependencies
from penstock.engine.jobs.build import moments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Dedup, JobRecord, JobSpec
    from penstock.core.queue import Queue, QueueKey
    from penstock.core.reservations import Permit
    from penstock.engine.command import JobRef
    from penstock.engine.unit_of_work import UnitOfWork

MISSPELT: Final = "jobId has the form of an id that Penstock assigns. Choose another, or leave it out."


class ExistingJobs:
    """Finds the job that has a name: a job in the store, or one made earlier in this batch."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work
        self._custom: dict[tuple[int, str], JobRecord] = {}
        self._unique: dict[tuple[int, str], JobRecord] = {}
        self._holders: dict[tuple[int, str], JobRecord | None] = {}  #: of unique keys in the store that were looked up
        self._unread: dict[QueueKey, list[JobSpec]] = {}  #: jobs that ``prefetch`` left out: their queue was not open
        self.remote: dict[JobRef, RemoteJob] = {}  #: jobs of other shards that the current command needs
        self.copied = 0  #: bytes of results that the current command copies to its dependencies, as far as checked
        self._result_sizes: dict[int, int] = {}  #: of completed jobs, by id

    async def prefetch(self, jobs: Sequence[tuple[QueueKey, JobSpec]]) -> None:
        """Read all jobs at once that new jobs name, so that the next steps need no reads."""
        tx = self._work.tx
        refs: list[JobRef] = []
        own: list[tuple[int, str]] = []
        keys: list[tuple[int, str]] = []
        for key, new in jobs:
            if new.job_id is None and new.unique_key is None and not new.needs:
                continue
            namespace = tx.namespace_number(key.namespace)
            if namespace is None:
                self._unread.setdefault(key, []).append(new)
                continue
            for name in (new.job_id, *new.needs):
                ref = ids.from_uuid(name) or name if isinstance(name, str) else name
                if isinstance(ref, str):
                    own.append((namespace, ref))
                elif ref is not None:
                    refs.append(ref)
            if new.unique_key is not None:
                queue = tx.queue_find(key)
                if queue is None:
                    self._unread.setdefault(key, []).append(new)
                else:
                    keys.append((queue.number, new.unique_key))
        if refs:
            await self._work.prefetch(refs)
        if own:
            await self._work.prefetch_named(own)
        if keys:
            await self._look_for(keys)

    async def prefetch_opened(self, queue: Queue) -> None:
        """Read at once what ``prefetch`` left out because the queue was not open yet. To be called when it is."""
        unread = self._unread.pop(queue.key, None) if self._unread else None
        if unread:
            await self.prefetch([(queue.key, new) for new in unread])

    def begin(self, permit: Permit | None) -> None:
        """Begin to check another command. ``permit``: its own."""
        self.remote = {} if permit is None else permit.remote
        self.copied = 0

    async def check(self, queue: Queue, jobs: Sequence[JobSpec], earlier: set[str] | None = None) -> None:
        """Refuse jobs that cannot be pushed: see each error.

        Refused are: a custom id in the format of Penstock's ids, unless it names a job, because such a job could not
        be found by that id; a custom id with the prefix of idempotency keys; a dependency that names no job; and
        dependencies with too many bytes of results, counted since ``begin``. A
        job can only need jobs that were pushed before it, so dependencies never form a circle. ``earlier``: custom
        ids of jobs that are made before these; the ids of these jobs are added.
        """
        earlier = set() if earlier is None else earlier
        for new in jobs:
            await self._work.pause()
            number = None if new.job_id is None else ids.from_uuid(new.job_id)
            if number is not None and await self._work.find(queue.key.namespace, number) is None:
                raise InvalidInput(MISSPELT)
            if new.job_id is not None and new.job_id.startswith(IDEMPOTENCY_PREFIX):
                raise InvalidInput(f"jobId must not begin with {IDEMPOTENCY_PREFIX!r}. Choose another, or leave it out.")
            for ref in new.needs:
                name = ref if isinstance(ref, str) else ids.to_uuid(ref)
                if name == new.job_id:
                    raise InvalidInput("A job cannot depend on itself")
                if name in earlier:
                    continue
                needed = await self.resolve_any(queue, ref)
                if needed is None:
                    raise InvalidInput(f"Dependency job not found: {name}")
                if dependencies.is_hopeless(needed):
                    raise InvalidInput(f"Dependency job has failed: {name}")
                self.copied += await self._result_size(needed)
                if self.copied > limits.result_copies_bytes_max:
                    raise InvalidInput(
                        f"The results of completed jobs in dependsOn are stored with each job that needs them: more than "
                        f"{limits.result_copies_bytes_max} bytes for this request. Push the jobs in several requests, or "
                        "acknowledge with smaller results, for example references to where they are stored."
                    )
            if new.job_id is not None:
                earlier.add(new.job_id)

    async def _result_size(self, needed: JobRecord | RemoteJob) -> int:
        """Return the size of the result that a new dependency on a job gets at once."""
        if isinstance(needed, RemoteJob):
            return len(needed.end.result or b"")
        if needed.state != State.COMPLETED:
            return 0
        size = self._result_sizes.get(needed.id)
        if size is None:
            size = self._result_sizes[needed.id] = len(await self._work.result_of(needed) or b"")
        return size

    async def resolve(self, queue: Queue, ref: int | str) -> JobRecord | None:
        """Return the job that a dependency names: made earlier in this batch, or stored."""
        made = self._custom.get((queue.namespace_number, ref)) if isinstance(ref, str) else None
        return made or await self._work.find(queue.key.namespace, ref)

    async def resolve_any(self, queue: Queue, ref: int | str) -> JobRecord | RemoteJob | None:
        """Return the job that a dependency names, on this shard or another."""
        return self.remote.get(ref) or await self.resolve(queue, ref)

    async def find(self, queue: Queue, new: JobSpec) -> tuple[JobRecord | None, bool]:
        """Find the job that has one of the new job's names. Return it, and whether the new job has replaced it."""
        if new.job_id is not None:
            made = self._custom.get((queue.namespace_number, new.job_id))
            found = made or await self._work.find(queue.key.namespace, ids.from_uuid(new.job_id) or new.job_id)
            if found is not None:
                return found, False
        holder = None if new.unique_key is None else await self._holder(queue, new.unique_key)
        if holder is None:
            return None, False
        if unique_key_is_over(holder, self._work.now_ms):
            await self._free_keys([holder])
            return None, False
        return holder, new.dedup is not None and self._duplicate(holder, new, new.dedup)

    async def find_and_journal(self, queue: Queue, new: JobSpec) -> tuple[JobRecord | None, bool]:
        """Do the same as ``find`` for a job that is pushed now. If another job keeps its unique key, this is journaled."""
        found, replaced = await self.find(queue, new)
        if found is not None and new.unique_key is not None and not replaced:
            extends = new.dedup is not None and new.dedup.extend and new.dedup.ttl is not None
            if found.unique_key == new.unique_key and self._work.name_of(found) != new.job_id and not extends:
                self._work.journal_job_event(EventKind.JOB_DUPLICATED, found)
        return found, replaced

    async def _holder(self, queue: Queue, unique_key: str) -> JobRecord | None:
        key = (queue.number, unique_key)
        made = self._unique.get(key)
        if made is not None:
            return made
        if key not in self._holders:
            await self._look_for((key,))
        return self._holders[key]

    async def _look_for(self, keys: Sequence[tuple[int, str]]) -> None:
        found = await self._work.tx.job_find_unique(dict.fromkeys(keys))
        self._holders.update(dict.fromkeys(keys))
        holders = {key: self._work.track(job) for key, job in found.items()}
        self._holders.update(holders)
        over = [holder for holder in holders.values() if unique_key_is_over(holder, self._work.now_ms)]
        if over:
            await self._free_keys(over)

    async def _free_keys(self, holders: Sequence[JobRecord]) -> None:
        """Take the unique keys from jobs whose time to hold them is over."""
        await self._work.flush_and_track()
        for holder in holders:
            if holder.unique_key is not None:
                self._holders[holder.queue, holder.unique_key] = None
            holder.unique_key = None
        await self._work.tx.job_rewrite(holders)

    def _duplicate(self, holder: JobRecord, new: JobSpec, dedup: Dedup) -> bool:
        """Handle a duplicate as its options say. Return whether it has replaced the job that has its key."""
        work = self._work
        if dedup.replace and not new.needs and holder.state in (State.WAITING, State.DELAYED):
            _replace(work, holder, new)
            return True
        details = details_of(holder)
        if dedup.extend and dedup.ttl is not None and details.unique_until is not None:
            details.unique_until = work.now_ms + dedup.ttl
            put_details(holder, details)
            work.touch(holder)
        return False

    def keep(self, job: JobRecord) -> JobRecord:
        """Record the names of a job that was just made, and the job: a later one of the batch may change it."""
        self._work.track(job)
        if job.custom_id is not None:
            self._custom[job.namespace, job.custom_id] = job
        if job.unique_key is not None:
            self._unique[job.queue, job.unique_key] = job
        return job


def _replace(work: UnitOfWork, job: JobRecord, new: JobSpec) -> None:
    """Replace the content of a job that no worker has, as if it were new. Its id and the jobs that need it stay."""
    before = details_of(job)
    moments = moments_of(new, work.now_ms)
    work.move(job, Arrow.EDIT, len(new.data))
    if job.priority != new.priority:
        work.move(job, Arrow.REPRIORITIZE, new.priority)
    job.max_attempts, job.backoff, job.timeout = new.max_attempts, new.backoff, new.timeout
    job.group_id, job.created_at = new.group_id, moments.created_at
    job.flags = new.flags | (job.flags & JobFlag.AWAITS)
    job.details = new.details
    details = details_of(job)
    details.parent = before.parent
    extends = new.dedup is not None and new.dedup.extend and new.dedup.ttl is not None
    details.unique_until = moments.unique_until if extends else before.unique_until
    put_details(job, details)
    if moments.run_at > work.now_ms:
        work.move(job, Arrow.REPLACE_LATER, moments.run_at)
    else:
        work.move(job, Arrow.REPLACE)
    job.expires_at = moments.expires_at
    work.rewrite(job, new)
