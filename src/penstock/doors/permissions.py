"""The right that each route and command needs, for all doors and for the operators' routes, in one place.

An identity with a static token, or one that needs no token, has every right. A route or command that is not listed needs
ADMIN. A route that is not about one namespace, and a command listed under ``EVERYWHERE``, needs its right for the whole
server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.access.identity import Right

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.doors.http.route import Route

ROUTES: Final[dict[Right, tuple[str, ...]]] = {
    Right.NONE: ("GET /ping",),
    Right.LOOK: (
        "GET /jobs/{id}",
        "GET /jobs/custom/{id}",
        "GET /jobs/{id}/state",
        "GET /jobs/{id}/result",
        "GET /jobs/{id}/progress",
        "GET /jobs/{id}/children",
        "GET /jobs/{id}/logs",
        "POST /jobs/{id}/wait",
        "GET /queues",
        "GET /queues/summary",
        "GET /queues/{queue}/jobs/list",
        "GET /queues/{queue}/counts",
        "GET /queues/{queue}/count",
        "GET /queues/{queue}/priority-counts",
        "GET /queues/{queue}/paused",
        "GET /queues/{queue}/dlq",
        "GET /queues/{queue}/dlq/stats",
        "GET /queues/{queue}/rate-limit",
        "GET /queues/{queue}/concurrency",
        "GET /queues/{queue}/stall-config",
        "GET /queues/{queue}/dlq-config",
        "GET /queues/{queue}/mode",
        "GET /queues/{queue}/workers",
        "GET /workers",
        "GET /crons",
        "GET /crons/{id}",
        "GET /events",
        "GET /events/queues/{queue}",
        "GET /stats",
        "GET /metrics",
        "GET /prometheus",
        "GET /storage",
        "GET /shards",
        "GET /bulk/groups",
        "GET /dlq",
        "GET /topics",
        "GET /namespaces",
        "GET /namespaces/{ns}/queues",
        "GET /api/stats",
        "GET /api/stats/summary",
        "GET /insights",
        "GET /insights/queues",
        "GET /insights/series",
        "GET /insights/latency",
        "GET /insights/failures",
        "GET /insights/backlog",
        "GET /insights/workers",
        "GET /insights/tenants",
        "GET /insights/slo",
        "GET /insights/forecast",
        "GET /bulk",
        "POST /bulk/snapshots",
        "GET /bulk/snapshots/{id}/parts/{part}",
        "DELETE /bulk/snapshots/{id}",
        "GET /bulk/journal",
        "GET /bulk/journal/at",
    ),
    Right.PRODUCE: (
        "POST /queues/{queue}/jobs",
        "POST /queues/{queue}/jobs/bulk",
        "POST /bulk/stages/{txn}",
        "POST /bulk/stages/{txn}/abort",
        "POST /bulk/commits",
        "GET /bulk/commits/{key}",
        "POST /enqueue",
        "POST /publish/{topic}",
        "POST /namespaces/{ns}/queues/{queue}/messages",
        "POST /namespaces/{ns}/queues/{queue}/messages/batch",
    ),
    Right.TAKE: (
        "GET /queues/{queue}/jobs",
        "POST /queues/{queue}/jobs/pull-batch",
        "POST /jobs/stop-waiting",
        "POST /workers",
        "DELETE /workers/{id}",
        "POST /workers/{id}/heartbeat",
        "GET /dequeue",
        "GET /namespaces/{ns}/queues/{queue}/messages",
        "GET /namespaces/{ns}/queues/{queue}/dlq",
        "POST /bulk/groups/{group}/claim",  # all of these also need SETTLE, which their handlers check
        "GET /bulk/groups/{group}/read",
        "POST /bulk/groups/{group}/ack",
        "POST /bulk/groups/{group}/release",
        "POST /bulk/groups/{group}/heartbeat",
        "POST /subscribe/{topic}",  # also needs SETTLE, which its handler checks
    ),
    Right.SETTLE: (
        "POST /jobs/{id}/ack",
        "POST /jobs/ack-batch",
        "POST /jobs/{id}/fail",
        "POST /jobs/{id}/progress",
        "POST /jobs/{id}/heartbeat",
        "POST /jobs/heartbeat-batch",
        "POST /jobs/release-batch",
        "POST /jobs/held-batch",
        "POST /jobs/{id}/extend-lock",
        "POST /jobs/extend-locks",
        "POST /jobs/{id}/logs",
        "POST /jobs/{id}/move-to-delayed",
        "POST /ack",
        "POST /nack",
        "POST /heartbeat",
        "POST /dlq/delete",
        "DELETE /messages/{receipt}",
        "POST /messages/{receipt}/nack",
    ),
    Right.ADMIN: (
        "DELETE /jobs/{id}",
        "PUT /jobs/{id}/data",
        "PUT /jobs/{id}/priority",
        "PUT /jobs/{id}/delay",
        "POST /jobs/{id}/promote",
        "POST /jobs/{id}/move-to-wait",
        "POST /jobs/{id}/discard",
        "DELETE /jobs/{id}/logs",
        "POST /queues/{queue}/pause",
        "POST /queues/{queue}/resume",
        "POST /queues/{queue}/drain",
        "POST /queues/{queue}/obliterate",
        "POST /queues/{queue}/clean",
        "POST /queues/{queue}/promote-jobs",
        "POST /queues/{queue}/retry-completed",
        "POST /queues/{queue}/dlq/retry",
        "POST /queues/{queue}/dlq/purge",
        "PUT /queues/{queue}/rate-limit",
        "DELETE /queues/{queue}/rate-limit",
        "PUT /queues/{queue}/concurrency",
        "DELETE /queues/{queue}/concurrency",
        "PUT /queues/{queue}/stall-config",
        "PUT /queues/{queue}/dlq-config",
        "PUT /queues/{queue}/mode",
        "POST /crons",
        "DELETE /crons/{id}",
        "GET /webhooks",
        "POST /webhooks",
        "DELETE /webhooks/{id}",
        "PUT /webhooks/{id}/enabled",
        "DELETE /{topic}",
        "POST /namespaces",
        "DELETE /namespaces/{ns}",
        "POST /namespaces/{ns}/queues/{queue}",
        "DELETE /namespaces/{ns}/queues/{queue}",
        "DELETE /namespaces/{ns}/queues/{queue}/messages",
        "POST /namespaces/{ns}/queues/{queue}/dlq/replay",
        "GET /namespaces/{ns}/queues/{queue}/subscriptions",
        "POST /namespaces/{ns}/queues/{queue}/subscriptions",
        "DELETE /subscriptions/{id}",
        "POST /gc",
        "POST /shards/rebalance",
        "GET /heapstats",
        "GET /keys",  # in the namespaces of the keys, which their handlers check
        "POST /keys",
        "DELETE /keys/{id}",
    ),
}
COMMANDS: Final[dict[Right, tuple[str, ...]]] = {
    Right.NONE: ("Auth", "Hello", "Ping"),
    Right.LOOK: (
        *("GetJob", "GetJobByCustomId", "GetState", "GetResult", "GetProgress", "WaitJob", "GetLogs"),
        *("GetChildrenValues", "GetFailedChildrenValues", "GetIgnoredChildrenFailures"),
        *("ListQueues", "GetJobs", "GetJobCounts", "GetCountsPerPriority", "Count", "IsPaused", "Dlq", "GetDlqStats"),
        *("GetQueueLimits", "GetDeduplicationJobId"),
        *("GetStallConfig", "GetDlqConfig", "ListWorkers", "CronGet", "CronList"),
        *("Stats", "Metrics", "Prometheus", "StorageStatus"),
        *("SubscribeEvents", "UnsubscribeEvents", "DashboardQueues"),
        *("GetGroupJobsCount", "GetGroupActiveCount", "GetGroupsJobsCount", "GetGroupConcurrency", "GetGroupRateLimit"),
        *("GetGroupRateLimitTtl", "IsGroupPaused"),
    ),
    Right.PRODUCE: ("PUSH", "PUSHB", "PUSHF", "UpdateParent"),
    Right.TAKE: ("PULL", "PULLB", "RegisterWorker", "UnregisterWorker", "Heartbeat"),
    Right.SETTLE: (
        *("ACK", "ACKB", "FAIL", "Progress", "JobHeartbeat", "JobHeartbeatB", "ExtendLock", "ExtendLocks", "AddLog"),
        *("MoveToDelayed", "MoveToWaitingChildren"),
    ),
    Right.ADMIN: (
        *("Cancel", "Update", "ChangePriority", "Promote", "ChangeDelay", "MoveToWait", "Discard", "ClearLogs"),
        *("RemoveChildDependency", "RemoveUnprocessedChildren"),
        *("Pause", "Resume", "Drain", "Obliterate", "Clean", "PromoteJobs", "RetryCompleted", "RetryDlq", "PurgeDlq"),
        *("RemoveDlqJob", "RemoveDeduplicationKey", "RemoveJobDeduplicationKey"),
        *("RateLimit", "RateLimitClear", "SetConcurrency", "ClearConcurrency", "SetStallConfig", "SetDlqConfig"),
        *("Cron", "CronDelete", "AddWebhook", "RemoveWebhook", "ListWebhooks", "SetWebhookEnabled", "CompactMemory"),
        *("TrimEvents", "SetGroupConcurrency", "RemoveGroupConcurrency", "SetGroupRateLimit", "RemoveGroupRateLimit"),
        *("RateLimitGroup", "PauseGroup", "ResumeGroup"),
    ),
}
#: Commands of the Redis protocol. A command that is listed twice needs both rights.
RESP: Final[dict[Right, tuple[str, ...]]] = {
    Right.NONE: ("AUTH", "HELLO", "QUIT", "RESET", "PING", "ECHO", "SELECT", "CLIENT", "COMMAND"),
    Right.LOOK: ("TOPICS", "INFO"),
    Right.PRODUCE: ("PUBLISH", "PUSH"),
    Right.TAKE: ("SUBSCRIBE", "RECEIVE", "PULL"),
    Right.SETTLE: ("SUBSCRIBE", "RECEIVE", "ACK", "NACK", "BACK", "DACK", "DONE", "FAIL"),
}
EVERYWHERE: Final = frozenset(("Stats", "Metrics", "Prometheus", "StorageStatus", "CompactMemory"))

_ROUTES: Final = {name: right for right, names in ROUTES.items() for name in names}
_COMMANDS: Final = {name: right for right, names in COMMANDS.items() for name in names}


def with_rights(routes: Iterable[Route]) -> list[Route]:
    """Return the routes, each with the right that it needs."""
    return [route._replace(right=_ROUTES.get(f"{route.method} {route.path}", route.right)) for route in routes]


def command_right(name: str) -> tuple[Right, bool]:
    """Return the right that a command needs, and whether it needs it for the whole server."""
    return _COMMANDS.get(name, Right.ADMIN), name in EVERYWHERE


def resp_rights(name: str) -> tuple[Right, ...]:
    """Return the rights that a command of the Redis protocol needs."""
    return tuple(right for right, names in RESP.items() if name in names) or (Right.ADMIN,)
