"""Fixtures of the SDK's tests: clients of a real server, and a queue that no other test uses."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from penstock.client import AsyncClient, Client, Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.server import ServerProcess

_numbers = itertools.count()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


@pytest.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as opened:
        yield opened


@pytest.fixture
def queue() -> str:
    return f"sdk{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def tasks(server: ServerProcess, queue: str) -> Iterator[Tasks]:
    made = Tasks(server.url, queue=queue)
    yield made
    made.close()
