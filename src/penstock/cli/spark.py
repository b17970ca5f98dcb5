"""``penstock spark``: check the requirements of Spark."""

from __future__ import annotations

import sys

import click


@click.group()
def spark() -> None:
    """Apache Spark: the requirements of a data pipeline."""


@spark.command()
@click.option("--url", metavar="URL", envvar="PENSTOCK_URL", help="check this server, too")
@click.option("--lake", metavar="DIR", envvar="PENSTOCK_LAKE", help="check this lake, too")
@click.option("--start", is_flag=True, help="start Spark, which takes some seconds")
def doctor(url: str | None, lake: str | None, *, start: bool) -> None:
    """Check Java, Spark and the other requirements; print each problem and its remedy. Exits with 1 if there is a problem."""
    # Other commands do not import these modules.
    from penstock.spark.doctor import examine  # noqa: PLC0415

    wrong = 0
    for each in examine(url=url, lake=lake, start=start):
        mark = click.style("ok   ", fg="green") if each.ok else click.style("WRONG", fg="red")
        click.echo(f"{mark}  {each.what:<10}  {each.text}")
        if not each.ok:
            wrong += 1
            if each.remedy:
                click.echo(f"{'':<19}{each.remedy}")
    sys.exit(1 if wrong else 0)
