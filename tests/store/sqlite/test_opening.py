"""Opening a data directory: one process, one version, our own file, an undamaged log."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.dependencies import Dependency, Need
from penstock.core.durability import Durability
from penstock.core.errors import ConfigInvalid, ServerError, StorageFull, StoreIncompatible, StoreLocked
from penstock.core.lifecycle import State
from penstock.core.queue import StateCounts
from penstock.engine.engine import Engine
from penstock.store.sqlite import SqliteStore, schema, snapshot, wal_check
from penstock.store.sqlite.store import FILE_NAME
from penstock.store.sync_mark_file import MARK_NAME
from tests.store.conformance.workbench import Workbench
from tests.support.engines import push_many
from tests.support.server import serve_command

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import ManualClock

pytestmark = pytest.mark.anyio


async def reopen(directory: Path, clock: ManualClock, *, accept_loss: bool = False) -> SqliteStore:
    return await SqliteStore.open(directory, clock, ballast_bytes=0, accept_loss=accept_loss)


async def test_a_second_process_is_refused_and_the_first_unharmed(
    store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    with pytest.raises(StoreLocked, match=r"Another process \(pid \d+\) uses the data directory .* choose another"):
        await reopen(tmp_path / "data", clock)
    command = serve_command(tmp_path / "data")
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "uses the data directory" in refused.stderr
    assert "Traceback" not in refused.stderr
    bench = Workbench(store, clock, lambda: reopen(tmp_path / "data", clock))
    await bench.put(count=2)
    assert store.totals() == StateCounts(waiting=2)


async def test_the_lock_is_free_again_after_closing(store: SqliteStore, tmp_path: Path, clock: ManualClock) -> None:
    other = tmp_path / "other"
    first = await reopen(other, clock)
    await first.close()
    second = await reopen(other, clock)
    await second.close()


async def test_a_file_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path, clock: ManualClock) -> None:
    opened = await reopen(tmp_path, clock)
    await opened.close()
    path = tmp_path / FILE_NAME
    with sqlite3.connect(path) as db:
        db.execute(f"pragma user_version = {schema.SCHEMA_VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        StoreIncompatible, match=r"has schema version \d+, and this Penstock supports up to \d+.*Upgrade Penstock"
    ):
        await reopen(tmp_path, clock)
    assert path.read_bytes() == before


async def test_another_programs_database_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("create table theirs (x)")
    db.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StoreIncompatible, match="is a SQLite file, but not one of Penstock's"):
        await reopen(tmp_path, clock)
    assert (tmp_path / FILE_NAME).read_bytes() == before  # not even its journal mode
    assert not (tmp_path / f"{FILE_NAME}-wal").exists()


async def test_garbage_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database" * 1_000)
    with pytest.raises(StoreIncompatible, match="cannot be read as a SQLite file"):
        await reopen(tmp_path, clock)


@pytest.mark.parametrize(
    ("name", "said"),
    [(FILE_NAME, "cannot be read: Is a directory"), ("penstock.lock", "cannot be opened: .*Is a directory")],
)
async def test_files_that_cannot_be_opened_are_explained_without_a_traceback(
    tmp_path: Path, clock: ManualClock, name: str, said: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ServerError, match=said):
        await reopen(tmp_path, clock)
    refused = subprocess.run(serve_command(tmp_path), capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


async def test_a_newer_file_names_the_copy_that_its_upgrade_made(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await reopen(tmp_path, clock)
    await opened.close()
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "create table extra (x)"))
        patched.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        opened = await reopen(tmp_path, clock)
        await opened.close()
    copy = tmp_path / f"{FILE_NAME}.schema-{schema.SCHEMA_VERSION}"
    with pytest.raises(StoreIncompatible, match=rf"Upgrade Penstock. Or go back to the copy .* rename {copy.name} to"):
        await reopen(tmp_path, clock)
    for path in (tmp_path / FILE_NAME, tmp_path / MARK_NAME):  # as the text says
        path.unlink()
    copy.rename(tmp_path / FILE_NAME)
    opened = await reopen(tmp_path, clock)
    await opened.close()


async def test_an_upgrade_without_room_for_the_copy_is_refused_before_anything_is_changed(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await reopen(tmp_path, clock)
    await opened.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "create table extra (x)"))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    monkeypatch.setattr(snapshot, "_SPARE_BYTES", 10**18)  # more than any disk has
    with pytest.raises(StorageFull, match=r"no room for a copy of it: .*PENSTOCK_UPGRADE_COPY=no"):
        await reopen(tmp_path, clock)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


async def test_a_directory_that_cannot_be_used_is_explained(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigInvalid, match=r"cannot be used: .* Choose another with --data"):
        await reopen(tmp_path / "file" / "below", clock)


async def test_a_migration_that_fails_leaves_the_old_version(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await reopen(tmp_path, clock)
    await opened.close()
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "create table extra (x); create table jobs (broken)"))
        patched.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        with pytest.raises(
            StoreIncompatible, match=r"cannot be upgraded from schema version \d+ to \d+: .* was not changed"
        ):
            await reopen(tmp_path, clock)
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        assert db.execute("pragma user_version").fetchone() == (schema.SCHEMA_VERSION,)
        assert db.execute("select count(*) from sqlite_master where name = 'extra'").fetchone() == (0,)
    db.close()
    again = await reopen(tmp_path, clock)
    await again.close()


async def test_a_migration_takes_an_old_file_along(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await reopen(tmp_path, clock)
    bench = Workbench(opened, clock, lambda: reopen(tmp_path, clock))
    await bench.put(count=3)
    await opened.close()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "create table extra (x)"))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    bench.store = await reopen(tmp_path, clock)
    assert bench.store.totals() == StateCounts(waiting=3)
    assert len(await bench.ready()) == 3
    await bench.store.close()


async def test_closing_leaves_one_tidy_file(tmp_path: Path, clock: ManualClock) -> None:
    opened = await reopen(tmp_path, clock)
    await Workbench(opened, clock, lambda: reopen(tmp_path, clock)).put(count=3)
    await opened.close()
    assert {path.name for path in tmp_path.iterdir()} <= {FILE_NAME, MARK_NAME, "penstock.lock", "ballast"}


class CrashedStore:
    """A data directory as a killed process leaves it, with its log still unread."""

    def __init__(self, source: Path, target: Path) -> None:
        target.mkdir()
        for name in (FILE_NAME, f"{FILE_NAME}-wal", "penstock.lock", MARK_NAME):
            (target / name).write_bytes((source / name).read_bytes())
        self.log = target / f"{FILE_NAME}-wal"
        self.directory = target

    def flip(self, offset: int) -> None:
        content = bytearray(self.log.read_bytes())
        content[offset] ^= 1
        self.log.write_bytes(content)


@pytest.fixture
async def crashed(tmp_path: Path, clock: ManualClock) -> CrashedStore:
    opened = await reopen(tmp_path / "running", clock)
    bench = Workbench(opened, clock, lambda: reopen(tmp_path / "running", clock))
    for _ in range(20):
        await bench.put()
    copy = CrashedStore(tmp_path / "running", tmp_path / "crashed")
    await opened.close()
    return copy


async def test_a_killed_processs_log_is_read_again(crashed: CrashedStore, clock: ManualClock) -> None:
    opened = await reopen(crashed.directory, clock)
    assert opened.totals() == StateCounts(waiting=20)
    await opened.close()


async def test_a_flipped_bit_in_the_middle_of_the_log_is_noticed(crashed: CrashedStore, clock: ManualClock) -> None:
    crashed.flip(32 + 20 * (24 + 4096) + 24 + 100)
    with pytest.raises(
        StoreIncompatible, match=r"is damaged: at least \d+ commits behind the damage would be lost.*--accept-loss"
    ):
        await reopen(crashed.directory, clock)
    opened = await reopen(crashed.directory, clock, accept_loss=True)
    assert 0 < opened.totals().waiting < 20
    await opened.close()


async def test_a_damaged_header_of_the_log_is_noticed(crashed: CrashedStore, clock: ManualClock) -> None:
    crashed.flip(2)
    with pytest.raises(StoreIncompatible, match="is damaged"):
        await reopen(crashed.directory, clock)


async def test_an_incomplete_last_commit_is_dropped_in_silence(crashed: CrashedStore, clock: ManualClock) -> None:
    content = crashed.log.read_bytes()
    crashed.log.write_bytes(content[: len(content) - 4096 - 10])
    opened = await reopen(crashed.directory, clock)
    assert opened.totals().waiting in (19, 20)
    await opened.close()


async def test_after_a_reboot_a_torn_log_is_only_worth_a_warning(crashed: CrashedStore, clock: ManualClock) -> None:
    lock = crashed.directory / "penstock.lock"
    lock.write_bytes(b'{"pid":1,"boot_id":"an earlier one","clean":false}')
    crashed.flip(32 + 20 * (24 + 4096) + 24 + 100)
    opened = await reopen(crashed.directory, clock)
    assert 0 < opened.totals().waiting < 20
    await opened.close()


async def test_most_flipped_bits_in_a_log_are_noticed(crashed: CrashedStore, clock: ManualClock, tmp_path: Path) -> None:
    """Of bits flipped anywhere before the last commit, none may drop acknowledged commits in silence."""
    size = crashed.log.stat().st_size
    last_commit = size - 8 * (24 + 4096)
    silent = 0
    for number in range(60):
        copy = CrashedStore(crashed.directory, tmp_path / f"copy{number}")
        copy.flip(40 + number * (last_commit - 40) // 60)
        try:
            opened = await reopen(copy.directory, clock)
        except StoreIncompatible:
            continue
        silent += opened.totals() != StateCounts(waiting=20)
        await opened.close()
    assert silent == 0


def test_no_log_means_nothing_lost(tmp_path: Path) -> None:
    db = apsw.Connection(":memory:")
    assert wal_check.lost_commits(db, tmp_path / FILE_NAME) == 0
    (tmp_path / f"{FILE_NAME}-wal").write_bytes(struct.pack(">8I", *[0] * 8))
    assert wal_check.lost_commits(db, tmp_path / FILE_NAME) == 0


async def test_another_program_may_read_the_file_meanwhile(tmp_path: Path, clock: ManualClock) -> None:
    """It must see that the file is in use: one that takes itself for the first cuts off the index that SQLite has mapped."""
    for _ in range(2):  # a new file, and one that is there
        store = await SqliteStore.open(tmp_path, clock, ballast_bytes=0)
        index = tmp_path / f"{FILE_NAME}-shm"
        inode = index.stat().st_ino
        track_commits = (
            "import sys, fcntl, struct; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)"
        )
        looked = subprocess.run(
            [sys.executable, "-c", track_commits, str(index)], capture_output=True, check=False, text=True
        )
        assert "BlockingIOError" in looked.stderr, looked.stderr
        assert index.stat().st_ino == inode
        await store.close()


def test_states_are_stored_by_their_numbers() -> None:
    assert {state.name: state.value for state in State} == {
        "NOWHERE": -1, "WAITING": 0, "DELAYED": 1, "ACTIVE": 2, "COMPLETED": 3, "DEAD": 4,
        "WAITING_CHILDREN": 5,
    }  # fmt: skip


@pytest.mark.parametrize(("clean", "gone"), [(False, "-wal"), (False, ""), (True, ""), (False, "emptied")], ids=str)
async def test_data_that_went_missing_is_not_taken_for_an_empty_queue(
    tmp_path: Path, clock: ManualClock, clean: bool, gone: str
) -> None:
    living = tmp_path / "living"
    opened = await reopen(living, clock)
    await Workbench(opened, clock, lambda: reopen(living, clock)).put(count=2)
    await opened.sync()
    if clean:
        await opened.close()
    killed = tmp_path / "killed"
    shutil.copytree(living, killed)
    if not clean:
        await opened.close()
    if gone == "emptied":
        (killed / FILE_NAME).write_bytes(b"")
    else:
        (killed / f"{FILE_NAME}{gone}").unlink()
    said = r"(are missing|without its log).* restore a backup with: penstock restore.* --accept-loss"
    with pytest.raises(StoreIncompatible, match=said):
        await reopen(killed, clock)
    again = await reopen(killed, clock, accept_loss=True)
    await again.close()
    await (await reopen(killed, clock)).close()


async def test_nobody_else_can_read_what_is_in_the_jobs(tmp_path: Path, clock: ManualClock) -> None:
    before = os.umask(0o022)
    try:
        opened = await reopen(tmp_path / "data", clock)
    finally:
        os.umask(before)
    for path in (tmp_path / "data").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
    await opened.close()


async def test_dependencies_of_an_older_file_are_taken_along(tmp_path: Path, clock: ManualClock) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        for step in schema.MIGRATIONS[:2]:
            db.executescript(step)
        db.execute(f"pragma application_id = {schema.APPLICATION_ID}")
        db.execute("pragma user_version = 2")
        db.execute("insert into dependencies values (7, 5, 2, 'a', x'31', null), (7, 6, 1, 'b', null, 'broken')")
    db.close()
    store = await reopen(tmp_path, clock)
    assert await store.need_list(7) == [
        Dependency(7, 5, Need.DONE, "a", b"1"),
        Dependency(7, 6, Need.FAILED, "b", None, "broken"),
    ]
    assert store.horizon.unfollowed is False
    await store.close()


async def test_a_start_that_accepts_a_loss_raises_the_epoch(crashed: CrashedStore, clock: ManualClock) -> None:
    crashed.flip(32 + 20 * (24 + 4096) + 24 + 100)
    opened = await reopen(crashed.directory, clock, accept_loss=True)
    assert opened.history.epoch == 1
    await opened.close()
    opened = await reopen(crashed.directory, clock, accept_loss=True)  # nothing was lost this time
    assert opened.history.epoch == 1
    await opened.close()


@pytest.mark.parametrize(("tells_early", "epoch"), [(True, 1), (False, 0)])
async def test_a_machine_that_went_down_raises_the_epoch_if_events_were_told_before_they_were_on_disk(
    crashed: CrashedStore, clock: ManualClock, *, tells_early: bool, epoch: int
) -> None:
    lock = crashed.directory / "penstock.lock"
    lock.write_bytes(b'{"pid":1,"boot_id":"an earlier one","used":true,"clean":false}')
    for _ in range(2):
        opened = await SqliteStore.open(crashed.directory, clock, tells_early=tells_early, ballast_bytes=0)
        assert opened.history.epoch == epoch
        await opened.close()


async def test_a_program_that_reads_the_file_holds_up_neither_a_stop_nor_a_start(tmp_path: Path, clock: ManualClock) -> None:
    """A backup, for example: the log stays where it is, and nothing is missed."""
    store = await reopen(tmp_path, clock)
    bench = Workbench(store, clock, lambda: reopen(tmp_path, clock))
    await bench.put(count=3)
    reading = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('begin');"
        " print(db.execute('select count(*) from jobs').fetchone()[0], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", reading, str(tmp_path / FILE_NAME)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "3\n"
        await bench.put(count=2)
        await store.close()
        assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size > 0
        for _ in range(2):
            bench.store = await reopen(tmp_path, clock)
            assert bench.store.totals() == StateCounts(waiting=5)
            await bench.store.close()
        reader.communicate("")
    bench.store = await reopen(tmp_path, clock)
    assert bench.store.totals() == StateCounts(waiting=5)
    await bench.store.close()
    assert not (tmp_path / f"{FILE_NAME}-wal").exists()


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("lost", [False, True])
async def test_a_log_that_another_program_moved_into_the_file_is_told_from_one_that_is_lost(
    tmp_path: Path, clock: ManualClock, durability: Durability, lost: bool
) -> None:
    always = durability is Durability.ALWAYS
    opened = await SqliteStore.open(tmp_path / "living", clock, tells_early=not always, ballast_bytes=0)
    engine = Engine(opened, clock, durability=durability)
    await push_many(engine, 2)
    shutil.copytree(tmp_path / "living", tmp_path / "killed")
    await engine.close()
    await opened.close()
    killed = tmp_path / "killed"
    if lost:
        (killed / f"{FILE_NAME}-wal").unlink()
    else:
        track_commits = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('select 1 from jobs'); db.close()"
        )
        subprocess.run([sys.executable, "-c", track_commits, str(killed / FILE_NAME)], check=True)
        assert not (killed / f"{FILE_NAME}-wal").exists()
    if lost or not always:  # without a sync for each answer, more may have been answered than the mark knows
        with pytest.raises(StoreIncompatible, match="without its log"):
            await reopen(killed, clock)
        return
    opened = await reopen(killed, clock)
    assert opened.totals() == StateCounts(waiting=2)
    await opened.close()
