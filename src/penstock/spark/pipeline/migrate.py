"""Migrate a lake of an earlier version to the present format.

Format 1 to 2: earlier versions took 0 as the wait of a retried attempt. The tables with waits are built again from bronze.
Where bronze has no due time of such an attempt, its wait is unknown, and is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.lake.maintenance import forgotten_before
from penstock.lake.tables import ATTEMPTS, LATENCY, MINUTES, TENANTS
from penstock.spark.pipeline.build import rebuild
from penstock.spark.pipeline.lake_info import FORMAT, note_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.lake.location import Lake

#: Tables with waits.
WITH_WAITS: Final = (ATTEMPTS, MINUTES, LATENCY, TENANTS)


def migrate(spark: SparkSession, lake: Lake, made_as: int, tell: Callable[[str], None]) -> None:
    """Build the tables again that an earlier version built differently. If this is interrupted, the next run repeats it.

    ``made_as``: the format of the lake. Days whose events were deleted stay as they are.
    """
    if made_as >= FORMAT:
        return
    since = forgotten_before(lake)
    kept = f" Days before {since} stay as they are: their events were deleted." if since else ""
    tell(
        "an earlier version made this lake, and took waits of attempts that were tried again for 0; made anew from bronze:"
        f" {', '.join(table.path for table in WITH_WAITS)}.{kept}"
    )
    rebuild(
        spark, lake, tables=WITH_WAITS, since=since, tell=lambda some, total: tell(f"{some:,} of {total:,} events made anew")
    )
    note_format(lake)
