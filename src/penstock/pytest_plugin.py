"""A plugin that pytest finds wherever Penstock is installed: the fixtures ``penstock_server`` and ``penstock_client``.

It imports the SDK only when a fixture is used, so that other test suites do not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client import Client
    from penstock.client.testing import Server


@pytest.fixture(scope="session")
def penstock_server() -> Iterator[Server]:
    """A real server on a temporary store, started once for all tests of a process. Its address is ``penstock_server.url``."""
    from penstock.client.testing import Server  # noqa: PLC0415, see above

    with Server("--durability", "never") as server:
        yield server


@pytest.fixture
def penstock_client(penstock_server: Server) -> Iterator[Client]:
    """A client of that server in a namespace that no other test uses."""
    from penstock.client._clock import fresh_name  # noqa: PLC0415, see above

    with penstock_server.client(namespace=f"test-{fresh_name()}") as client:
        yield client
