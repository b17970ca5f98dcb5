"""Upgrades: a store of each schema is kept, and is taken along by this version with all that is in it."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import ids
from penstock.core.clock import ManualClock
from penstock.core.cron import CronKey
from penstock.core.durability import Durability
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.engine.engine import Engine
from penstock.store.sqlite import SqliteStore, schema
from penstock.store.sqlite.store import FILE_NAME
from tests.doors.api import Api
from tests.store.sqlite.make_store import STORES
from tests.support.engines import ack, claim_all
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = sorted(int(re.findall(r"\d+", path.name)[0]) for path in STORES.glob("schema-*.db.gz"))
STATES = {
    "waiting": State.WAITING, "delayed": State.DELAYED, "active": State.ACTIVE, "completed": State.COMPLETED,
    "failed": State.DEAD, "waiting-children": State.WAITING_CHILDREN,
}  # fmt: skip


def unpack(version: int, directory: Path) -> dict[str, Any]:
    """Put a store of a schema into a data directory; return what must be found in it."""
    directory.mkdir()
    (directory / FILE_NAME).write_bytes(gzip.decompress((STORES / f"schema-{version}.db.gz").read_bytes()))
    expected: dict[str, Any] = json.loads((STORES / f"schema-{version}.json").read_text(encoding="utf-8"))
    return expected


def version_of(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute("pragma user_version").fetchone()[0])
    finally:
        db.close()


def test_there_is_a_store_of_the_current_schema() -> None:
    assert schema.SCHEMA_VERSION in VERSIONS, (
        f"The schema is at version {schema.SCHEMA_VERSION}, and tests/sqlite/stores has {VERSIONS}. Make a store that later "
        "versions are tried with, and commit the two files it writes: python -m tests.store.sqlite.make_store"
    )


@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_store_of_each_schema_is_taken_along(tmp_path: Path, version: int) -> None:
    expected = unpack(version, tmp_path / "data")
    clock = ManualClock(expected["at_ms"])
    store = await SqliteStore.open(tmp_path / "data", clock, ballast_bytes=0)
    done, held = (ids.from_uuid(expected[name]) or 0 for name in ("done", "held"))
    for text, state in expected["states"].items():
        found = await store.job_get("default", ids.from_uuid(text) or text)
        assert found is not None, text
        assert State(found[0].state) is STATES[state], text
        assert json.loads(found[1].data) == expected["data"][text]
    assert "order-1" in expected["states"]
    assert json.loads(await store.result_get(done) or b"") == {"sum": 42}
    (line,) = await store.log_get(held)
    assert line.message == "half way"
    assert await store.cron_get(CronKey("default", "nightly")) is not None
    assert [hook.url for hook in store.webhook_list()] == ["https://hooks.example/penstock"]
    engine = Engine(store, clock, durability=Durability.ALWAYS)
    taken = await claim_all(engine, queue=QueueKey("default", "q"))
    assert len(taken) == 6
    for job in taken:
        assert not await ack(engine, job)
    assert len(await claim_all(engine, queue=QueueKey("default", "flows"))) == 1  # its needs are done
    assert store.status().quarantined == 0
    await engine.close()
    await store.close()
    copies = [path.name for path in (tmp_path / "data").glob("*.schema-*")]
    assert copies == ([] if version == schema.SCHEMA_VERSION else [f"{FILE_NAME}.schema-{version}"])


def test_a_server_on_an_older_store_upgrades_it_logs_that_and_keeps_a_copy(tmp_path: Path) -> None:
    data, version = tmp_path / "data", VERSIONS[0]
    unpack(version, data)
    with ServerProcess(data) as server, server.client() as client:
        assert Api(client, "q").counts()["waiting"] == 6
    said = server.log()
    assert "Traceback" not in said
    assert "quarantine" not in said
    assert "upgrading the data file" in said
    assert "the data file was upgraded" in said
    copy = data / f"{FILE_NAME}.schema-{version}"
    assert version_of(copy) == version
    assert version_of(data / FILE_NAME) == schema.SCHEMA_VERSION
    again = tmp_path / "again"  # the copy is a whole store
    again.mkdir()
    copy.rename(again / FILE_NAME)
    with ServerProcess(again) as server, server.client() as client:
        assert Api(client, "q").counts()["waiting"] == 6


@pytest.mark.anyio
async def test_the_copy_is_kept_for_a_week_and_can_be_left_out(tmp_path: Path) -> None:
    unpack(VERSIONS[0], tmp_path / "data")
    copy = tmp_path / "data" / f"{FILE_NAME}.schema-{VERSIONS[0]}"
    store = await SqliteStore.open(tmp_path / "data", ManualClock(0), ballast_bytes=0)
    await store.close()
    made_ms = int(copy.stat().st_mtime * 1000)
    for days, kept in ((6, True), (8, False)):
        store = await SqliteStore.open(tmp_path / "data", ManualClock(made_ms + days * 86_400_000), ballast_bytes=0)
        await store.close()
        assert copy.exists() is kept
    unpack(VERSIONS[0], tmp_path / "other")
    store = await SqliteStore.open(tmp_path / "other", ManualClock(0), ballast_bytes=0, upgrade_copy=False)
    await store.close()
    assert not list((tmp_path / "other").glob("*.schema-*"))
