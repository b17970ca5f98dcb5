"""``penstock pipeline run``, ``rebuild``, ``compact`` and ``forget``: the lake."""

from __future__ import annotations

import re
import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.lake.location import Lake
    from penstock.spark.options import Options

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
#: How long a server may take to answer at the beginning, in ms.
_PATIENCE_MS: Final = 10_000
LAKE: Final = click.option(
    "--lake",
    metavar="DIR",
    required=True,
    envvar="PENSTOCK_LAKE",
    help="the lake: a directory, or an address such as s3://…",
)
MASTER: Final = click.option("--master", metavar="MASTER", default="local[*]", help="where Spark runs; default: local[*]")
CONF: Final = click.option(
    "--conf", metavar="KEY=VALUE", multiple=True, help="a setting of Spark; may be given several times"
)


def _duration_ms(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS_S or int(found[1]) == 0:
        raise click.BadParameter(f"must be a duration such as 30s, 1m or 2h, not {text!r}")
    return int(found[1]) * _UNITS_S[found[2]] * 1000


@click.command()
@LAKE
@click.option("--url", metavar="URL", envvar="PENSTOCK_URL", default="http://127.0.0.1:6790", help="the server")
@click.option("--namespace", metavar="NAME", default="*", help="the namespace of the events; *, the default: all namespaces")
@click.option("--once", is_flag=True, help="end with the last event that the server has now")
@click.option(
    "--every",
    metavar="TIME",
    callback=_duration_ms,
    default=None,
    help="process new events this often, in one batch; default: 1m",
)
@click.option("--token-file", metavar="FILE", help="bearer token of the server; else from PENSTOCK_TOKEN")
@click.option("--api-key-file", metavar="FILE", help="key of the server; else from PENSTOCK_API_KEY")
@click.option(
    "--on-data-loss",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    help="what to do if the journal no longer has events that the lake lacks: fail, or continue with the rest",
)
@click.option(
    "--batch-events",
    metavar="N",
    type=click.IntRange(min=1),
    default=None,
    help="the most events in a batch; default: 2000000",
)
@click.option(
    "--partitions", metavar="N", type=click.IntRange(min=1), help="the least number of parts in which events are fetched"
)
@click.option("--no-upkeep", is_flag=True, help="do not run compact after every 60 batches")
@MASTER
@CONF
def run(
    lake: str,
    url: str,
    namespace: str,
    *,
    every: int | None,
    token_file: str | None,
    api_key_file: str | None,
    on_data_loss: str,
    batch_events: int | None,
    partitions: int | None,
    master: str,
    conf: tuple[str, ...],
    once: bool,
    no_upkeep: bool,
) -> None:
    """Keep a lake up to date with the history of all queues.

    SIGTERM and Ctrl-C end it after the current batch. Whenever it ends, nothing is lost or stored twice: run it again.
    """
    if once and every is not None:
        raise click.UsageError("--once and --every exclude each other")
    given = {"url": url, "table": "journal", "namespace": namespace, "failOnDataLoss": str(on_data_loss == "fail").lower()}
    given |= {} if token_file is None else {"tokenFile": token_file}
    given |= {} if api_key_file is None else {"apiKeyFile": api_key_file}
    given |= {} if partitions is None else {"minPartitions": str(partitions)}
    more: dict[str, Any] = {} if batch_events is None else {"batch_events": batch_events}
    every_ms = None if once else every or 60_000
    _go(lambda: _run(lake, given, lambda: _session(master, conf), every_ms, upkeep=not no_upkeep, **more))


@click.command()
@LAKE
@MASTER
@CONF
@click.option(
    "--lose-forgotten", is_flag=True, help="rebuild even if bronze no longer has the events of all days of silver and gold"
)
def rebuild(lake: str, master: str, conf: tuple[str, ...], *, lose_forgotten: bool) -> None:
    """Build silver and gold again from bronze. Readers see the old tables until the new ones are complete."""
    _go(lambda: _rebuild(lake, master, conf, lose_forgotten=lose_forgotten))


@click.command()
@LAKE
@click.option(
    "--keep",
    metavar="HOURS",
    type=click.IntRange(min=0),
    default=168,
    help="keep unused files for this long; default: 168",
)
def compact(lake: str, keep: int) -> None:
    """Fold partials on disk, merge small files, remove files that are not used any more.

    It may run at the same time as a pipeline, and needs no Java. With --keep 0, no reader or writer may use the lake.
    """
    _go(lambda: _compact(lake, keep))


@click.command()
@LAKE
@click.option(
    "--keep-days", metavar="N", type=click.IntRange(min=1), required=True, help="days to keep, besides today (UTC)"
)
@click.option("--dry-run", is_flag=True, help="only print what would be deleted")
def forget(lake: str, keep_days: int, *, dry_run: bool) -> None:
    """Delete the details of old days: events, attempts, and jobs that were created then. Gold stays.

    It needs no Java. No pipeline may run on the lake at the same time. The files are removed by compact, a week later.
    """
    _go(lambda: _forget(lake, keep_days, dry_run=dry_run))


def _go(work: Callable[[], None]) -> None:
    try:
        from penstock.client.errors import PenstockError  # noqa: PLC0415, other commands start without any of this
        from penstock.spark.pipeline.lake_info import LakeInvalid  # noqa: F401, PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'penstock-queue[spark]'") from error
    try:
        work()
    except PenstockError as error:
        hint = " To continue with the rest, set --on-data-loss skip." if "failOnDataLoss" in str(error) else ""
        raise click.ClickException(f"{error}{hint}") from error


def _place(address: str) -> Lake:
    from penstock.lake.location import Lake  # noqa: PLC0415

    return Lake(address)


def _found(address: str) -> Lake:
    from penstock.spark.pipeline.lake_info import LakeInvalid  # noqa: PLC0415

    lake = _place(address)
    if not lake.exists():
        raise LakeInvalid(f"There is no lake at {lake.shown}.")
    return lake


def _session(master: str, conf: tuple[str, ...]) -> SparkSession:
    from penstock.spark.session import session  # noqa: PLC0415

    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    if master.startswith("local"):
        settings["spark.driver.memory"] = "1g"  # Python does the work, with Arrow
    for each in conf:
        name, found, value = each.partition("=")
        if not found:
            raise click.UsageError(f"--conf {each}: expected KEY=VALUE")
        settings[name] = value
    click.echo("Starting Spark …", err=True)
    return session(master, name="penstock pipeline", settings=settings)


def _run(
    address: str,
    given: dict[str, str],
    start: Callable[[], SparkSession],
    every_ms: int | None,
    *,
    upkeep: bool,
    **more: Any,
) -> None:
    from penstock.client.errors import PenstockError  # noqa: PLC0415
    from penstock.spark import errors, options  # noqa: PLC0415
    from penstock.spark.pipeline import run as running  # noqa: PLC0415

    checked = options.for_batch(given)
    lake = _place(address)
    stop = threading.Event()
    with running.locked(lake):
        check_server(checked)  # before Spark, whose start is slow
        spark = start()
        _listen(stop)  # after Spark, which installs signal handlers, too
        builder = running.Builder(spark, lake, checked, **more)
        try:
            done = running.run(
                builder,
                lake,
                every_ms=every_ms,
                stop=stop,
                tell=click.echo,
                upkeep_batches=running.UPKEEP_BATCHES if upkeep else 0,
            )
        except Exception as error:
            if stop.is_set():  # Ctrl-C reaches Spark's workers as well
                click.echo("Stopped in the middle of a batch; the next run does it again.")
                return
            found = None if isinstance(error, PenstockError) else errors.ours(error)
            if found is None:
                raise
            raise found from error
        finally:
            builder.close()
            spark.stop()
    aside = f", {done.aside:,} of them put aside (bronze/quarantine)" if done.aside else ""
    click.echo(f"{lake.shown}: {done.events:,} events{aside} in {done.batches} batches, {done.seconds:.1f} s")


def check_server(options: Options) -> None:
    """Request the journal from the server. Raises PenstockError if it does not answer, refuses, or does not support it."""
    from penstock.spark.http_client import BulkClient  # noqa: PLC0415

    with BulkClient(replace(options, retry_for=_PATIENCE_MS)) as wire:
        wire.get("/bulk/journal/at", shard=0, timestamp=0)


def _listen(stop: threading.Event) -> None:
    def stop_by(number: int, _frame: object) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        click.echo("Stopping after this batch; once more to stop at once.")
        stop.set()

    signal.signal(signal.SIGTERM, stop_by)
    signal.signal(signal.SIGINT, stop_by)


def _rebuild(address: str, master: str, conf: tuple[str, ...], *, lose_forgotten: bool) -> None:
    from penstock.lake.maintenance import forgotten_before  # noqa: PLC0415
    from penstock.spark.pipeline import run as running  # noqa: PLC0415
    from penstock.spark.pipeline.build import rebuild as rebuilding  # noqa: PLC0415
    from penstock.spark.pipeline.lake_info import LakeInvalid, note_format  # noqa: PLC0415

    lake = _found(address)
    with running.locked(lake):
        first = forgotten_before(lake)
        if first is not None and not lose_forgotten:
            raise LakeInvalid(
                f"Events before {first} were deleted: silver and gold would lose the earlier days."
                " To rebuild anyway, set --lose-forgotten."
            )
        spark = _session(master, conf)
        try:
            done = rebuilding(spark, lake, tell=lambda some, total: click.echo(f"{some:,} of {total:,} events"))
        finally:
            spark.stop()
        note_format(lake)
        running.tell_derived(lake, click.echo)
    rate = done.events / done.seconds if done.seconds else 0.0
    for path, rows in done.rows.items():
        click.echo(f"{path}: {rows:,} rows, {done.took[path]:.1f} s of tasks")
    click.echo(f"{lake.shown}: {done.events:,} events in {done.seconds:.1f} s ({rate:,.0f}/s)")


def _compact(address: str, keep: int) -> None:
    from penstock.spark.pipeline import run as running  # noqa: PLC0415

    lake = _found(address)
    running.keep_up(lake, click.echo, least_files=2, keep_hours=keep)
    click.echo(f"{lake.shown}: done")


def _forget(address: str, keep_days: int, *, dry_run: bool) -> None:
    from penstock.client._clock import now_ms  # noqa: PLC0415
    from penstock.lake.maintenance import forget as forgetting  # noqa: PLC0415
    from penstock.spark.pipeline import run as running  # noqa: PLC0415

    lake = _found(address)
    with running.locked(lake):
        running.check_complete(lake)
        size = 0
        for gone in forgetting(lake, keep_days, now_ms=now_ms(), dry_run=dry_run):
            click.echo(f"{gone.table.path}: {gone.rows:,} rows in {gone.files} files, {gone.bytes / 1_000_000:,.1f} MB")
            size += gone.bytes
    would = "would be deleted" if dry_run else "are deleted; compact removes the files in a week"
    click.echo(f"{lake.shown}: {size / 1_000_000:,.1f} MB {would}")
