"""``penstock backup``: copy the store of a running or stopped server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.options import load, setting_options
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigInvalid
from penstock.core.limits import MEBIBYTE
from penstock.core.timestamps import to_rfc3339
from penstock.masking import without_password

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.store.sqlite.backup import Manifest

_POSTGRES: Final = (
    "{url} is a PostgreSQL store; penstock backup and restore are for stores in files. Use PostgreSQL's own tools: pg_dump "
    "--format=custom for one point in time, or a base backup with WAL archiving (pg_basebackup, pgBackRest) for any. Back up "
    "each shard separately. See docs/backup.md."
)


class ProgressMeter:
    """Prints the progress of a step: a line for each tenth."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._shown: tuple[str, int] | None = None

    def __call__(self, step: str, done: int, total: int) -> None:
        """Print a line if another tenth is done."""
        tenths = 10 * done // max(1, total)
        if self._shown != (step, tenths):
            self._shown = (step, tenths)
            size = f" of {total / MEBIBYTE:,.1f} MiB" if total >= MEBIBYTE else ""
            click.echo(f"{self._prefix}{step} {tenths * 10}%{size}", err=True)


def directories(config: Config) -> list[Path]:
    """Return the data directories of a configuration, in their order. Raises ConfigInvalid if a store is not a directory."""
    found = []
    for url in config.stores or (f"sqlite:{config.data}",):
        if not url.startswith("sqlite:"):
            raise ConfigInvalid(_POSTGRES.format(url=without_password(url)))
        found.append(Path(url.removeprefix("sqlite:").removeprefix("//")))
    return found


def meters(count: int) -> list[ProgressMeter]:
    """Return a meter for each of some shards."""
    return [ProgressMeter(f"shard {number}: " if count > 1 else "") for number in range(count)]


@click.command()
@click.argument("target", metavar="BACKUP", type=click.Path(path_type=Path))
@setting_options("data", "stores", "accept_loss")
def backup(target: Path, config_file: Path | None, **flags: Any) -> None:
    """Back up the store into the new directory BACKUP, while the server runs or is stopped.

    The backup is one committed point: every answer that was given before it began is in it. It is checked before this
    command ends. Run it on the machine of the server, as the same user. With several shards, each has its own point.
    """
    config = load(config_file, flags)
    found = directories(config)
    manifests, parts = asyncio.run(_take_all(found, target, accept_loss=config.accept_loss))
    for manifest, part in zip(manifests, parts, strict=True):
        click.echo(f"{part}: {describe(manifest)}")
        if manifest.contents.damaged:
            click.secho(
                f"{manifest.contents.damaged} jobs are damaged in the store: the server moves them to quarantine when it "
                "reads them. Everything else is intact.",
                fg="yellow",
                err=True,
            )


async def _take_all(found: list[Path], target: Path, *, accept_loss: bool) -> tuple[list[Manifest], list[Path]]:
    from penstock.store.sqlite.backup import parts_of, take_all  # noqa: PLC0415, other commands start without it

    manifests = take_all(found, target, SystemClock(), meters(len(found)), accept_loss=accept_loss)
    return manifests, parts_of(target)


def describe(manifest: Manifest) -> str:
    """Return a one-line description of a backup."""
    has = manifest.contents
    return (
        f"{has.rows['jobs']:,} jobs, events up to {has.journal_next - 1:,}, of {to_rfc3339(manifest.taken_at)}, "
        f"schema {has.schema}, {manifest.bytes / MEBIBYTE:,.1f} MiB, SHA-256 {manifest.sha256[:16]}…"
    )
