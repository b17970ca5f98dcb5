"""What makes ``format("penstock")`` known to Spark: it looks for ``DefaultSource`` in every top-level module ``pyspark_…``.

Every Spark session on a machine with Penstock imports this, so it imports next to nothing itself.
"""

from __future__ import annotations

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
