"""What goes in and out of ``/insights``. Moments are wall-clock milliseconds; rows are in Arrow what they are here."""

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
    """What a question is about: ``queue`` (all unless named), ``from`` and ``to`` (not included; the last day that is known).

    ``step``: ``1m``, ``5m``, ``1h``, ``1d``; as fits unless given. ``by``: a row for each queue, for each namespace, or for
    all together.
    """

    queue: Words | None = None
    from_: Moment | None = msgspec.field(name="from", default=None)
    to: Moment | None = None
    step: Words | None = None
    by: By = "queue"
    limit: Rows | None = None


class SeriesQuery(WindowQuery, kw_only=True):
    """A window, and which columns, with commas in between (all)."""

    columns: Words | None = None


class LatencyQuery(WindowQuery, kw_only=True):
    """A window; how long what took; and which percentiles. ``whole``: those of the window as one, not step by step."""

    kind: Literal["wait", "run", "total"] = "wait"
    q: Words = "0.5,0.95,0.99"
    whole: Literal["yes", "no"] = "no"


class TableRow(msgspec.Struct):
    """A table of the lake."""

    table: str
    version: int
    written_at: int | None


class LagRow(msgspec.Struct):
    """How far the lake has read the journal of a shard. ``behind``: events that it has yet to read.

    ``replaced``: the lake is of another journal: of another server, or of this store before it was emptied or restored.
    """

    shard: int
    read_to: int
    vouched: int
    behind: int
    replaced: bool


class InsightsReply(msgspec.Struct):
    """What the lake knows, and how fresh that is."""

    ok: bool
    tables: list[TableRow]
    last_batch: int | None  #: the number of the last batch
    known_from: int | None  #: the first minute that anything happened in
    known_until: int | None  #: the end of the last one
    written_at: int | None  #: when the lake was last written
    lag_ms: int | None  #: how long that is ago
    shards: list[LagRow]  #: empty if the lake does not say how far it has read
    groups: list[GroupReply]  #: consumer groups, as in GET /bulk/groups


class QueueFiguresRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a queue did in a window."""

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
    """What queues did in a window."""

    ok: bool
    rows: list[QueueFiguresRow]
    from_: int = msgspec.field(name="from")
    to: int


class SeriesRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What happened in a step; columns that were not asked for are left out."""

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
    """What happened, step by step. A step in which nothing did has no row."""

    ok: bool
    rows: list[SeriesRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int


class LatencyRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Percentiles in milliseconds: p50, p99.9 and so on, as asked for."""

    namespace: str | None = None
    queue: str | None = None
    at: int | None = None
    n: int
    mean_ms: float | None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class LatencyReply(msgspec.Struct, omit_defaults=True):
    """Percentiles, step by step or of the whole window."""

    ok: bool
    rows: list[LatencyRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int | None = None


class FailureRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A kind of failure."""

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
    """What went wrong, the most frequent first. By whole days."""

    ok: bool
    rows: list[FailureRow]
    from_: int = msgspec.field(name="from")
    to: int


class BacklogRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many jobs were not finished at the end of a step, and how old the oldest was if they leave in order."""

    namespace: str | None = None
    queue: str | None = None
    at: int
    depth: int
    age_ms: int
    added: int
    taken: int


class BacklogReply(msgspec.Struct):
    """Depth and age, step by step."""

    ok: bool
    rows: list[BacklogRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int


class UtilisationRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How busy workers were in a step."""

    namespace: str | None = None
    queue: str | None = None
    at: int
    busy_ms: int
    attempts: int
    busy: float
    places: int | None
    utilisation: float | None


class UtilisationReply(msgspec.Struct):
    """How well workers are used, step by step."""

    ok: bool
    rows: list[UtilisationRow]
    from_: int = msgspec.field(name="from")
    to: int
    step_ms: int


class TenantRow(msgspec.Struct, kw_only=True):
    """What a namespace got. Shares are told to those who may see all namespaces."""

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
    """Jain's index: 1 if all have the same, 1/n if one of n has everything."""

    busy_ms: float | None
    completions: float | None
    served: float | None


class TenantsReply(msgspec.Struct):
    """Who got how much, and how even that is."""

    ok: bool
    rows: list[TenantRow]
    jain: Jain
    from_: int = msgspec.field(name="from")
    to: int


class ObjectiveRow(msgspec.Struct, kw_only=True):
    """How well a queue meets an objective."""

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
    """How well objectives are met, and how fast the room for errors is used up."""

    ok: bool
    rows: list[ObjectiveRow]
    from_: int = msgspec.field(name="from")
    to: int


class ForecastRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The backlog to be expected at a moment."""

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
    """The backlog to be expected, and when it will be gone."""

    ok: bool
    rows: list[ForecastRow]
    from_: int = msgspec.field(name="from")
    to: int
