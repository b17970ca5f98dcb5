"""The options of a worker, checked once."""

from __future__ import annotations

from dataclasses import dataclass

#: A worker prefetches the jobs that it finishes in about this time, in seconds: enough to never wait for the server, and few
#: enough that jobs do not wait here while another worker is idle.
AHEAD_S = 0.1
#: After so many seconds without finished jobs, the measured throughput is discarded.
STALE_S = 1.0
#: Jobs per pull, per acknowledgement, per heartbeat.
BATCH_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker; see Worker. Durations in seconds."""

    queues: tuple[str, ...]
    concurrency: int
    prefetch: int
    lease: float
    heartbeat: float
    wait: float
    stop_timeout: float
    unknown_task_timeout: float
    name: str
