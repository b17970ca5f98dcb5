"""Who may do what over the Redis protocol: tokens, rights, namespaces, strangers, rate limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.access.identity import Right
from penstock.doors.rights import RESP
from penstock.doors.topics.resp.answers import AFTER, NOW
from penstock.doors.topics.resp.table import COMMANDS, Kind
from tests.support.issuer import SECRET, hs256
from tests.support.resp import END, RespClient, unique, wire
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
