"""Fixtures of the door tests: a client of a real server, and a queue that no other test uses."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.doors.api import Api
from tests.support import stores
from tests.support.curl import CurlStream
from tests.support.described import Current, Description

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

#: What knows no store: it is tested once.
_WITHOUT_STORE = (
    "consumer",
    "events_rendering",
    "frames",
    "push_office",
    "rate_limit",
    "resp_parser",
    "subscriber",
    "tls",
    "topics_decoder",
)
collect_ignore = [f"test_{name}.py" for name in _WITHOUT_STORE] if stores.chosen() != "sqlite" else []

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    CurlStream.kill_all()


@pytest.fixture(scope="session", autouse=True)
def every_reply_is_described(server: ServerProcess) -> None:
    """Whatever a test of this directory is answered, it is what the OpenAPI document says."""
    Current.description = Description(httpx2.get(f"{server.url}/openapi.json", trust_env=False).json())


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with server.client() as client:
        yield Api(client, f"q{os.getpid()}-{next(_numbers)}")
