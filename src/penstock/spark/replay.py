"""``penstock pipeline replay``: push jobs again that a condition selects.

Spark reads a snapshot of jobs, because only the store has payloads. With a lake, the condition may use the history, too. The
selected jobs are written as one commit whose key is derived from the request, so repeating the same request changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.client._request import path
from penstock.client.errors import NotFound, PenstockError
from penstock.spark import options as opts
from penstock.spark.errors import ours, sentence
from penstock.spark.http_client import BulkClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table

#: The header of a replayed job with the id of the original.
HEADER: Final = "penstock-replay-of"
#: The name of the jobs in conditions.
VIEW: Final = "jobs"
#: Rows of the sample.
SAMPLE: Final = 10
#: Characters of a payload or an error in the sample.
SAMPLE_CHARS: Final = 60
_SQL_TYPES: Final = {
    "string": "string",
    "int32": "int",
    "int64": "bigint",
    "double": "double",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
}


class ReplayInvalid(PenstockError, ValueError):
    """An invalid replay. The message has the reason, and the valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """A request to push jobs again.

    ``where``: a condition in SQL. ``states``: of the jobs that are searched. ``queues``: of these jobs (none: all). ``lake``:
    its location, for conditions on the history. ``limit``: jobs at most, the oldest first. ``again``: even if the same
    request was made before.
    """

    where: str
    queue: str
    url: str
    namespace: str | None = None
    states: Sequence[str] = ("failed",)
    queues: Sequence[str] = ()
    lake: str | None = None
    limit: int | None = None
    again: bool = False

    def key(self) -> str:
        """Return the key of the request's commit."""
        if self.again:
            return f"replay:{secrets.token_hex(16)}"
        said = [self.where, self.queue, self.namespace, sorted(self.states), sorted(self.queues), self.lake, self.limit]
        return f"replay:{hashlib.sha256(json.dumps(said).encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result, or the preview of it: the number of jobs, a sample of them, and whether it was done before."""

    rows: int
    made_before: bool = False
    by_queue: Sequence[tuple[str, str, int]] = ()  #: queue, state, jobs
    sample: Sequence[dict[str, Any]] = ()


def look(spark: SparkSession, wish: ReplayRequest) -> ReplayResult:
    """Return a preview of a replay. Raises ReplayInvalid."""
    _check(wish)
    with _plainly():
        return _preview(spark, wish)


def _preview(spark: SparkSession, wish: ReplayRequest) -> ReplayResult:
    chosen = choose(spark, wish).persist()
    try:
        counted = chosen.groupBy("queue", "state").count().orderBy("queue", "state").collect()
        text = f"substring(string(value), 1, {SAMPLE_CHARS}) value"
        error = f"substring(error, 1, {SAMPLE_CHARS}) error"
        rows = chosen.orderBy("created_at", "id").limit(SAMPLE)
        sample = rows.selectExpr("id", "queue", "state", "attempts", "created_at", error, text).collect()
    finally:
        chosen.unpersist()
    by_queue = [(row["queue"], row["state"], int(row["count"])) for row in counted]
    before = not wish.again and _made(wish, wish.key()) is not None
    return ReplayResult(sum(count for *_, count in by_queue), before, by_queue, [row.asDict() for row in sample])


def replay(spark: SparkSession, wish: ReplayRequest) -> ReplayResult:
    """Push the jobs, all or none, once. Raises ReplayInvalid."""
    _check(wish)
    key = wish.key()
    before = _made(wish, key)
    if before is not None:
        return ReplayResult(before, made_before=True)
    sink = _server(wish) | {"queue": wish.queue, "idempotencyKey": key}
    with _plainly():
        jobs_again(choose(spark, wish)).write.format("penstock").options(**sink).mode("append").save()
    return ReplayResult(_made(wish, key) or 0)  # no job matches: then there is no commit


def _check(wish: ReplayRequest) -> None:
    """Raise ReplayInvalid for an impossible request, before any other work."""
    if not wish.where.strip():
        raise ReplayInvalid("--where is empty. All jobs of these states: --where true")
    if wish.namespace == "*":
        raise ReplayInvalid("--namespace: jobs are put on a queue of one namespace, so name one, and not *.")


