"""A log that is cut short, or a file copied without its log, is not taken for a shorter history: the mark knows better."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.doors.api import Api
from tests.support.server import ServerProcess, serve_command

if TYPE_CHECKING:
    from pathlib import Path

DB, LOG, MARK, LOCK = "penstock.db", "penstock.db-wal", "penstock.mark", "penstock.lock"


def push_some(server: ServerProcess, count: int) -> None:
    with server.client() as client:
        api = Api(client, "q")
        for number in range(count):
            api.push(number)


def waiting(server: ServerProcess) -> int:
    with server.client() as client:
        return int(Api(client, "q").counts()["waiting"])


def refusal(data: Path) -> str:
    """Start a server that must refuse, and must not change anything; return what it says."""
    before = {path.name: path.read_bytes() for path in data.iterdir() if path.name in (DB, LOG, MARK)}
    ended = subprocess.run(serve_command(data), capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    for name, content in before.items():
        assert (data / name).read_bytes() == content, name
    return ended.stderr


def copy(source: Path, target: Path, *names: str) -> Path:
    target.mkdir()
    for name in names:
        shutil.copy(source / name, target / name)
    return target


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A data directory whose server was killed after 30 answered pushes."""
    with ServerProcess(tmp_path / "data") as server:
        push_some(server, 30)
        server.kill()
    return tmp_path / "data"


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9], ids=["emptied", "half", "most"])
def test_a_log_cut_short_is_refused_and_accept_loss_goes_on_without(killed: Path, kept: float) -> None:
    size = (killed / LOG).stat().st_size
    os.truncate(killed / LOG, int(size * kept))
    for _ in range(2):  # a service manager tries again
        said = refusal(killed)
        assert "is behind what was answered: events " in said
        assert "of the journal are missing" in said
        assert "The log was cut short" in said
        assert "penstock restore" in said
        assert "--accept-loss" in said
    with ServerProcess(killed, "--accept-loss") as server:
        left = waiting(server)
        assert left < 30
        assert (kept == 0.0) == (left == 0)
        push_some(server, 1)
    assert "started with --accept-loss" in server.log()
    assert "of the journal are missing" in server.log()
    with ServerProcess(killed) as server:  # what was accepted once is not asked again
        assert waiting(server) == left + 1


@pytest.mark.parametrize("running", [True, False])
def test_the_file_copied_without_its_log_is_refused(tmp_path: Path, running: bool) -> None:
    with ServerProcess(tmp_path / "data") as server:
        push_some(server, 10)
        if not running:
            server.kill()
        alone = copy(tmp_path / "data", tmp_path / "alone", DB)
        with_mark = copy(tmp_path / "data", tmp_path / "marked", DB, MARK)
    for _ in range(2):
        assert "was copied or moved without its log penstock.db-wal" in refusal(alone)
    said = refusal(with_mark)
    assert "was copied or moved without its log penstock.db-wal" in said
    assert "events 1 to 1" in said  # ten pushes, and a queue that was made
    assert "steps of jobs (pushes, deliveries, acknowledgements)" in said
    with ServerProcess(alone, "--accept-loss") as server:
        assert waiting(server) == 0
    with ServerProcess(alone):
        pass


def test_all_files_copied_after_a_crash_go_on_and_without_the_mark_it_is_said_that_nobody_knows(
    killed: Path, tmp_path: Path
) -> None:
    with ServerProcess(copy(killed, tmp_path / "all", DB, LOG, MARK)) as server:
        assert waiting(server) == 30
    without = copy(killed, tmp_path / "without", DB, LOG)
    assert "penstock.mark is missing or damaged, and the store was not closed" in refusal(without)
    damaged = copy(killed, tmp_path / "damaged", DB, LOG)
    (damaged / MARK).write_bytes(bytes(8192))
    assert "penstock.mark is missing or damaged" in refusal(damaged)
    with ServerProcess(without, "--accept-loss") as server:
        assert waiting(server) == 30


def test_a_file_that_was_closed_is_complete_without_anything_beside_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        push_some(server, 5)
        assert server.stop() == 0
    with ServerProcess(copy(tmp_path / "data", tmp_path / "alone", DB)) as server:
        assert waiting(server) == 5
        server.kill()
    with ServerProcess(tmp_path / "alone") as server:
        assert waiting(server) == 5


def test_an_older_copy_put_back_and_a_file_that_is_gone_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        push_some(server, 5)
    older = copy(data, tmp_path / "older", DB)
    with ServerProcess(data) as server:
        push_some(server, 3)
    shutil.copy(older / DB, data / DB)
    assert " of the journal are missing, which is 3 steps of jobs" in refusal(data)
    with ServerProcess(tmp_path / "other") as server:
        push_some(server, 1)
    shutil.copy(tmp_path / "other" / DB, data / DB)
    assert "penstock.mark is of another store" in refusal(data)
    (data / DB).unlink()
    (data / LOCK).unlink()
    assert "penstock.db was replaced or is lost" in refusal(data)


@pytest.mark.parametrize("durability", ["interval", "never"])
def test_other_durabilities_start_after_every_crash(tmp_path: Path, durability: str) -> None:
    with ServerProcess(tmp_path / "data", "--durability", durability) as server:
        for round_ in range(1, 4):
            push_some(server, 20)
            server.kill()
            server.start()
            assert waiting(server) == 20 * round_
