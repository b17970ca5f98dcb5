"""bunqueue's npm client, in both versions, against our server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.npm.conftest import PACKAGES, Address, read_calls, start_script
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", PACKAGES)
def test_a_worker_without_locks_runs_each_job_once(version: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        address = Address(server.tcp_port, server.port)
        calls = read_calls(start_script("locks", version, address, tmp_path / "calls"), tmp_path / "calls")
    assert calls["without locks all are done"]["completed"] == 5
    assert calls["without locks each ran once"] == [1, 2, 3, 4, 5]
