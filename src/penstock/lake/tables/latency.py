"""``gold/latency``.

Waiting and running times of jobs, as histograms that can be added up: percentiles over any time and any queues.

A bucket is 2 % wide, see ``penstock.lake.histogram``; the error of a percentile is 1 % at most.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, DAY, MINUTE, NAMESPACE, QUEUE, SMALL, TEXT, Table, count, key

LATENCY: Final = Table(
    "gold",
    "latency",
    "histograms of how long jobs waited and took",
    (
        NAMESPACE,
        QUEUE,
        MINUTE,
        key(
            "kind",
            TEXT,
            "`wait`: until a worker got it (attempts completed, failed or stalled); `run`: what the attempt took (completed or"
            " failed); `total`: from the push to the completion (completed)",
        ),
        key("bucket", SMALL, "times from 1.02^bucket to 1.02^(bucket+1) ms; -1: less than a millisecond"),
        count("n", "how many"),
        count("sum_ms", "how long these were, together"),
        DAY,
        BATCH,
    ),
)
