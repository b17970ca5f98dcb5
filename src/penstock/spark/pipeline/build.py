"""``penstock pipeline rebuild``: silver and gold anew from bronze."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client._clock import now_ms, steady
from penstock.lake.tables import EVENTS
from penstock.lake.transform import DERIVED
from penstock.lake.writer import BATCH_MARK, is_since, mark_of, parts_of, replace_all
from penstock.spark.pipeline.tasks import remake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table
    from penstock.lake.writer import DataFile

__all__ = ["DERIVED", "Rebuilt", "rebuild"]

#: Events after which something is told.
TOLD_EVENTS: Final = 10_000_000


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild has done: how many events it took, how long, in seconds, and how many rows each table has."""

    events: int
    seconds: float
    rows: dict[str, int]
    took: dict[str, float]  #: seconds that tasks spent on each table, together


def rebuild(
    spark: SparkSession,
    lake: Lake,
    *,
    tables: Sequence[Table] = DERIVED,
    since: str | None = None,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Rebuilt:
    """Make silver and gold anew from bronze, and at the end commit each table once.

    Until then readers see the tables as they were; if it is interrupted, they stay so. ``since``: only days from this one on
    (2026-01-31); None: all. ``tell`` is called with how many events are done, and of how many. Nobody else may add to the lake
    meanwhile: see ``locked``.
    """
    began = steady()
    found = lake.open(EVENTS)
    batch = mark_of(found)
    files: dict[str, list[DataFile]] = {table.path: [] for table in tables}
    took = dict.fromkeys(files, 0.0)
    done = total = 0
    if found is not None and batch is not None:
        bronze = [part for part in parts_of(found, EVENTS) if is_since(part, since)]
        total = sum(part.rows for part in bronze)
        for some in _pieces(bronze):
            made = remake(spark, lake, [part.path for part in some], batch, files, only_batch=False)
            for path, parts in made.files.items():
                # Time that workers spent is spread over the minutes before, which may be of a day that stays as it is.
                files[path] += [part for part in parts if is_since(part, since)]
                took[path] += made.took[path]
            done += sum(part.rows for part in some)
            tell(done, total)
        for table in tables:
            replace_all(lake, table, files[table.path], marks={BATCH_MARK: batch}, now_ms=now_ms(), since=since)
    rows = {path: sum(each.rows for each in parts) for path, parts in files.items()}
    return Rebuilt(total, steady() - began, rows, took)


def _pieces(bronze: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    held: list[DataFile] = []
    for part in bronze:
        held.append(part)
        if sum(each.rows for each in held) >= TOLD_EVENTS:
            yield held
            held = []
    if held:
        yield held
