"""``gold/slo``: the state of objectives at the end of the last run. ``objectives.yaml`` beside the tables defines them.

Without that file there is one: 99 % of jobs wait at most a minute, over 30 days, in every queue. Each run writes the whole
table.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import COUNT, MOMENT, SHARE, TEXT, Table, rows

SLO: Final = Table(
    "gold",
    "slo",
    "how well objectives are met, and how fast the error budget is used up",
    tuple(
        rows(
            ("objective", TEXT, "its name"),
            ("namespace", TEXT, "the namespace of the queue"),
            ("queue", TEXT, "the queue"),
            (
                "kind",
                TEXT,
                "`wait`, `run` or `total` as in `gold/latency`; `success`: jobs that complete, of those that ended",
            ),
            ("within_ms", COUNT, "how long it may take; none for `success`"),
            ("target", SHARE, "the share of jobs that should be good"),
            ("window_ms", COUNT, "over which"),
            ("at", MOMENT, "up to when it was measured: the end of the last minute in the lake"),
            ("jobs", COUNT, "jobs in the window"),
            ("good", COUNT, "good ones"),
            ("attained", SHARE, "their share"),
            ("budget_left", SHARE, "of the error budget: 1 is all, 0 is none, less is overspent"),
            ("burn_5m", SHARE, "how fast it was used up in the last 5 minutes: with 1, it lasts just as long as the window"),
            ("burn_30m", SHARE, "likewise, 30 minutes"),
            ("burn_1h", SHARE, "likewise, an hour"),
            ("burn_2h", SHARE, "likewise, 2 hours"),
            ("burn_6h", SHARE, "likewise, 6 hours"),
            ("burn_1d", SHARE, "likewise, a day"),
            ("burn_3d", SHARE, "likewise, 3 days"),
            ("alarm", TEXT, "`page` or `ticket` if it is used up too fast, over a long and a short time alike"),
        )
    ),
    partition=None,
    is_replaced=True,
)
