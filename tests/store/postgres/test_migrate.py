"""The tables of a PostgreSQL store: made where there is nothing, never changed by merely starting a server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigInvalid, StorageFailed, StoreIncompatible
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.schema import SCHEMA_VERSION
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


async def version(url: str, number: int) -> None:
    db = await asyncpg.connect(url)
    await db.execute("insert into penstock.migrations (version) values ($1)", number)
    await db.close()


async def test_a_newer_database_is_left_alone(shard: str) -> None:
    await (await PostgresStore.open(shard, SystemClock())).close()
    await version(shard, SCHEMA_VERSION + 1)
    with pytest.raises(StoreIncompatible, match=r"Upgrade Penstock, or restore a backup .* Nothing was changed"):
        await PostgresStore.open(shard, SystemClock())


async def test_a_database_that_is_not_there_and_one_that_is_down_are_told_apart(shard: str) -> None:
    with pytest.raises(ConfigInvalid, match="does not exist"):
        await PostgresStore.open(postgres.url_of("nothing_there"), SystemClock())
    with pytest.raises(StorageFailed, match="cannot be reached"):
        await PostgresStore.open("postgresql://127.0.0.1:1/x", SystemClock())


@pytest.mark.parametrize("there", [True, False], ids=["tables", "nothing"])
async def test_a_user_without_rights_is_refused_with_the_reason(shard: str, there: bool) -> None:
    if there:
        await (await PostgresStore.open(shard, SystemClock())).close()
    name = f"weak_{uuid.uuid4().hex[:12]}"
    operator = await asyncpg.connect(shard)
    await operator.execute(f"create role {name} login")
    try:
        parts = urlsplit(shard)
        weak = urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
        with pytest.raises(ConfigInvalid, match=r"has no permission for this: permission denied .* Nothing was changed"):
            await PostgresStore.open(weak, SystemClock())
    finally:
        await operator.execute(f"drop role {name}")
        await operator.close()


@pytest.fixture
def fresh() -> Iterator[str]:
    import asyncio

    url = asyncio.run(postgres.make_database())
    yield url
    asyncio.run(postgres.drop_database(url))


def run(*args: str) -> str:
    result = CliRunner().invoke(main, ["migrate", *args])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line(fresh: str) -> None:
    assert f"version 0 of {SCHEMA_VERSION}, run: penstock migrate up" in run("status", "--store", fresh)
    assert f"from version 0 to {SCHEMA_VERSION}" in run("up", "--store", fresh)
    assert "up to date" in run("status", "--store", fresh)
    assert "nothing to do" in run("up", "--store", fresh)


def test_the_printed_statements_make_the_same_tables(fresh: str) -> None:
    import asyncio

    async def apply() -> None:
        db = await asyncpg.connect(fresh)
        await db.execute(run("sql"))
        await db.close()

    asyncio.run(apply())
    assert "up to date" in run("status", "--store", fresh)


def test_passwords_are_not_shown() -> None:
    result = CliRunner().invoke(main, ["migrate", "status", "--store", "postgresql://me:secret@127.0.0.1:1/x"])
    assert result.exit_code == 2
    assert "secret" not in result.output
