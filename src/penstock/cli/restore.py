"""``penstock restore``: check a backup, and restore it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.backup import ProgressMeter, describe, directories, meters
from penstock.cli.options import load, setting_options
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from penstock.store.sqlite.restore import Restored


@click.command()
@click.argument("source", metavar="[BACKUP]", required=False, type=click.Path(path_type=Path))
@setting_options("data", "stores")
@click.option("--check", is_flag=True, help="only check the backup; nothing is written")
@click.option("--replace", is_flag=True, help="move an existing store into a directory replaced-TIME beside the new one")
@click.option("--continue", "go_on", is_flag=True, help="complete a restore that was interrupted; without BACKUP")
def restore(source: Path | None, config_file: Path | None, *, check: bool, replace: bool, go_on: bool, **flags: Any) -> None:
    """Restore the store from the backup in the directory BACKUP. Stop the server first.

    The backup is checked before and after; of several shards, all are restored or none. Changes after the backup are not in
    it: jobs that were finished since then are delivered again, and jobs that were pushed since then are lost.
    """
    from penstock.store.sqlite import backup as backups  # noqa: PLC0415, other commands start without it

    found = directories(load(config_file, flags))
    if go_on:
        if source is not None or check or replace:
            raise click.UsageError("--continue takes no other options. All that it needs is in the directory of the store.")
        for directory, replaced in zip(found, asyncio.run(_complete_all(found)), strict=True):
            _tell(directory, "the restore is complete", replaced)
        return
    if source is None:
        raise click.UsageError("Name the directory of the BACKUP, or set --continue after a restore that was interrupted.")
    parts = backups.parts_of(source)
    if check:
        for part in parts:
            click.echo(f"{part}: {describe(backups.verify(part, ProgressMeter()))}")
        return
    for part in parts:
        backups.read_manifest(part)  # all exist, before the first one is prepared
    if len(parts) != len(found):
        raise ConfigInvalid(
            f"{source} is a backup of {len(parts)} stores, and {len(found)} are named. Name the stores of all shards with "
            "--store, in their order. Nothing was changed."
        )
    outcomes = asyncio.run(_restore_all(parts, found, replace=replace))
    for outcome, directory in zip(outcomes, found, strict=True):
        _tell(directory, describe(outcome.manifest), outcome.replaced)


def _tell(directory: Path, what: str, replaced: Path | None) -> None:
    click.echo(f"{directory}: {what}")
    if replaced is not None:
        click.echo(f"The store that was there is in {replaced}. Remove it when you do not need it any more.")


async def _restore_all(parts: list[Path], found: list[Path], *, replace: bool) -> list[Restored]:
    from penstock.store.sqlite.restore import restore as put  # noqa: PLC0415

    return put(parts, found, SystemClock(), meters(len(found)), replace=replace)


async def _complete_all(found: list[Path]) -> list[Path | None]:
    from penstock.store.sqlite.restore import complete  # noqa: PLC0415

    return complete(found, SystemClock())
