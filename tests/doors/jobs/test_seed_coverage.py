"""Nothing of the contract is without a test of its success and a test of its failure, over a real socket.

The rows of the contract's own tables are in seed.toml; here they are held against the tables of cases that the tests next door
go through. Those tests see to it that a case is really about its row: a route was asked and answered so, an event arrived with
its payload, a command got its reply.

The contract is not always of one mind about itself. Its list of events is headed "63 total", and elsewhere it speaks of 50; its
tables have 60 rows, and those are what counts. Its headings of the route tables agree with their rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.doors.jobs.event_rendering import PATTERNS
from tests.doors.jobs import seed, test_commands, test_seed_events, test_seed_routes
from tests.doors.listen import ear
from tests.support.tcp import TcpClient, all_commands

if TYPE_CHECKING:
    from tests.support.server import ServerProcess


def test_the_tables_are_those_of_the_contract() -> None:
    assert seed.ROUTE_TABLES == {
        "Jobs": 30, "Queues": 13, "DLQ": 3, "Rate Limiting & Concurrency": 4, "Configuration": 4, "Crons": 4, "Webhooks": 4,
        "Workers": 4, "Monitoring": 11, "Real-time": 4,
    }  # fmt: skip
    assert len(set(seed.ROUTES)) == 81
    assert len(seed.EVENTS) == 60
    assert len(seed.COMMANDS) == 105


def test_every_route_has_a_success_and_a_failure() -> None:
    assert set(test_seed_routes.WORKS) == set(seed.ROUTES)
    assert test_seed_routes.REFUSED.keys() | test_seed_routes.UNWELL.keys() == set(seed.ROUTES)


def test_every_event_has_a_success_and_a_failure() -> None:
    assert set(seed.EVENTS) == test_seed_events.HEARD
    assert set(seed.EVENTS) == test_seed_events.NOT_HEARD
    assert seed.EVENTS.keys() <= PATTERNS.keys()


def test_every_command_has_a_success_and_a_failure() -> None:
    assert seed.COMMANDS == test_commands.WORKS.keys() == set(all_commands())
    assert test_commands.REFUSED.keys() | test_commands.NEVER_REFUSED == seed.COMMANDS


@pytest.mark.parametrize("name", sorted(seed.ABSENT_COMMANDS | seed.SOCKET_COMMANDS))
def test_a_command_that_is_not_served_over_tcp_says_so(server: ServerProcess, name: str) -> None:
    with TcpClient(server.tcp_port) as client:
        assert client.refused(name) == f"Unknown command: {name}"


@pytest.mark.parametrize("name", sorted(seed.SOCKET_COMMANDS))
def test_a_command_that_only_a_websocket_has_works_there_and_is_refused_there(server: ServerProcess, name: str) -> None:
    with ear(server) as socket:
        assert socket.ask(name, events=["job:*"])["ok"] is True
        refused = socket.ask(name, events=5)
        assert refused.keys() == {"ok", "error", "code"}
        assert refused["ok"] is False
        assert refused["error"].startswith("events must be a")
