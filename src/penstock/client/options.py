"""What can be said about a job that is pushed, and how it is spelled on the wire."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

import msgspec

from penstock.client import _clock
from penstock.client._durations import Duration, Moment, duration_ms, moment_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.client.handle import Handle


class Backoff(msgspec.Struct, kw_only=True, frozen=True):
    """How long a failed job waits before it is tried again.

    ``fixed`` waits ``delay`` each time; ``exponential`` doubles it each time, up to ``max_delay`` (a day, unless given).
    Seconds or timedeltas.
    """

    type: Literal["exponential", "fixed"] = "exponential"
    delay: Duration = 1.0
    max_delay: Duration | None = None


class Repeat(msgspec.Struct, kw_only=True, frozen=True):
    """How a job comes again once it is done: ``every`` (seconds or a timedelta), or at the next tick of ``cron``.

    ``timezone``: an IANA name, UTC unless given. ``limit``: how often at most.
    """

    every: Duration | None = None
    cron: str | None = None
    timezone: str | None = None
    limit: int | None = None


class JobOptions(TypedDict, total=False):
    """Options of a push. Durations are seconds or timedeltas; moments are aware datetimes or milliseconds since 1970."""

    priority: int  #: -1,000,000 to 1,000,000, higher goes first; 0
    delay: Duration  #: before it may be pulled, up to a year; 0
    run_at: Moment  #: the same as a moment; in place of delay
    timeout: Duration  #: how long a worker may take, up to a day; no limit
    max_attempts: int  #: 1 to 1,000, in all; 3
    backoff: Duration | Backoff  #: before the first retry, doubled for each further one; 1 s
    ttl: Duration  #: after which it is dropped if nobody has pulled it; never
    job_id: str  #: its own id: one job per namespace and id; made up by the SDK unless given
    unique_key: str  #: one live job per queue and key
    unique_for: Duration  #: how long the key is held at most; as long as the job lives
    unique_extend: bool  #: a duplicate lets that time begin again
    unique_replace: bool  #: a duplicate takes the place of a job that nobody works on yet
    debounce_id: str  #: a unique key whose duplicates replace the job that waits
    debounce_for: Duration  #: how long that lasts
    tags: Sequence[str]  #: up to 100
    group_id: str  #: jobs of one group run one after the other
    lifo: bool  #: goes before others of its priority
    remove_on_complete: bool  #: is deleted instead of kept
    remove_on_fail: bool  #: is deleted instead of kept
    durable: bool  #: answered after an fsync, whatever the server's durability
    depends_on: Sequence[str | Handle[Any]]  #: jobs that must complete first: ids, or handles
    parent_id: str | Handle[Any]  #: the job it is a child of, for people to read
    children_ids: Sequence[str | Handle[Any]]  #: needed like depends_on, and shown as children
    fail_parent_on_failure: bool  #: if it fails, so do those that need it
    continue_parent_on_failure: bool  #: if it fails, those that need it may run at once
    ignore_dependency_on_failure: bool  #: if it fails, nobody needs it any more; the error is kept
    remove_dependency_on_failure: bool  #: if it fails, nobody needs it any more
    repeat: Repeat  #: comes again once it is done
    stall_timeout: Duration  #: silence for longer than this loses the job; the queue's rule
    stack_trace_limit: int  #: lines of a stack that are kept; 10
    keep_logs: int  #: lines of its log that are kept, up to 100; 100
    size_limit: int  #: bytes its data may have


class CronOptions(TypedDict, total=False):
    """More options of the jobs of a cron, as of a push."""

    delay: Duration
    ttl: Duration
    tags: Sequence[str]
    group_id: str
    lifo: bool
    durable: bool
    remove_on_complete: bool
    remove_on_fail: bool
    stall_timeout: Duration
    stack_trace_limit: int
    keep_logs: int
    size_limit: int
    unique_for: Duration
    unique_extend: bool
    unique_replace: bool


#: What is said of a cron's jobs beside ``jobOptions``.
_OF_CRON: Final = ("priority", "uniqueKey", "dedup")


def cron_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a cron's jobs as the wire has them. Raises TypeError for those that they cannot have."""
    known = {"priority", "unique_key", "max_attempts", "backoff", "timeout", *CronOptions.__annotations__}
    wrong = [name for name, value in options.items() if value is not None and name not in known]
    if wrong:
        raise TypeError(f"Jobs of a cron cannot have {', '.join(wrong)}. They can have: {', '.join(sorted(known))}")
    fields = job_fields(None, options, named=False)
    del fields["data"]
    cron = {name: fields.pop(name) for name in _OF_CRON if name in fields}
    return cron | ({"jobOptions": fields} if fields else {})


