"""``penstock pipeline rebuild``: build silver and gold again from bronze."""

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

#: Events after which the progress is reported.
TOLD_EVENTS: Final = 10_000_000


@dataclass(slots=True)
class Rebuilt:
    """The result of a rebuild: the number of events, the duration in seconds, and the number of rows of each table."""

    events: int
    seconds: float
    rows: dict[str, int]
    took: dict[str, float]  #: seconds that tasks spent on each table, in sum


def rebuild(
    spark: SparkSession,
    lake: Lake,
    *,
    tables: Sequence[Table] = DERIVED,
    since: str | None = None,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Rebuilt:
    """Build silver and gold again from bronze, and commit each table once at the end.

    Until then readers see the old tables; if it is interrupted, these stay. ``since``: only days from this one on
    (2026-01-31); None: all. ``tell`` is called with the number of processed events, and of all events. No other process may
    write to the lake at the same time: see ``locked``.
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
                # The time of workers is spread over the minutes before, which may belong to a day that is not built again.
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
