"""Backups of a server that goes on, or dies meanwhile: a committed point, checked, and put back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.core.clock import ManualClock
from penstock.core.errors import BackupInvalid
from penstock.store.sqlite import backup
from tests.doors.api import Api
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

PENSTOCK = [sys.executable, "-m", "penstock"]


def quiet(_step: str, _done: int, _total: int) -> None:
    """Tell nobody."""


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in args])


def fill(server: ServerProcess, count: int, data: str = "x") -> set[str]:
    with server.client() as client:
        reply = Api(client, "q").ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": data}] * count})
        return set(reply["ids"])


def waiting(server: ServerProcess) -> int:
    with server.client() as client:
        return int(Api(client, "q").counts()["waiting"])


class Load:
    """Threads that push and pull until they are stopped, and know what was answered."""

    def __init__(self, server: ServerProcess) -> None:
        self.answered: list[str] = []
        self.stopping = threading.Event()
        self.enough = threading.Event()
        self._threads = [threading.Thread(target=self._push, args=(server,)) for _ in range(2)]
        self._threads.append(threading.Thread(target=self._pull, args=(server,)))
        for thread in self._threads:
            thread.start()

    def _push(self, server: ServerProcess) -> None:
        with server.client() as client:
            api = Api(client, "q")
            while not self.stopping.is_set():
                self.answered.append(api.push("y" * 500))
                if len(self.answered) >= 50:
                    self.enough.set()

    def _pull(self, server: ServerProcess) -> None:
        with server.client() as client:
            api = Api(client, "q")
            while not self.stopping.is_set():
                reply = api.ok("GET", "{q}/jobs")
                if reply["job"] is not None:
                    api.ok("POST", f"/jobs/{reply['job']['id']}/ack", {"token": reply["token"]})

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()


def test_a_backup_under_load_has_everything_that_was_answered_before_and_is_put_back(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        answered = fill(server, 2_000, "x" * 300)
        load = Load(server)
        try:
            assert load.enough.wait(60)
            answered |= set(load.answered)
            taken = subprocess.run(
                [*PENSTOCK, "backup", str(tmp_path / "backup"), "--data", str(tmp_path / "data")],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        finally:
            load.stop()
        assert taken.returncode == 0, taken.stderr
        assert "copied 100%" in taken.stderr
        assert "checked 100%" in taken.stderr
        assert len(load.answered) > len(answered) - 2_000  # pushes went on meanwhile
        server.kill()
    manifest = json.loads((tmp_path / "backup" / "manifest.json").read_text())
    assert manifest["contents"]["rows"]["jobs"] >= len(answered)
    done = run("restore", tmp_path / "backup", "--data", tmp_path / "restored")
    assert done.exit_code == 0, done.output
    with ServerProcess(tmp_path / "restored") as server, server.client() as client:
        api = Api(client, "q")
        for job_id in sorted(answered)[:: max(1, len(answered) // 400)]:
            assert api.state(job_id) in ("waiting", "active", "completed")
        counts = api.counts()
        assert sum(counts.get(each, 0) for each in ("waiting", "active", "completed", "prioritized")) >= len(answered)
    assert "Traceback" not in server.log()


def test_a_backup_is_one_point_and_a_server_that_dies_meanwhile_loses_nothing(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    seen: list[tuple[int, int]] = []

    def during(step: str, done: int, total: int) -> None:
        if step == "copied" and not seen:
            seen.append((done, total))
            fill(server, 7)
            server.kill()

    try:
        server.start()
        fill(server, 1_000, "x" * 8_000)  # more than one step of the copy
        manifest = backup.take(tmp_path / "data", tmp_path / "backup", ManualClock(), during)
        assert seen[0][0] < seen[0][1]
        assert manifest.contents.rows["jobs"] == 1_000
        assert backup.verify(tmp_path / "backup", quiet) == manifest
        server.start()
        assert waiting(server) == 1_007
    finally:
        server.stop()


def test_a_stopped_and_a_crashed_store_are_backed_up_and_left_as_they_are(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fill(server, 5)
        server.kill()
    names = ("penstock.db", "penstock.db-wal", "penstock.mark")
    before = [(tmp_path / "data" / name).read_bytes() for name in names]
    assert run("backup", tmp_path / "crashed", "--data", tmp_path / "data").exit_code == 0
    assert [(tmp_path / "data" / name).read_bytes() for name in names] == before
    with ServerProcess(tmp_path / "data"):
        pass
    content = (tmp_path / "data" / "penstock.db").read_bytes()
    assert run("backup", tmp_path / "stopped", "--data", tmp_path / "data").exit_code == 0
    assert (tmp_path / "data" / "penstock.db").read_bytes() == content
    for name in ("crashed", "stopped"):
        assert backup.verify(tmp_path / name, quiet).contents.rows["jobs"] == 5
    (tmp_path / "cut").mkdir()
    for name, kept in zip(names, before, strict=True):
        (tmp_path / "cut" / name).write_bytes(kept[:1000] if name.endswith("-wal") else kept)
    refused = run("backup", tmp_path / "none", "--data", tmp_path / "cut")
    assert refused.exit_code == 2
    assert "is behind what was answered" in refused.output
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "none.partial").exists()


def test_what_another_backup_has_written_so_far_is_left_alone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data"):
        (tmp_path / "backup.partial").mkdir()
        refused = run("backup", tmp_path / "backup", "--data", tmp_path / "data")
    assert refused.exit_code == 2
    assert "another backup is being written, or one was interrupted" in refused.output
    assert (tmp_path / "backup.partial").exists()


def test_an_empty_log_of_a_crashed_server_stays_and_the_server_starts_again(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--durability", "interval") as server:
        server.kill()
        assert (tmp_path / "data" / "penstock.db-wal").stat().st_size == 0
        assert run("backup", tmp_path / "backup", "--data", tmp_path / "data").exit_code == 0
        assert (tmp_path / "data" / "penstock.db-wal").exists()
        server.start()
        assert waiting(server) == 0


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    with ServerProcess(tmp_path / "data") as server:
        fill(server, 50)
    assert run("backup", tmp_path / "backup", "--data", tmp_path / "data").exit_code == 0
    return tmp_path / "backup"


def test_damage_of_a_backup_is_found_and_nothing_is_restored_from_it(taken: Path, tmp_path: Path) -> None:
    path = taken / backup.FILE_NAME
    content = path.read_bytes()
    for place in range(0, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(BackupInvalid, match=r"differs from the backup: .* damaged or changed"):
            backup.verify(taken, quiet)
    refused = run("restore", taken, "--data", tmp_path / "other")
    assert refused.exit_code == 2
    assert not (tmp_path / "other" / "penstock.db").exists()
    assert run("restore", "--check", taken).exit_code == 2
    path.write_bytes(content)
    assert run("restore", "--check", taken).exit_code == 0
    (taken / "manifest.json").unlink()
    refused = run("restore", taken, "--data", tmp_path / "other")
    assert "is not a backup: manifest.json cannot be read" in refused.output


def test_a_store_that_is_there_is_replaced_only_when_told_and_readers_notice(taken: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused = run("restore", taken, "--data", data)
    assert (refused.exit_code, "There is a store in" in refused.output) == (2, True)
    with ServerProcess(data) as server:
        fill(server, 3)
        refused = run("restore", taken, "--data", data, "--replace")
        assert "uses the data directory" in refused.output
        refused = run("backup", taken, "--data", data)
        assert "exists already. Name a new directory" in refused.output
    assert run("backup", tmp_path / "later", "--data", data).exit_code == 0
    assert run("restore", taken, "--data", data, "--replace").exit_code == 0
    assert run("restore", taken, "--data", data, "--replace").exit_code == 0, "also twice within a second"
    replaced, _ = sorted(data.glob("replaced-*"))
    assert {"penstock.db", "penstock.mark"} <= {path.name for path in replaced.iterdir()}
    with ServerProcess(data) as server:
        assert waiting(server) == 50
    assert run("backup", tmp_path / "after", "--data", data).exit_code == 0
    later, after = (backup.read_manifest(tmp_path / name).contents for name in ("later", "after"))
    assert later.identity == after.identity
    assert later.journal_next > after.journal_next
    assert later.epoch < after.epoch


def test_stores_without_a_file_and_directories_without_a_store_are_refused(tmp_path: Path) -> None:
    refused = run("backup", tmp_path / "b", "--store", "postgresql://me:secret@db/penstock")
    assert refused.exit_code == 2
    assert "pg_dump" in refused.output
    assert "secret" not in refused.output
    refused = run("restore", tmp_path / "b", "--store", "postgresql://me:secret@db/penstock")
    assert "pg_dump" in refused.output
    refused = run("backup", tmp_path / "b", "--data", tmp_path / "nothing")
    assert "There is no store in" in refused.output


def test_the_directory_one_is_in_is_no_target(taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "empty"
    here.mkdir()
    monkeypatch.chdir(here)
    refused = run("backup", ".", "--data", taken.parent / "data")
    assert refused.exit_code == 2
    assert "Name a new directory" in refused.output
    assert list(here.iterdir()) == []


def test_each_shard_has_a_backup_of_its_own(tmp_path: Path) -> None:
    stores = ["--store", f"sqlite:{tmp_path / 'a'}", "--store", f"sqlite:{tmp_path / 'b'}"]
    with ServerProcess(tmp_path / "data", *stores) as server, server.client() as client:
        for number in range(10):
            Api(client, f"q{number}").push(1)
        assert run("backup", tmp_path / "backup", *stores).exit_code == 0
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {"shard-0", "shard-1"}
    assert run("restore", "--check", tmp_path / "backup", *stores).exit_code == 0
    assert run("restore", tmp_path / "backup", *stores, "--replace").exit_code == 0
    with ServerProcess(tmp_path / "data", *stores) as server, server.client() as client:
        assert sum(Api(client, f"q{number}").counts()["waiting"] for number in range(10)) == 10
