"""Conversion between jobs and their API form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Raw

from penstock.core import ids, limits
from penstock.core.errors import InvalidInput, PayloadTooLarge
from penstock.core.job import Dedup, Details, JobFlag, JobRecord, JobSpec, details_of, encode_details
from penstock.core.json_depth import SHALLOW_BYTES, check_depth, depth_steps, take_json
from penstock.core.lifecycle import State
from penstock.core.repeat import RepeatRule
from penstock.core.schedule import parse
from penstock.doors.jobs.wire.replies import BackoffView, DeadJobView, JobView, RepeatView

if TYPE_CHECKING:
    from penstock.core.job import Payload
    from penstock.core.time_slices import Steps
    from penstock.doors.jobs.wire.requests import BackoffBody, CronJobBody, DedupBody, PushBody, RepeatBody

#: The names of the states in this door.
STATE_NAMES: Final = {
    State.WAITING.value: "waiting",
    State.DELAYED.value: "delayed",
    State.ACTIVE.value: "active",
    State.COMPLETED.value: "completed",
    State.DEAD.value: "failed",
    State.WAITING_CHILDREN.value: "waiting-children",
}
STATES_BY_NAME: Final = {name: State(number) for number, name in STATE_NAMES.items()}

#: A token that no lease has: a text that is not in the format of a token is stale.
NO_TOKEN: Final = -1
_NO_DETAILS = Details()
V = TypeVar("V", bound=JobView)


class DoorOptions(msgspec.Struct, omit_defaults=True):
    """Options of a job that only this door uses, stored with the payload."""

    tags: list[str] = []
    depends_on: list[str] = []
    parent_id: str | None = None
    children_ids: list[str] = []
    repeat: RepeatRule | None = None
    dedup: Dedup | None = None
    debounce_id: str | None = None
    debounce_ttl: int | None = None
    name: str | None = None  #: engine/queues/crons.py also writes it


_NO_OPTIONS = DoorOptions()
_encode_options = msgspec.json.Encoder().encode
_decode_options = msgspec.json.Decoder(DoorOptions).decode


def job_ref(text: str) -> int | str:
    """Return the job that an id in a path or body names: a job id of Penstock, or a custom id."""
    return ids.from_uuid(text) or text


def job_name(job: JobRecord) -> str:
    """Return the id of a job in the form that users see."""
    return job.custom_id or ids.to_uuid(job.id)


def token_value(text: str | None) -> int | None:
    """Return the lease of a token.

    An empty token counts as none: clients send it for jobs that they pulled without a lock.
    """
    return ids.from_uuid(text) or NO_TOKEN if text else None


def take_payload(raw: Raw, *, depth_known: bool = False) -> bytes:
    """Read a payload from a body, byte for byte. Raises PayloadTooLarge, or InvalidInput if it is nested too deeply.

    ``depth_known``: its depth was checked before.
    """
    data = bytes(raw)
    if not depth_known:
        check_depth(data)
    if len(data) > limits.payload_bytes_max:
        raise PayloadTooLarge("Job data too large (max 10MB)")
    return data


def take_result(raw: Raw, *, depth_known: bool = False) -> bytes:
    """Read the result of a job from a body, byte for byte, with the limits of a payload."""
    result = bytes(raw) if depth_known else take_json(raw)
    if len(result) > limits.payload_bytes_max:
        raise PayloadTooLarge("Job result too large (max 10MB)")
    return result


def value_steps(raw: Raw) -> Steps[None]:
    """Raise InvalidInput for a large value of a body that is nested too deeply, in steps.

    Small ones are checked when they are read.
    """
    if len(memoryview(raw)) > limits.small_body_bytes:
        yield from depth_steps(bytes(raw))


def job_steps(body: PushBody) -> Steps[JobSpec]:
    """Turn a body of any size into a ``JobSpec``, in steps. Raises InvalidInput."""
    yield from value_steps(body.data)
    return new_job(body, take_payload(body.data, depth_known=len(memoryview(body.data)) > limits.small_body_bytes))


def new_job(body: PushBody, data: bytes | None = None) -> JobSpec:
    """Turn a body into a ``JobSpec``. Raises InvalidInput. ``data``: its payload, if it was read before."""
    if data is None:
        data = bytes(body.data)
        # Payloads that may be too deep or too large get a further check; a call for each job of a bulk push would cost more.
        if len(data) > SHALLOW_BYTES and (
            data.count(b"[") + data.count(b"{") > limits.payload_depth_max or len(data) > limits.payload_bytes_max
        ):
            data = take_payload(body.data)
    in_flow = body.depends_on or body.children_ids or body.parent_id
    repeat = None if body.repeat is None else _repeat(body.repeat)
    # This test is cheaper than a call that finds nothing, and nearly all jobs have none of these.
    flagged = (
        body.lifo
        or body.remove_on_complete
        or body.remove_on_fail
        or body.durable
        or body.fail_parent_on_failure
        or body.continue_parent_on_failure
        or body.ignore_dependency_on_failure
        or body.remove_dependency_on_failure
        or repeat
    )
    backoff = body.backoff
    rare = False
    if not isinstance(backoff, int):
        backoff, rare = backoff.delay, True
    elif (
        body.dedup is not None
        or body.debounce_id is not None
        or body.debounce_ttl is not None
        or body.stall_timeout is not None
        or body.stack_trace_limit is not None
        or body.keep_logs is not None
        or body.size_limit is not None
        or body.timestamp is not None
    ):
        rare = True
    plain = JobSpec(
        data,
        _options(body, repeat, None) if in_flow or body.tags or repeat or body.name else None,
        body.priority,
        body.delay,
        body.max_attempts or body.attempts or 3,
        backoff,
        body.ttl or None,
        body.timeout or None,
        body.unique_key,
        body.job_id or body.custom_id,
        body.group_id,
        _flags(body) if flagged else 0,
        tuple(map(job_ref, (*(body.depends_on or ()), *(body.children_ids or ())))) if in_flow else (),
    )
    return _with_rules(plain, body, repeat) if rare else plain


def _with_rules(job: JobSpec, body: PushBody, repeat: RepeatRule | None) -> JobSpec:
    """Add the rules that few jobs have. Raises InvalidInput."""
    if body.size_limit is not None and len(job.data) > body.size_limit:
        raise InvalidInput(f"Job data too large: {len(job.data)} bytes, and its sizeLimit is {body.size_limit}")
    dedup = _dedup(body)
    return msgspec.structs.replace(
        job,
        options=job.options if dedup is None else _options(body, repeat, dedup),
        unique_key=body.unique_key or body.debounce_id,
        details=encoded_rules(body),
        dedup=dedup,
        timestamp=body.timestamp,
    )


def _dedup(body: PushBody) -> Dedup | None:
    """Return the options of the unique key of a push. Raises InvalidInput."""
    if body.dedup is None and body.debounce_id is None and body.debounce_ttl is None:
        return None
    if body.dedup is not None:
        if body.unique_key is None and body.debounce_id is None:
            raise InvalidInput("dedup needs a uniqueKey")
        dedup = dedup_of(body.dedup)
    elif body.debounce_id is None:
        raise InvalidInput("debounceTtl needs a debounceId")
    else:
        dedup = Dedup(body.debounce_ttl or None, extend=True, replace=True)
    if dedup.replace and (body.depends_on or body.children_ids):
        raise InvalidInput("A job that depends on others cannot replace another. Leave out dedup.replace and debounceId.")
    return dedup


def dedup_of(body: DedupBody) -> Dedup:
    """Return the options of a unique key."""
    return Dedup(body.ttl or None, body.extend, body.replace)


def base_delay(backoff: int | BackoffBody) -> int:
    """Return the wait before the first retry, ms."""
    return backoff if isinstance(backoff, int) else backoff.delay


def encoded_rules(body: PushBody | CronJobBody) -> bytes | None:
    """Return the rules for a new job, or for the jobs of a cron; None if there are none."""
    rules = Details(
        stall_timeout=body.stall_timeout or None,
        stack_limit=body.stack_trace_limit,
        keep_logs=body.keep_logs,
        size_limit=body.size_limit,
    )
    return _encoded(rules, body.backoff)


def _encoded(rules: Details, backoff: int | BackoffBody) -> bytes | None:
    if not isinstance(backoff, int):
        rules.backoff_type, rules.backoff_max = backoff.type, backoff.max_delay
    return None if rules == _NO_DETAILS else encode_details(rules)


def _repeat(body: RepeatBody) -> RepeatRule:
    expression = body.pattern if body.cron is None else body.cron
    if expression is None and body.every is None:
        raise InvalidInput("repeat must have either every or cron")
    return RepeatRule(parse(expression, body.every, body.timezone or body.tz), body.limit, body.count)


def _options(body: PushBody, repeat: RepeatRule | None, dedup: Dedup | None) -> bytes:
    options = DoorOptions(
        body.tags or [],
        body.depends_on or [],
        body.parent_id,
        body.children_ids or [],
        repeat,
        dedup,
        body.debounce_id,
        body.debounce_ttl,
        body.name,
    )
    return _encode_options(options)


def _flags(body: PushBody) -> int:
    flags = 0
    if body.lifo:
        flags |= JobFlag.LIFO
    if body.remove_on_complete:
        flags |= JobFlag.REMOVE_ON_COMPLETE
    if body.remove_on_fail:
        flags |= JobFlag.REMOVE_ON_FAIL
    if body.durable:
        flags |= JobFlag.DURABLE
    if body.fail_parent_on_failure:
        flags |= JobFlag.FAIL_PARENT
    if body.continue_parent_on_failure:
        flags |= JobFlag.CONTINUE_PARENT
    if body.ignore_dependency_on_failure:
        flags |= JobFlag.IGNORE_FAILURE
    if body.remove_dependency_on_failure:
        flags |= JobFlag.DROP_DEPENDENCY
    if body.repeat is not None:
        flags |= JobFlag.REPEATS
    return flags


def job_view(job: JobRecord, payload: Payload, queue: str) -> JobView:
    """Return the view of a job."""
    details = _NO_DETAILS if job.details is None else details_of(job)
    options = _NO_OPTIONS if payload.options is None else _decode_options(payload.options)
    view = JobView(*_columns(job, payload, queue, details, options))
    if details is not _NO_DETAILS or options is not _NO_OPTIONS or job.flags:
        _show_rare(view, job, details, options)
    return view


def dead_job_view(job: JobRecord, payload: Payload, queue: str) -> DeadJobView:
    """Return the view of a dead job."""
    return fill_view(DeadJobView, job, payload, queue, reason=details_of(job).reason, failed_at=job.finished_at)


def fill_view(shape: type[V], job: JobRecord, payload: Payload, queue: str, **more: Any) -> V:
    """Return a view that has more fields than the common one; ``more``: the additional fields."""
    details = details_of(job)
    options = _NO_OPTIONS if payload.options is None else _decode_options(payload.options)
    view = shape(*_columns(job, payload, queue, details, options), **more)
    _show_rare(view, job, details, options)
    return view


def _show_rare(view: JobView, job: JobRecord, details: Details, options: DoorOptions) -> None:
    """Add the fields that few jobs have."""
    if details.backoff_type is not None:
        view.backoff_config = BackoffView(details.backoff_type, job.backoff, details.backoff_max)
    if options.repeat is not None:
        when = options.repeat.schedule
        view.repeat = RepeatView(
            options.repeat.count,
            when.every_ms,
            when.expression,
            None if when.expression is None else when.timezone,
            options.repeat.limit,
        )
    view.stacktrace = details.stack
    view.stall_timeout = details.stall_timeout
    view.stack_trace_limit = details.stack_limit
    view.keep_logs = details.keep_logs
    view.size_limit = details.size_limit
    view.deferred_since = details.deferred_since
    if options.name is not None:
        view.name = options.name
    if options.dedup is not None:
        view.deduplication_ttl = options.dedup.ttl
        view.deduplication_extend = options.dedup.extend
        view.deduplication_replace = options.dedup.replace
    view.debounce_id = options.debounce_id
    view.debounce_ttl = options.debounce_ttl
    view.fail_parent_on_failure = job.has(JobFlag.FAIL_PARENT)
    view.remove_dependency_on_failure = job.has(JobFlag.DROP_DEPENDENCY)
    view.continue_parent_on_failure = job.has(JobFlag.CONTINUE_PARENT)
    view.ignore_dependency_on_failure = job.has(JobFlag.IGNORE_FAILURE)


def _columns(job: JobRecord, payload: Payload, queue: str, details: Details, options: DoorOptions) -> tuple[Any, ...]:
    flags = job.flags
    return (
        job.custom_id or ids.to_uuid(job.id),
        queue,
        Raw(payload.data),
        job.priority,
        job.created_at,
        job.run_at,
        job.started_at,
        job.finished_at if job.state == State.COMPLETED.value else None,
        job.attempts,
        job.max_attempts,
        job.backoff,
        None if job.expires_at is None else job.expires_at - job.created_at,
        job.timeout,
        job.progress,
        details.progress_message,
        options.tags,
        bool(flags & JobFlag.LIFO),
        bool(flags & JobFlag.REMOVE_ON_COMPLETE),
        bool(flags & JobFlag.REMOVE_ON_FAIL),
        job.unique_key,
        job.custom_id,
        job.group_id,
        job.stalls,
        STATE_NAMES[job.state],
        details.error,
        options.depends_on,
        details.parent or options.parent_id,
        options.children_ids,
    )
