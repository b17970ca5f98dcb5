"""``penstock config``: show the settings, check a file of them, or write one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from penstock import config as configuration
from penstock.cli.options import FLAGS, load, setting_options
from penstock.server.auth import jwt_keys
from penstock.server.listeners import check_tls


@click.group()
def config() -> None:
    """Show the settings, check a file of them, or write one."""


@config.command()
@click.option("--origin", is_flag=True, help="show where each comes from: default, the line of a file, $VARIABLE or --flag")
@setting_options(*FLAGS)
def show(origin: bool, config_file: Path | None, **flags: Any) -> None:
    """Show the settings that penstock serve would have with the same file, variables and flags. Secrets are hidden."""
    for line in configuration.lines_of(load(config_file, flags), origin=origin):
        click.echo(line)


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check a file of settings, together with the variables that are set."""
    loaded = configuration.load({}, os.environ, file)
    check_tls(loaded)  # reads the files that it names, like penstock serve
    jwt_keys(loaded)
    from_file = sum(where.startswith(f"{file}, line ") for where in loaded.origins.values())
    click.echo(f"{file} is fine: {from_file} settings")
    for note in loaded.notes:
        click.echo(f"  {note}")


@config.command()
def example() -> None:
    """Write a file with every setting, its description and its default, as comments."""
    for line in configuration.example(frozenset(FLAGS)):
        click.echo(line)
