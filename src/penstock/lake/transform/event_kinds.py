"""The kinds of events, as the journal spells them. An event of another kind is quarantined."""

from __future__ import annotations

from typing import Final

#: Events of one job.
JOB_KINDS: Final = (
    "job:pushed", "job:active", "job:completed", "job:failed", "job:removed", "job:promoted", "job:progress", "job:delayed",
    "job:stalled", "job:retried", "job:discarded", "job:priority-changed", "job:data-updated", "job:delay-changed",
    "job:expired", "job:waiting", "job:released", "job:quarantined", "job:duplicated", "job:waiting-children",
    "dlq:added", "dlq:retried",
)  # fmt: skip
#: Events of a queue, a namespace, or the server.
OTHER_KINDS: Final = (
    "queue:paused", "queue:resumed", "queue:drained", "queue:cleaned", "queue:obliterated", "queue:created", "queue:removed",
    "queue:counts", "queue:idle", "queue:threshold", "flow:completed", "flow:failed", "dlq:retry-all", "dlq:purged",
    "ratelimit:set", "ratelimit:cleared", "concurrency:set", "concurrency:cleared", "ratelimit:hit", "config:stall-changed",
    "config:dlq-changed", "config:mode-changed", "config:messages-changed", "namespace:created", "namespace:deleted",
    "cron:created", "cron:deleted", "cron:fired", "cron:updated", "cron:missed", "cron:skipped", "webhook:added",
    "webhook:removed", "webhook:fired", "webhook:failed", "worker:connected", "worker:disconnected", "worker:heartbeat",
    "worker:overloaded", "worker:error", "stats:snapshot", "health:status", "storage:status", "server:started",
    "server:shutdown", "server:memory-warning", "storage:size-warning",
)  # fmt: skip
#: Events that end an attempt, with the outcome.
OUTCOMES: Final = {
    "job:completed": "completed",
    "job:failed": "failed",
    "job:stalled": "stalled",
    "job:released": "released",
}
