"""``penstock pipeline replay``: push jobs from the history or from dead letters again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.lake import check_server
from penstock.core.errors import ConfigInvalid, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

STATES: Final = ("failed", "completed", "waiting", "delayed", "active", "waiting-children")


@click.command()
@click.option("--where", required=True, metavar="SQL", help="which jobs: a condition on their columns (docs/replay.md)")
@click.option("--queue", required=True, help="the queue to push the jobs to")
@click.option(
    "--from-state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    help="jobs in this state; may be repeated; default: failed",
)
@click.option("--from-queue", "queues", multiple=True, help="jobs of this queue; may be repeated; default: all")
@click.option("--lake", metavar="DIR", help="for conditions about the past: the column history, the table attempts")
@click.option("--limit", type=click.IntRange(min=1), help="push at most this many jobs, the oldest first")
@click.option("--dry-run", is_flag=True, help="only show what would be done")
@click.option("--again", is_flag=True, help="replay even if the same replay was done in the last 7 days")
@click.option("--url", default="http://127.0.0.1:6790", show_default=True, envvar="PENSTOCK_URL", help="any server")
@click.option("--namespace", help="the namespace of the jobs; default: the key's own")
@click.option("--master", default="local[*]", show_default=True, help="where Spark runs")
def replay(*, dry_run: bool, master: str, states: Sequence[str], **given: Any) -> None:
    """Push jobs again: those of some states that a condition selects.

    The jobs stay where they are; new jobs are created with their payloads. Repeating the same command changes nothing. A
    server that requires a token gets $PENSTOCK_TOKEN or $PENSTOCK_API_KEY.
    """
    # Other commands do not import these modules.
    from penstock.client.errors import PenstockError  # noqa: PLC0415

    try:
        from penstock.spark import options  # noqa: PLC0415
        from penstock.spark import replay as work  # noqa: PLC0415
        from penstock.spark.session import prepare  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigInvalid(f"A replay needs {error.name}. Install it with: pip install 'penstock-queue[spark]'.") from None
    wish = work.ReplayRequest(states=states or ("failed",), **given)
    try:
        named = {} if wish.namespace is None else {"namespace": wish.namespace}
        check_server(options.for_batch({"url": wish.url, "table": "jobs"} | named))  # before Spark, whose start is slow
        with _session(master) as spark:
            outcome = work.look(spark, wish) if dry_run else work.replay(spark, wish)
    except PenstockError as error:
        raise ServerError(str(error)) from error
    if outcome.made_before:
        click.echo("This was done before, in the last 7 days, and is not done twice. --again does it all the same.")
    if dry_run:
        _show(outcome.rows, wish.queue, outcome.by_queue, outcome.sample)
    elif not outcome.made_before:
        click.echo(f"{outcome.rows} jobs were put on {wish.queue}." if outcome.rows else "No job matches. Nothing was done.")


def _show(rows: int, queue: str, by_queue: Sequence[tuple[str, str, int]], sample: Sequence[dict[str, Any]]) -> None:
    click.echo(f"{rows} jobs would be put on {queue}:")
    for name, state, count in by_queue:
        click.echo(f"  {count:>10}  {state} in {name}")
    if sample:
        shown = [{name: "" if value is None else str(value) for name, value in row.items()} for row in sample]
        widths = {name: max(len(name), *(len(row[name]) for row in shown)) for name in shown[0]}
        click.echo("\nThe oldest:")
        for row in [{name: name for name in widths}, *shown]:
            click.echo("  " + "  ".join(row[name].ljust(width) for name, width in widths.items()).rstrip())


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    """Use the existing session, or start one that ends with the command."""
    from penstock.spark.session import prepare, session  # noqa: PLC0415

    prepare()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    mine = SparkSession.getActiveSession() is None
    # Errors are reported here, in one sentence; Spark would print pages before it.
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    if mine:
        click.echo("Starting Spark …", err=True)
    spark = session(master, name="penstock pipeline replay", settings=quiet if mine else {})
    try:
        yield spark
    finally:
        if mine:
            spark.stop()
