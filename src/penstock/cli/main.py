"""The command ``penstock`` and the code that all its subcommands share."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

from penstock import __version__
from penstock.cli.miniqueue import Translating
from penstock.core.errors import ServerError
from penstock.masking import masked

#: Each is a module of this package, with a command of the same name.
COMMANDS: Final = ("backup", "config", "keys", "migrate", "pipeline", "restore", "serve", "shards", "spark", "worker")


class _Group(Translating, click.Group):
    """Imports a subcommand when it is used, and shows Penstock's errors as advice instead of a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002, click's
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(f"penstock.cli.{cmd_name}"), cmd_name)
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ServerError as error:
            click.secho(f"penstock: {masked(str(error))}", fg="red", err=True)
            sys.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="penstock")
def main() -> None:
    """A queue server: push a job now, and a worker gets it when it is due."""
