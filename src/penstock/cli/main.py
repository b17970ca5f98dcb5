"""The command ``penstock`` and what all its parts share."""

from __future__ import annotations

import sys

import click

from penstock import __version__
from penstock.cli.config import config
from penstock.cli.keys import keys
from penstock.cli.migrate import migrate
from penstock.cli.pipeline import pipeline
from penstock.cli.serve import serve
from penstock.cli.shards import shards
from penstock.cli.spark import spark
from penstock.cli.worker import worker
from penstock.core.errors import PenstockError


class _Group(click.Group):
    """Shows errors of ours as what they are: advice, not a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            click.secho(f"penstock: {error}", fg="red", err=True)
            sys.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="penstock")
def main() -> None:
    """A queue server: push a job now, and a worker gets it when it is due."""


main.add_command(serve)
main.add_command(config)
main.add_command(keys)
main.add_command(migrate)
main.add_command(pipeline)
main.add_command(shards)
main.add_command(spark)
main.add_command(worker)
