"""Requests and replies of ``/insights``. Times are wall-clock ms. Rows have the same columns in Arrow."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.core import limits
from penstock.doors.bulk.groups import GroupReply

Moment = Annotated[int, Meta(ge=0, le=limits.timestamp_ms_max)]
Words = Annotated[str, Meta(max_length=limits.insight_text_chars_max)]
Rows = Annotated[int, Meta(ge=1, le=limits.insight_rows_max)]
By = Literal["queue", "namespace", "all"]


class WindowQuery(msgspec.Struct, kw_only=True):
    """A time window: ``queue`` (default: all), ``from`` and ``to`` (exclusive; default: the last day with data).

    ``step``: ``1m``, ``5m``, ``1h`` or ``1d``; by default it fits the window. ``by``: one row per queue, per namespace, or
    for all together.
    """

    queue: Words | None = None
    from_: Moment | None = msgspec.field(name="from", default=None)
    to: Moment | None = None
    step: Words | None = None
    by: By = "queue"
    limit: Rows | None = None


class SeriesQuery(WindowQuery, kw_only=True):
    """A window, and the columns, separated by commas (default: all)."""

    columns: Words | None = None


class LatencyQuery(WindowQuery, kw_only=True):
    """A window, the measured duration, and the percentiles. ``whole``: of the whole window, not per step."""

    kind: Literal["wait", "run", "total"] = "wait"
    q: Words = "0.5,0.95,0.99"
    whole: Literal["yes", "no"] = "no"


class TableRow(msgspec.Struct):
    """A table of the lake."""

    table: str
    version: int
    written_at: int | None


class LagRow(msgspec.Struct):
    """The position of the lake in the journal of a shard. ``behind``: events that it has not read yet.

    ``replaced``: the lake read another journal: of another server, or of this store before it was emptied or restored.
    """

    shard: int
    read_to: int
    vouched: int
    behind: int
    replaced: bool


class InsightsReply(msgspec.Struct):
    """The contents of the lake, and how current they are."""

    ok: bool
    tables: list[TableRow]
    last_batch: int | None  #: number of the last batch
    known_from: int | None  #: first minute with events
    known_until: int | None  #: end of the last minute with events
    written_at: int | None  #: time of the last write
    lag_ms: int | None  #: time since the last write
    shards: list[LagRow]  #: empty if the lake does not record its positions
    groups: list[GroupReply]  #: consumer groups, as in GET /bulk/groups


class QueueFiguresRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The figures of a queue in a window."""

    namespace: str | None = None
    queue: str | None = None
    arrivals: int
    completions: int
    failures: int
    retries: int
    stalls: int
    releases: int
    dead: int
    revived: int
    replayed: int
    expired: int
    removed: int
    forgotten: int
    bytes_in: int
    bytes_done: int
    waits: int
    wait_ms: int
    runs: int
    run_ms: int
    first: int
    last: int
    failure_rate: float | None
    wait_ms_mean: float | None
    run_ms_mean: float | None
    depth: int
    age_ms: int


class QueueFiguresReply(msgspec.Struct):
    """The figures of queues in a window."""

    ok: bool
    rows: list[QueueFiguresRow]
    from_: int = msgspec.field(name="from")
    to: int


class SeriesRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The figures of a step; columns that were not requested are left out."""

    namespace: str | None = None
    queue: str | None = None
    at: int
    arrivals: int = 0
    completions: int = 0
    failures: int = 0
    retries: int = 0
    stalls: int = 0
    releases: int = 0
    dead: int = 0
    revived: int = 0
    replayed: int = 0
    expired: int = 0
    removed: int = 0
    forgotten: int = 0
    bytes_in: int = 0
    bytes_done: int = 0
    waits: int = 0
    wait_ms: int = 0
    runs: int = 0
    run_ms: int = 0


class SeriesReply(msgspec.Struct):
    """Figures per step. A step without events has no row."""

    ok: bool
    rows: list[SeriesRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int


class LatencyRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Percentiles in milliseconds: p50, p99.9 and so on, as requested."""

    namespace: str | None = None
    queue: str | None = None
    at: int | None = None
    n: int
    mean_ms: float | None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class LatencyReply(msgspec.Struct, omit_defaults=True):
    """Percentiles, per step or of the whole window."""

    ok: bool
    rows: list[LatencyRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int | None = None


class FailureRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One kind of failure."""

    namespace: str | None = None
    queue: str | None = None
    fingerprint: str
    pattern: str | None
    n: int
    share: float
    first_seen: int
    last_seen: int
    example: str | None
    example_job: str | None


class FailuresReply(msgspec.Struct):
    """Failures, the most frequent first, in whole days."""

    ok: bool
    rows: list[FailureRow]
    from_: int = msgspec.field(name="from")
    to: int


class BacklogRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Unfinished jobs at the end of a step, and the age of the oldest one if jobs leave in order."""

    namespace: str | None = None
    queue: str | None = None
    at: int
    depth: int
    age_ms: int
    added: int
    taken: int


class BacklogReply(msgspec.Struct):
    """Depth and age, per step."""

    ok: bool
    rows: list[BacklogRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int


class UtilisationRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The utilisation of workers in a step."""

    namespace: str | None = None
    queue: str | None = None
    at: int
    busy_ms: int
    attempts: int
    busy: float
    places: int | None
    utilisation: float | None


class UtilisationReply(msgspec.Struct):
    """The utilisation of workers, per step."""

    ok: bool
    rows: list[UtilisationRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int


class TenantRow(msgspec.Struct, kw_only=True):
    """The use of a namespace. Shares are included only for clients that may see all namespaces."""

    namespace: str
    arrivals: int
    completions: int
    busy_ms: int
    waits: int
    wait_ms: int
    share_arrivals: float | None
    share_completions: float | None
    share_busy_ms: float | None
    served: float | None
    wait_ms_mean: float | None


class Jain(msgspec.Struct):
    """Jain's index: 1 if all use the same amount, 1/n if one of n uses everything."""

    busy_ms: float | None
    completions: float | None
    served: float | None


class TenantsReply(msgspec.Struct):
    """The use of each namespace, and how even it is."""

    ok: bool
    rows: list[TenantRow]
    jain: Jain
    from_: int = msgspec.field(name="from")
    to: int


class ObjectiveRow(msgspec.Struct, kw_only=True):
    """The attainment of an objective by a queue."""

    objective: str
    namespace: str
    queue: str
    kind: str
    within_ms: int | None
    target: float
    window_ms: int
    at: int
    jobs: int
    good: int
    attained: float | None
    budget_left: float | None
    burn_5m: float | None
    burn_30m: float | None
    burn_1h: float | None
    burn_2h: float | None
    burn_6h: float | None
    burn_1d: float | None
    burn_3d: float | None
    alarm: str | None


class ObjectivesReply(msgspec.Struct):
    """The attainment of objectives, and how fast their error budgets are used up."""

    ok: bool
    rows: list[ObjectiveRow]
    from_: int = msgspec.field(name="from")
    to: int


class ForecastRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The forecast backlog at a time."""

    namespace: str | None = None
    queue: str | None = None
    made_at: int
    at: int | None
    step_ms: int
    depth: int
    net_per_minute: float
    expected: float | None
    lowest: float | None
    highest: float | None
    model: str | None
    error: float | None
    naive_error: float | None
    drained_at: int | None
    drained_earliest: int | None
    drained_latest: int | None
    note: str | None


class ForecastReply(msgspec.Struct):
    """The forecast backlog, and when it will be empty."""

    ok: bool
    rows: list[ForecastRow]
    from_: int = msgspec.field(name="from")
    to: int
