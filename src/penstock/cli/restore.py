"""``penstock restore``: check a backup, and put it in place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.backup import Meter, describe, directories, part_of
from penstock.cli.options import load, setting_options
from penstock.core.clock import SystemClock

if TYPE_CHECKING:
    from penstock.store.sqlite.restore import Restored


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@setting_options("data", "stores")
@click.option("--check", is_flag=True, help="only check the backup; nothing is written")
@click.option("--replace", is_flag=True, help="move a store that is there into a directory replaced-TIME beside the new one")
def restore(source: Path, config_file: Path | None, *, check: bool, replace: bool, **flags: Any) -> None:
    """Put the backup in the directory BACKUP in place as the store. Stop the server first.

    All of it is checked before and after. What happened since the backup is not in it: jobs that were finished since are
    delivered again, and jobs that were pushed since are gone.
    """
    from penstock.store.sqlite import backup as backups  # noqa: PLC0415, other commands start without it

    found = directories(load(config_file, flags))
    parts = [part_of(source, number, len(found)) for number in range(len(found))]
    if check:
        for part in parts:
            click.echo(f"{part}: {describe(backups.verify(part, Meter()))}")
        return
    for part in parts:
        backups.read_manifest(part)  # all are there, before the first one is put in place
    outcomes = asyncio.run(_restore_all(parts, found, replace=replace))
    for outcome, directory in zip(outcomes, found, strict=True):
        click.echo(f"{directory}: {describe(outcome.manifest)}")
        if outcome.replaced is not None:
            click.echo(f"The store that was there is in {outcome.replaced}. Remove it when you do not need it any more.")


async def _restore_all(parts: list[Path], found: list[Path], *, replace: bool) -> list[Restored]:
    from penstock.store.sqlite.restore import restore as put  # noqa: PLC0415

    clock = SystemClock()
    return [put(part, directory, clock, Meter(), replace=replace) for part, directory in zip(parts, found, strict=True)]
