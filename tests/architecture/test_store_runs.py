"""``make test`` runs the tests of the doors on each store. The files that are left out there exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors import conftest

DOORS = Path(conftest.__file__).parent


@pytest.mark.parametrize("name", [*conftest._WITHOUT_STORE, *conftest._WITHOUT_SHARDS])
def test_a_file_that_is_left_out_exists(name: str) -> None:
    assert (DOORS / name).is_file()
