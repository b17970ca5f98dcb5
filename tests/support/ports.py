"""Ports for servers of tests.

The system would give one out that it gives to somebody's connection a moment later, or twice to the same server. These are
from below those that it gives out itself, and each process of a test run takes its own, in turn.
"""

from __future__ import annotations

import os
import socket
from itertools import cycle

FIRST, LAST = 12_000, 32_000
#: How many processes of a run have ports of their own.
PROCESSES = 10


def _mine() -> range:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    share = (LAST - FIRST) // PROCESSES
    return range(FIRST + number * share, FIRST + (number + 1) * share)


_ports = cycle(_mine())
for _ in range(os.getpid() % len(_mine())):  # two runs on one machine do not begin at the same place
    next(_ports)


def free_port() -> int:
    """Return a port that nobody listens on, other than the last thousands that were returned."""
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("ports never end")
