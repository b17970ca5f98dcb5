"""How many finished jobs and events are kept."""

from __future__ import annotations

import msgspec

from penstock.core import limits


class Retention(msgspec.Struct, frozen=True):
    """Limits of the history that is kept. When one of them is reached, the oldest entries are removed."""

    completed_max: int = 50_000  #: completed jobs per queue, with their results
    completed_age_ms: int = 7 * limits.DAY_MS
    journal_bytes_max: int = 256 * limits.MEBIBYTE
    journal_age_ms: int = 7 * limits.DAY_MS