@contextmanager
def _plainly() -> Iterator[None]:
    """Reduce Spark's long errors to one sentence. Raises PenstockError; ReplayInvalid if it is about the condition."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except PySparkException as error:
        raise (ours(error) or ReplayInvalid(f"--where cannot be worked out for all jobs: {sentence(error)}.")) from error


def choose(spark: SparkSession, wish: ReplayRequest) -> DataFrame:
    """Return the jobs that match. Raises ReplayInvalid, with the columns that exist, if the condition is invalid."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415, Spark is slow to import

    source = _server(wish) | {"table": "jobs", "states": ",".join(wish.states)}
    if wish.queues:
        source["queues"] = ",".join(wish.queues)
    jobs = spark.read.format("penstock").options(**source).load()
    if wish.lake is not None:
        jobs = _with_history(spark, jobs, wish.lake)
    jobs.createOrReplaceTempView(VIEW)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # Spark logs a page for a typing error
    try:
        # With an alias, because Spark would otherwise read "where (…)" as another name of the table.
        found = spark.sql(f"select * from {VIEW} as {VIEW} where ({wish.where})")  # noqa: S608, the user's SQL is the purpose
    except AnalysisException as error:
        raise ReplayInvalid(_advice(wish, jobs.columns, error)) from error
    return found if wish.limit is None else found.orderBy("created_at", "id").limit(wish.limit)


def jobs_again(chosen: DataFrame) -> DataFrame:
    """Build the rows of jobs for the sink. Payload, priority, attempts, group and headers stay; ids and keys are in use."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    # Penstock's header comes first, so that it is found in a job that was replayed before. It then has the id of that job.
    rest = F.regexp_replace(F.trim("headers"), rf'^\{{"{HEADER}":"[^"]*",?', "{")
    ours = F.concat(F.lit(f'{{"{HEADER}":"'), F.col("id"), F.lit('"'))
    headers = F.when(F.col("headers").isNull() | (rest == "{}"), F.concat(ours, F.lit("}"))).otherwise(
        F.concat(ours, F.lit(","), F.expr("substring(rest, 2)"))
    )
    return chosen.withColumn("rest", rest).select("value", "priority", "max_attempts", "group_id", headers.alias("headers"))


def _server(wish: ReplayRequest) -> dict[str, str]:
    return {"url": wish.url} | ({} if wish.namespace is None else {"namespace": wish.namespace})


def _made(wish: ReplayRequest, key: str) -> int | None:
    """Return how many jobs a commit has; None if there is no such commit."""
    with BulkClient(opts.for_write(_server(wish), overwrite=False)) as wire:
        try:
            return int(wire.get(path("/bulk/commits/{}", key))["rows"])
        except NotFound:
            return None


def _with_history(spark: SparkSession, jobs: DataFrame, place: str) -> DataFrame:
    """Add a column ``history`` (silver/jobs) to jobs, and a view ``attempts`` for subqueries. Raises ReplayInvalid."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.lake.location import Lake  # noqa: PLC0415
    from penstock.lake.tables import ATTEMPTS, JOBS  # noqa: PLC0415

    lake = Lake(place)
    _rows(spark, lake, ATTEMPTS).createOrReplaceTempView("attempts")
    folds = {"sum": F.sum, "min": F.min, "max": F.max}
    folded = [
        (folds[each.fold](each.name) if each.fold in folds else F.max_by(each.name, F.struct(*JOBS.order))).alias(each.name)
        for each in JOBS.columns
        if each.fold != "key"
    ]
    history = _rows(spark, lake, JOBS).groupBy("namespace", F.col("job_id").alias("id")).agg(*folded)
    told = F.struct(*[name for name in history.columns if name not in ("namespace", "id")])
    return jobs.join(history.select("namespace", "id", told.alias("history")), ["namespace", "id"], "left")


def _rows(spark: SparkSession, lake: Lake, table: Table) -> DataFrame:
    """Return the rows of a table of the lake, unchanged. Raises ReplayInvalid."""
    found = lake.open(table)
    if found is None:
        raise ReplayInvalid(
            f"--lake: there is no table {table.path} in {lake.shown}. `penstock pipeline run --lake …` makes it."
        )
    ddl = ", ".join(f"`{each.name}` {_SQL_TYPES[str(each.type)]}" for each in table.columns)
    files = found.file_uris()
    if not files:
        return spark.createDataFrame([], ddl)
    return spark.read.option("basePath", lake.uri(table)).schema(ddl).parquet(*files)


def _advice(wish: ReplayRequest, columns: Sequence[str], error: Exception) -> str:
    """Return the problem of a condition, without Spark's stack."""
    more = "" if wish.lake is not None else " With --lake there are also history.… and the table attempts."
    return f"--where is no condition on jobs: {sentence(error)}. The columns are: {', '.join(columns)}.{more}"
