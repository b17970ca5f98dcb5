"""``penstock migrate``: show the version of the tables of a PostgreSQL store, or migrate them."""

from __future__ import annotations

import asyncio
import os

import click

from penstock import config as configuration
from penstock.core.errors import ConfigInvalid
from penstock.masking import without_password
from penstock.store.postgres import migrate as steps
from penstock.store.postgres.connect import connect
from penstock.store.postgres.schema import SCHEMA_VERSION

_store = click.option("--store", "stores", metavar="URL", multiple=True, help="the database; default: $PENSTOCK_STORES")


@click.group()
def migrate() -> None:
    """Show the version of the tables of a PostgreSQL store, or migrate them."""


@migrate.command()
@_store
def status(stores: tuple[str, ...]) -> None:
    """Show which version the tables have, and which one this Penstock needs."""
    for url in _stores(stores):
        found = asyncio.run(_status(url))
        if found.version == found.current:
            says = "up to date"
        elif found.version > found.current:
            says = "newer than this Penstock: upgrade it"
        else:
            says = "run: penstock migrate up"
        click.echo(f"{without_password(url)}: version {found.version} of {found.current}, {says}")


@migrate.command()
@_store
def up(stores: tuple[str, ...]) -> None:
    """Migrate the tables to the version that this Penstock needs. Stop servers of an older version first."""
    for url in _stores(stores):
        before = asyncio.run(_up(url))
        done = "nothing to do" if before.version == SCHEMA_VERSION else f"from version {before.version} to {SCHEMA_VERSION}"
        click.echo(f"{without_password(url)}: {done}")


@migrate.command()
@click.option("--from", "first", metavar="VERSION", type=click.IntRange(0, SCHEMA_VERSION), default=0, show_default=True)
def sql(first: int) -> None:
    """Print the statements, to apply them with another tool."""
    for version in range(first, SCHEMA_VERSION):
        click.echo(f"begin;\n{steps.sql_of(version + 1)}commit;")


def _stores(given: tuple[str, ...]) -> tuple[str, ...]:
    flags = {"stores": ",".join(given)} if given else {}
    stores = configuration.load(flags, os.environ).stores
    if not stores:
        raise ConfigInvalid("No PostgreSQL store is given. Name it with --store postgresql://HOST/DATABASE.")
    return stores


async def _status(url: str) -> steps.Status:
    db = await connect(url)
    try:
        return await steps.status(db)
    finally:
        await db.close()


async def _up(url: str) -> steps.Status:
    db = await connect(url)
    try:
        return await steps.up(db)
    finally:
        await db.close()
