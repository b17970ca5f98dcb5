"""Registers ``format("penstock")`` with Spark, which looks for ``DefaultSource`` in every top-level module ``pyspark_…``.

Every Spark session on a machine with Penstock imports this module, so it imports almost nothing.
"""

from __future__ import annotations

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
