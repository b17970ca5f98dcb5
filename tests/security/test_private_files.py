"""Other users of the machine: they read no job, replace no file, and have no file of theirs followed by the server."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import pytest

from tests.support import postgres
from tests.support.server import ServerProcess
from tests.support.shards import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def make_link(base: Path) -> None:
    (base.parent / "elsewhere").mkdir(mode=0o700)
    base.symlink_to(base.parent / "elsewhere")


def make_open(base: Path) -> None:
    base.mkdir()
    base.chmod(0o755)


def make_foreign(base: Path) -> None:
    base.mkdir(mode=0o700)
    os.chown(base, NOBODY, NOBODY)


each_trap = pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (make_link, "is a symbolic link. Remove it"),
        (make_open, r"mode 0755\). Run: chmod 700"),
        pytest.param(make_foreign, "is owned by another user .uid 65534.", marks=as_root),
    ],
)


@pytest.fixture
def database() -> Iterator[str]:
    url = run(postgres.make_database())
    yield url
    run(postgres.drop_database(url))


def snapshot(running: ServerProcess) -> None:
    """Have a file made in the spool."""
    with running.client() as client:
        client.post("/queues/private/jobs", json={"data": "secret"})
        assert client.post("/bulk/snapshots", json={}).status_code in (200, 201)


@each_trap
def test_a_server_does_not_start_on_a_spool_that_other_users_may_use(
    tmp_path: Path, make: Callable[[Path], None], remedy: str
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    make(data / "spool")
    with pytest.raises(AssertionError, match=f"The spool cannot be used. .*{remedy}"):
        ServerProcess(data, env={"PENSTOCK_STORES": ""}).start()
    assert list((data / "spool").iterdir()) == [], "nothing was written to it"


@each_trap
def test_another_user_who_takes_the_name_in_the_shared_directory_gets_nothing(
    tmp_path: Path, database: str, make: Callable[[Path], None], remedy: str
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    taken = shared / f"penstock-spool-{os.geteuid()}"
    make(taken)
    environment = {"PENSTOCK_STORES": database, "TMPDIR": str(shared), "LOG_FORMAT": "plain"}
    with ServerProcess(tmp_path / "data", env=environment) as running:
        snapshot(running)
        assert list(taken.iterdir()) == []
        (own,) = (each for each in shared.iterdir() if each.name.startswith(f"{taken.name}-"))
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        assert list(own.rglob("*.arrow"))
    assert re.search(remedy, running.log())
    assert not own.exists(), "a proper stop removes it"


def test_everything_that_the_server_makes_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with ServerProcess(tmp_path / "data", "--dev-cert", env={"PENSTOCK_STORES": ""}) as running:
            pass
        with ServerProcess(tmp_path / "data", env={"PENSTOCK_STORES": ""}) as running:
            snapshot(running)
            found = [running.data, *running.data.rglob("*")]
            modes = {path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.lstat().st_mode) for path in found}
    finally:
        os.umask(before)
    assert any(name.endswith(".arrow") for name in modes)
    assert modes.pop("data/dev-cert.pem") == 0o644, "clients of other users trust it"
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
