"""Times as counts in buckets that are 2 % wide.

Counts of different hours, queues and batches can be added, percentiles cannot.

Bucket ``b`` holds times from ``1.02 ** b`` up to ``1.02 ** (b + 1)`` milliseconds; BELOW holds those of less than one. The
middle of a bucket is at most 1 % away from each of its times. Below 50 ms a bucket has at most one whole number of
milliseconds, which is then exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The end of a bucket, divided by its beginning.
WIDTH: Final = 1.02
LOG_WIDTH: Final = math.log(WIDTH)
#: The bucket of times below a millisecond.
BELOW: Final = -1


def bucket_of(ms: float) -> int:
    """Return the bucket of a time in milliseconds."""
    return BELOW if ms < 1 else math.floor(math.log(ms) / LOG_WIDTH)


def value_of(bucket: int) -> float:
    """Return the milliseconds that represent a bucket: its only whole number, or its middle."""
    if bucket < 0:
        return 0.0
    whole = math.ceil(WIDTH**bucket - 1e-9)
    if bucket_of(whole) == bucket != bucket_of(whole + 1):
        return float(whole)
    return float(WIDTH ** (bucket + 0.5))


def add(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sum of histograms."""
    total: dict[int, int] = {}
    for each in histograms:
        for bucket, count in each.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the time that ``share`` (0 to 1) of all times do not exceed, in ms; None if there are none. Error: 1 % at most."""
    return percentiles(counts, (share,))[0]


def percentiles(counts: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """Return several percentiles; see ``percentile``."""
    total = sum(counts.values())
    if total == 0:
        return [None] * len(shares)
    found: list[float | None] = []
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(f"A percentile must be a share from 0 to 1, not {share}")
        rank, passed = max(1, math.ceil(share * total)), 0
        for bucket in sorted(counts):
            passed += counts[bucket]
            if passed >= rank:
                found.append(value_of(bucket))
                break
    return found
