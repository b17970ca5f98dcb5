"""``penstock pipeline``: commands for Spark and the lake."""

from __future__ import annotations

import click

from penstock.cli.lake import compact, forget, rebuild, run
from penstock.cli.replay import replay
from penstock.cli.report import report


@click.group()
def pipeline() -> None:
    """The data pipeline on Apache Spark."""


pipeline.add_command(compact)
pipeline.add_command(forget)
pipeline.add_command(rebuild)
pipeline.add_command(replay)
pipeline.add_command(report)
pipeline.add_command(run)
