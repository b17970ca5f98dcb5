"""Upgrades of databases: the rows of each schema are kept, and are taken along by ``penstock migrate up``."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.core import ids
from penstock.core.clock import SystemClock
from penstock.core.cron import CronKey
from penstock.core.lifecycle import State
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.schema import SCHEMA_VERSION
from tests.store.postgres.make_store import STORES, load, read
from tests.store.sqlite.test_stores import STATES
from tests.support import postgres
from tests.support.server import serve_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSIONS = sorted(int(re.findall(r"\d+", path.name)[0]) for path in STORES.glob("schema-*.json.gz"))


def test_there_are_rows_of_the_current_schema() -> None:
    assert SCHEMA_VERSION in VERSIONS, (
        f"The schema of PostgreSQL stores is at version {SCHEMA_VERSION}, and tests/postgres/stores has {VERSIONS}. Make the "
        "rows that later versions are tried with, and commit the file: python -m tests.store.postgres.make_store"
    )


@pytest.fixture
def fresh() -> Iterator[str]:
    url = asyncio.run(postgres.make_database())
    yield url
    asyncio.run(postgres.drop_database(url))


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_each_schema_are_taken_along(fresh: str, tmp_path: Path, version: int) -> None:
    found = read(version)
    asyncio.run(load(fresh, version, found["tables"]))
    if version < SCHEMA_VERSION:
        command = [*serve_command(tmp_path), "--store", fresh]
        refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 2
        assert f"has schema version {version}, this Penstock needs {SCHEMA_VERSION}. Stop the servers" in refused.stderr
        assert "penstock migrate up" in refused.stderr
        assert "Traceback" not in refused.stderr
    migrated = CliRunner().invoke(main, ["migrate", "up", "--store", fresh])
    assert migrated.exit_code == 0, migrated.output
    asyncio.run(check(fresh, found["expected"]))


async def check(url: str, expected: dict[str, dict[str, object]]) -> None:
    store = await PostgresStore.open(url, SystemClock())
    try:
        for text, state in expected["states"].items():
            found = await store.job_get("default", ids.from_uuid(text) or text)
            assert found is not None, text
            assert State(found[0].state) is STATES[str(state)], text
            assert json.loads(found[1].data) == expected["data"][text]
        assert json.loads(await store.result_get(ids.from_uuid(str(expected["done"])) or 0) or b"") == {"sum": 42}
        assert await store.cron_get(CronKey("default", "nightly")) is not None
        assert [hook.url for hook in store.webhook_list()] == ["https://hooks.example/penstock"]
        assert store.status().quarantined == 0
    finally:
        await store.close()
