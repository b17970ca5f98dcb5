"""Makes the rows of a PostgreSQL store of the current schema: ``python -m tests.store.postgres.make_store``.

As ``tests.store.sqlite.make_store`` for files: a real server is filled over HTTP. All rows go to
``stores/schema-N.json.gz``, with what must be found in them. They are made once, by the change that raises the schema, and
never again.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import asyncpg

from penstock.store.postgres.migrate import sql_of
from penstock.store.postgres.schema import SCHEMA, SCHEMA_VERSION
from tests.doors.api import Api
from tests.store.sqlite.make_store import fill
from tests.support import postgres
from tests.support.server import ServerProcess

STORES = Path(__file__).parent / "stores"
# Parts of other tables are left out: their rows are those of the whole.
_TABLES = (
    "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1"
    " and c.relkind in ('r', 'p') and not c.relispartition and c.relname <> 'migrations' order by c.relname"
)
_COLUMNS = (
    "select attname, attidentity <> '' from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped"
    " and attgenerated = '' order by attnum"
)


async def dump(url: str) -> dict[str, Any]:
    """Return the rows of all tables."""
    db = await asyncpg.connect(url)
    try:
        tables = [row[0] for row in await db.fetch(_TABLES, SCHEMA)]
        text = {name: await db.fetchval(f"select jsonb_agg(to_jsonb(t)) from {SCHEMA}.{name} t") for name in tables}
        return {name: json.loads(rows) for name, rows in text.items() if rows is not None}
    finally:
        await db.close()


async def load(url: str, version: int, tables: dict[str, Any]) -> None:
    """Make the tables of a version in an empty database, and put rows into them."""
    db = await asyncpg.connect(url)
    try:
        for number in range(1, version + 1):
            async with db.transaction():
                await db.execute(sql_of(number))
        await db.execute("set session_replication_role = replica")  # as they are, in any order
        for name in [row[0] for row in await db.fetch(_TABLES, SCHEMA)]:
            await db.execute(f"delete from {SCHEMA}.{name}")
            if name not in tables:
                continue
            columns = await db.fetch(_COLUMNS, f"{SCHEMA}.{name}")
            names = ", ".join(column for column, _ in columns)
            await db.execute(
                f"insert into {SCHEMA}.{name} ({names}) overriding system value"
                f" select {names} from jsonb_populate_recordset(null::{SCHEMA}.{name}, $1::jsonb)",
                json.dumps(tables[name]),
            )
            for column, is_identity in columns:
                if is_identity:
                    sequence = f"pg_get_serial_sequence('{SCHEMA}.{name}', '{column}')"
                    await db.execute(f"select setval({sequence}, (select max({column}) from {SCHEMA}.{name}))")
    finally:
        await db.close()


def read(version: int) -> dict[str, Any]:
    """Return the store of a version: its tables, and what is expected."""
    found: dict[str, Any] = json.loads(gzip.decompress((STORES / f"schema-{version}.json.gz").read_bytes()))
    return found


def make() -> Path:
    """Make the store of the current schema; return where it is."""
    target = STORES / f"schema-{SCHEMA_VERSION}.json.gz"
    if target.exists():
        raise SystemExit(f"{target.name} is there already. A store that was made is never changed.")
    url = asyncio.run(postgres.make_database())
    try:
        with tempfile.TemporaryDirectory() as directory:
            data = Path(directory) / "data"
            with ServerProcess(data, env={"PENSTOCK_STORES": url}) as server, server.client() as client:
                expected = fill(Api(client, "q"))
        found = {"expected": expected, "tables": asyncio.run(dump(url))}
    finally:
        asyncio.run(postgres.drop_database(url))
    target.write_bytes(gzip.compress(json.dumps(found).encode(), 9, mtime=0))
    return target


if __name__ == "__main__":
    print(f"made {make()}")