class NewJob:
    """A job to be pushed, with options of its own: for ``push_many``."""

    __slots__ = ("data", "options")

    def __init__(self, data: Any, **options: Unpack[JobOptions]) -> None:
        self.data = data
        self.options: JobOptions = options


_DURATIONS: Final = {
    "delay": "delay",
    "timeout": "timeout",
    "ttl": "ttl",
    "stall_timeout": "stallTimeout",
    "debounce_for": "debounceTtl",
}
_DEDUP: Final = {"unique_extend": "extend", "unique_replace": "replace"}
_PLAIN: Final = {
    name: "".join(part.title() if place else part for place, part in enumerate(name.split("_")))
    for name in JobOptions.__annotations__
    if name not in _DURATIONS and name not in _DEDUP and name not in ("run_at", "backoff", "repeat", "unique_for")
}


def job_fields(data: Any, options: Mapping[str, Any], *, named: bool) -> dict[str, Any]:
    """Return a job as the wire has it. ``named``: one without an id of its own gets one, so that it can be pushed twice."""
    fields: dict[str, Any] = {"data": data}
    for name, value in options.items():
        if value is not None:
            _add(fields, name, value)
    if named and "jobId" not in fields:
        fields["jobId"] = _clock.fresh_name()
    return fields


def is_remembered(jobs: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether the server knows these jobs by their ids for as long as a push of them may be tried again.

    One that is deleted when it ends is forgotten with its id: by then, a second push of it would make a second job.
    """
    return not any(fields.get("removeOnComplete") or fields.get("removeOnFail") for fields in jobs)


def id_of(job: object, option: str) -> str:
    """Return the id of a job that is named by its id, or by its handle. Raises TypeError for anything else."""
    job_id = job if isinstance(job, str) else getattr(job, "id", None)
    if not isinstance(job_id, str):
        raise TypeError(f"{option} takes ids of jobs, or handles, not {type(job).__name__}")
    return job_id


def ids_of(jobs: Iterable[object], option: str) -> list[str]:
    """Return the ids of jobs. Raises TypeError for a single text, which would be taken for many."""
    if isinstance(jobs, str) or not isinstance(jobs, Iterable):
        raise TypeError(f"{option} takes a list of ids of jobs, or handles, not {type(jobs).__name__}")
    return [id_of(job, option) for job in jobs]


def _add(fields: dict[str, Any], name: str, value: Any) -> None:
    if name in ("depends_on", "children_ids"):
        fields[_PLAIN[name]] = ids_of(value, name)
    elif name == "parent_id":
        fields["parentId"] = id_of(value, name)
    elif name in _PLAIN:
        fields[_PLAIN[name]] = value
    elif name in _DURATIONS:
        fields[_DURATIONS[name]] = duration_ms(value, name)
    elif name == "backoff":
        fields["backoff"] = backoff_field(value)
    elif name == "run_at":
        # Counted from a moment that goes along, so that it means the same moment whatever clock the server has.
        now = _clock.now_ms()
        fields |= {"timestamp": now, "delay": max(0, moment_ms(value, name) - now)}
    elif name == "repeat":
        fields["repeat"] = _repeat_field(value)
    elif name == "unique_for":
        fields.setdefault("dedup", {})["ttl"] = duration_ms(value, name)
    elif name in _DEDUP:
        fields.setdefault("dedup", {})[_DEDUP[name]] = value
    else:
        raise TypeError(_no_option(name))


def _no_option(name: str) -> str:
    """Say that there is no such option, and which one may be meant."""
    close = difflib.get_close_matches(name, JobOptions.__annotations__, 1)
    if close:
        return f"There is no option {name!r}. Did you mean {close[0]!r}?"
    return f"There is no option {name!r}. Options of a job: {', '.join(JobOptions.__annotations__)}"


def backoff_field(backoff: Duration | Backoff) -> int | dict[str, Any]:
    """Return a backoff as the wire has it."""
    if not isinstance(backoff, Backoff):
        return duration_ms(backoff, "backoff")
    field: dict[str, Any] = {"type": backoff.type, "delay": duration_ms(backoff.delay, "delay")}
    if backoff.max_delay is not None:
        field["maxDelay"] = duration_ms(backoff.max_delay, "max_delay")
    return field


def _repeat_field(repeat: Repeat) -> dict[str, Any]:
    field: dict[str, Any] = {"cron": repeat.cron, "timezone": repeat.timezone, "limit": repeat.limit}
    if repeat.every is not None:
        field["every"] = duration_ms(repeat.every, "every")
    return {name: value for name, value in field.items() if value is not None}
