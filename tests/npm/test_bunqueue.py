"""bunqueue's npm client, in both versions, against our server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.npm.conftest import PACKAGES, Address, OriginalServer, read_calls, start_script
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


@pytest.mark.parametrize("version", PACKAGES)
def test_values_json_does_not_have_are_kept_as_the_original_shows_them(version: str, tmp_path: Path) -> None:
    with OriginalServer(version, tmp_path / "original") as original, ServerProcess(tmp_path / "data") as server:
        addresses = original.address, Address(server.tcp_port, server.port)
        running = [start_script("values", version, each, tmp_path / str(each.tcp_port)) for each in addresses]
        theirs, ours = (
            read_calls(script, tmp_path / str(each.tcp_port)) for script, each in zip(running, addresses, strict=True)
        )
    assert len(ours) == 34
    assert ours == theirs
