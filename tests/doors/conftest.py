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

#: Tests that do not reach a store, or only to prepare what they test: they run once.
_WITHOUT_STORE = (
    "batches/test_leases.py",
    "http/test_http2_bodies.py",
    "http/test_request_log.py",
    "http/test_router.py",
    "http/test_tls.py",
    "jobs/test_event_rendering.py",
    "jobs/test_monitors.py",
    "jobs/test_seed_coverage.py",
    "jobs/test_tcp_frames.py",
    "messages/test_consumer.py",
    "messages/test_push_dispatcher.py",
    "net/test_raw_sockets.py",
    "net/test_send_queue.py",
    "net/test_websocket.py",
    "resp/test_parser.py",
    "test_rate_limit.py",
    "test_unread_shares.py",
    "topics/test_decoder.py",
    "topics/test_subscriber.py",
)
#: Tests in which only the statements of the database differ: they run on one database, not on several.
_WITHOUT_SHARDS = ("http/test_openapi.py", "http/test_openapi_client.py")
_SKIPPED = {"sqlite": (), "postgres": _WITHOUT_STORE}.get(stores.chosen(), _WITHOUT_STORE + _WITHOUT_SHARDS)
collect_ignore = list(_SKIPPED)

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
