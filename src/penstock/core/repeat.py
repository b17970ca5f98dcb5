"""Repeating jobs: when one completes, another one like it is pushed. The rule is stored among the options of the payload.

A repeating job has ``JobFlag.REPEATS``, so that the options of other jobs are not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.core.job import Dedup, JobFlag, JobSpec, producer_rules
from penstock.core.schedule import Schedule

if TYPE_CHECKING:
    from penstock.core.job import JobRecord, Payload


class RepeatRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job repeats. An interval counts from the completion of the previous job."""

    schedule: Schedule
    limit: int | None = None  #: number of repetitions; None: no limit
    count: int = 0  #: repetitions so far
    ttl: int | None = None  #: time-to-live of each repetition in ms, once it is due; None: as for the first job


class _Rule(NamedTuple):
    """The options of a job, with the rule."""

    options: dict[str, msgspec.Raw]
    repeat: RepeatRule


_decode_options = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_repeat = msgspec.json.Decoder(RepeatRule).decode
_decode_dedup = msgspec.json.Decoder(Dedup).decode
_encode = msgspec.json.Encoder().encode


#: Options that apply only to the first job.
_ONCE = ("depends_on", "children_ids")


def successor(job: JobRecord, payload: Payload, now_ms: int) -> JobSpec | None:
    """Return the successor of a job that has just completed; None if it was the last one."""
    rule = _rule(payload)
    if rule is None:
        return None
    options, repeat = rule
    run_at = repeat.schedule.next_after(now_ms)
    if run_at is None or (repeat.limit is not None and repeat.count >= repeat.limit):
        return None
    delay = run_at - now_ms
    ttl = job.expires_at - job.created_at if repeat.ttl is None and job.expires_at is not None else repeat.ttl
    again = msgspec.structs.replace(repeat, count=repeat.count + 1, ttl=ttl)
    return JobSpec(
        payload.data,
        _encode({name: value for name, value in options.items() if name not in _ONCE} | {"repeat": again}),
        priority=job.priority,
        delay=delay,
        max_attempts=job.max_attempts,
        backoff=job.backoff,
        ttl=None if ttl is None else delay + ttl,  # otherwise the job would expire before it is due
        timeout=job.timeout,
        unique_key=job.unique_key,
        group_id=job.group_id,
        flags=job.flags & ~JobFlag.AWAITS,
        details=producer_rules(job),
        # For as long as the first job held its key, but without replacing the job of another producer.
        dedup=Dedup(_decode_dedup(options["dedup"]).ttl) if "dedup" in options else None,
    )


def _rule(payload: Payload) -> _Rule | None:
    options = {} if payload.options is None else _decode_options(payload.options)
    return _Rule(options, _decode_repeat(options["repeat"])) if "repeat" in options else None
