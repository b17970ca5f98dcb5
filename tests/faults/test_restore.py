"""Restores that are killed at every step: all shards have the old store, or all the restored one, or no server starts."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.core.clock import ManualClock
from penstock.core.errors import StorageFull
from penstock.store.sqlite import restore, restore_plan, snapshot
from tests.doors.api import Api
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from penstock.store.sqlite.backup import Progress

QUEUES = [f"q{number}" for number in range(8)]


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in args])


def quiet(_step: str, _done: int, _total: int) -> None:
    """Tell nothing."""


class Set:
    """Two shards in a directory, and a backup of them from before the second half of their jobs was pushed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shards = [root / "stores" / "a", root / "stores" / "b"]
        self.options = [word for shard in self.shards for word in ("--store", f"sqlite:{shard}")]
        self.parts = [root / "backup" / f"shard-{number}" for number in range(2)]

    def make(self) -> Set:
        with self.server() as server, server.client() as client:
            for queue in QUEUES:
                Api(client, queue).push(1)
            assert run("backup", self.root / "backup", *self.options).exit_code == 0
            for queue in QUEUES:
                Api(client, queue).push(2)
        for shard in self.shards:
            (shard / "ballast").unlink()  # it need not be copied each time
        (self.root / "stores").rename(self.root / "before")
        return self

    def again(self) -> None:
        """Put everything back as it was before the first restore."""
        shutil.rmtree(self.root / "stores", ignore_errors=True)
        shutil.copytree(self.root / "before", self.root / "stores")

    def server(self) -> ServerProcess:
        return ServerProcess(self.root / "data", *self.options)

    def jobs(self) -> list[int]:
        """Return how many jobs each shard has; -1: there is no store."""
        found = []
        for shard in self.shards:
            if not (shard / "penstock.db").exists():
                found.append(-1)
                continue
            db = sqlite3.connect(f"file:{shard / 'penstock.db'}?immutable=1", uri=True)
            found += db.execute("select count(*) from jobs").fetchone()
            db.close()
        return found

    def under_way(self) -> list[bool]:
        return [restore_plan.read(shard) is not None for shard in self.shards]


@pytest.fixture
def two(tmp_path: Path) -> Set:
    return Set(tmp_path).make()


