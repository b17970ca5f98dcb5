"""``gold/forecast``: the forecast of the backlog of each queue, with its error. Each run writes the whole table.

The error is measured: the same model had to forecast the last third of the data. A queue with too little data has one row
with a note, and no forecast.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import COUNT, MOMENT, SHARE, TEXT, Table, rows

FORECAST: Final = Table(
    "gold",
    "forecast",
    "the expected backlog, and when it will be empty",
    tuple(
        rows(
            ("namespace", TEXT, "the namespace of the queue"),
            ("queue", TEXT, "the queue"),
            ("made_at", MOMENT, "the end of what it was made from"),
            ("at", MOMENT, "the time of the forecast"),
            ("step_ms", COUNT, "the length of a step"),
            ("depth", COUNT, "the backlog at `made_at`"),
            ("net_per_minute", SHARE, "by how many jobs a minute it grew in the last 15 minutes; less than 0: it shrank"),
            ("expected", SHARE, "the expected backlog"),
            ("lowest", SHARE, "between this …"),
            ("highest", SHARE, "… and this, in nine cases of ten"),
            ("model", TEXT, "`last-value`, `holt-damped` or `holt-winters`: the one with the smallest error"),
            ("error", SHARE, "by how many jobs it was off, on average, when it was tried on the past"),
            ("naive_error", SHARE, 'by how many the model "no change" was off'),
            ("drained_at", MOMENT, "when the backlog will be empty, if that is within the forecast"),
            ("drained_earliest", MOMENT, "likewise, by the lower bound"),
            ("drained_latest", MOMENT, "likewise, by the upper bound"),
            ("note", TEXT, "why there is no forecast"),
        )
    ),
    partition=None,
    is_replaced=True,
)