def dies_at(step: int, root: Path, work: Callable[[], Any]) -> bool:
    """Do something in a process that dies before its step of that number below ``root``; tell whether it came that far."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 77
    try:
        steps = itertools.count()

        def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
            def step_or_die(path: Path, *args: Any, **more: Any) -> Any:
                if path.is_relative_to(root) and next(steps) == step:
                    os._exit(77)
                return real(path, *args, **more)

            return step_or_die

        for name in ("rename", "unlink", "mkdir", "rmdir"):
            setattr(Path, name, deadly(getattr(Path, name)))
        work()
        os._exit(0)
    finally:
        os._exit(1)


def put_all(two: Set) -> None:
    tells: list[Progress] = [quiet, quiet]
    restore.restore(two.parts, two.shards, ManualClock(), tells, replace=True)


def half(two: Set, first: int = 0) -> int:
    """Kill a restore when one of the shards has no store, at step ``first`` or later; return the step."""
    for step in itertools.count(first):
        two.again()
        assert dies_at(step, two.root / "stores", lambda: put_all(two))
        if -1 in two.jobs():
            return step
    raise AssertionError


def test_a_restore_that_is_killed_at_any_step_is_all_or_none(two: Set) -> None:
    two.again()
    old = two.jobs()
    put_all(two)
    new = two.jobs()
    assert [count * 2 for count in new] == old
    seen: set[str] = set()
    for step in itertools.count():
        two.again()
        if not dies_at(step, two.root / "stores", lambda: put_all(two)):
            break
        if not any(two.under_way()):  # nothing keeps a server from starting
            assert two.jobs() in (old, new)
            seen.add("old" if two.jobs() == old else "new")
            left = list((two.root / "stores").rglob("*.restoring"))
            done = run("restore", "--continue", *two.options)
            assert done.exit_code != 0
            assert ("is undone" in done.output) == bool(left), done.output
            assert not list((two.root / "stores").rglob("*.restoring"))
            continue
        seen.add("half" if two.jobs() not in (old, new) else "under way")
        done = run("restore", "--continue", *two.options)
        assert two.jobs() == (new if done.exit_code == 0 else old), done.output
        assert ("is undone" in done.output) == (done.exit_code != 0)
        assert not any(two.under_way())
        assert not list((two.root / "stores").rglob("*.restoring"))
    assert two.jobs() == new
    assert seen == {"old", "half", "under way"}


def test_going_on_may_be_killed_at_any_step_too(two: Set) -> None:
    two.again()
    put_all(two)
    new = two.jobs()
    middle = 0
    for step in itertools.count():
        middle = half(two, middle)
        if not dies_at(step, two.root / "stores", lambda: restore.complete(two.shards, ManualClock())):
            break
        if any(two.under_way()):
            assert run("restore", "--continue", *two.options).exit_code == 0
        assert two.jobs() == new
    assert two.jobs() == new


def test_no_server_starts_on_a_half_restored_set_and_the_text_says_how_to_go_on(two: Set) -> None:
    half(two)
    with pytest.raises(AssertionError, match="the server did not start"):
        two.server().start()
    log = (two.root / "data.log").read_text()
    assert "penstock restore --continue" in log
    assert "Traceback" not in log
    for command in (
        ["restore", two.root / "backup", *two.options, "--replace"],
        ["backup", two.root / "other", *two.options],
    ):
        refused = run(*command)
        assert refused.exit_code != 0
        assert "penstock restore --continue" in refused.output
    wrong = run("restore", "--continue", *two.options[2:], *two.options[:2])
    assert wrong.exit_code != 0
    assert "in the order of that restore" in wrong.output
    done = run("restore", "--continue", *two.options)
    assert done.exit_code == 0, done.output
    assert "replaced-" in done.output
    with two.server() as server, server.client() as client:
        assert [Api(client, queue).counts()["waiting"] for queue in QUEUES] == [1] * len(QUEUES)
    none = run("restore", "--continue", *two.options)
    assert none.exit_code != 0
    assert "was interrupted. Nothing was changed" in none.output


def test_if_one_shard_has_no_room_no_shard_is_changed(two: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    two.again()
    old = two.jobs()

    def check(directory: Path, _size: int) -> None:
        if directory.name == "b":
            raise StorageFull

    monkeypatch.setattr(snapshot, "check_room", check)
    assert run("restore", two.root / "backup", *two.options, "--replace").exit_code != 0
    assert two.jobs() == old
    assert not any(two.under_way())
    assert not list((two.root / "stores").rglob("*.restoring"))


def test_if_one_shard_has_a_store_no_shard_is_changed(two: Set) -> None:
    two.again()
    shutil.rmtree(two.shards[0])
    refused = run("restore", two.root / "backup", *two.options)
    assert refused.exit_code != 0
    assert "There is a store" in refused.output
    assert not (two.shards[0] / "penstock.db").exists()


def test_a_backup_is_named_or_the_restore_goes_on(tmp_path: Path) -> None:
    for words in ([], ["--continue", tmp_path / "backup"], ["--continue", "--replace"]):
        refused = run("restore", *words, "--data", tmp_path / "data")
        assert refused.exit_code == 2, refused.output


def test_a_backup_of_several_shards_is_checked_and_restored_as_a_whole(two: Set, tmp_path: Path) -> None:
    two.again()
    old, backup = two.jobs(), two.root / "backup"
    checked = run("restore", "--check", backup)  # no store is named
    assert checked.exit_code == 0, checked.output
    assert "shard-0: 4 jobs" in checked.output
    assert "shard-1: 4 jobs" in checked.output
    for options in (two.options[:2], [*two.options, "--store", f"sqlite:{tmp_path / 'third'}"]):
        refused = run("restore", backup, *options, "--replace")
        assert refused.exit_code == 2
        assert f"is a backup of 2 stores, and {len(options) // 2} are named" in refused.output
    (backup / "shard-1").rename(backup / "away")
    incomplete = run("restore", backup, *two.options[:2], "--replace")
    assert "is not complete: it has 1 of 2 shards" in incomplete.output
    (backup / "shard-0").rename(backup / "shard-1")
    assert "is not complete: shard-0 is missing" in run("restore", "--check", backup).output
    (backup / "away").rename(backup / "shard-0")
    mixed = run("restore", backup, *two.options, "--replace")
    assert "is of shard 1, not of shard 0" in mixed.output
    assert two.jobs() == old
    assert not any(two.under_way())


def test_a_backup_of_several_shards_that_fails_leaves_nothing_and_may_be_repeated(two: Set) -> None:
    two.again()
    (two.shards[1] / "penstock.db").rename(two.root / "away.db")
    target = two.root / "again"
    assert run("backup", target, *two.options).exit_code == 2
    assert not target.exists()
    assert not target.with_name("again.partial").exists()
    (two.root / "away.db").rename(two.shards[1] / "penstock.db")
    assert run("backup", target, *two.options).exit_code == 0
    assert sorted(path.name for path in target.iterdir()) == ["shard-0", "shard-1"]


def test_no_backup_is_taken_while_queues_move(two: Set) -> None:
    two.again()
    db = sqlite3.connect(two.shards[1] / "penstock.db")
    db.execute("update layout set target = 3")  # as a rebalance begins
    db.commit()
    db.close()
    refused = run("backup", two.root / "again", *two.options)
    assert refused.exit_code == 2
    assert "Queues are being moved between the shards" in refused.output
    assert not (two.root / "again").exists()
