"""The specification of the TCP protocol knows every command, every field and every limit."""

from __future__ import annotations

import re

import pytest

from penstock.core import limits
from tests.docs.generate import ROOT
from tests.support.tcp import all_commands

TEXT = (ROOT / "docs" / "tcp.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([A-Za-z]+)`", TEXT))


@pytest.mark.parametrize("name", list(all_commands()))
def test_every_command_and_its_fields_are_documented(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}`", TEXT, re.MULTILINE), "give it a row"
    assert set(all_commands()[name].fields()) <= NAMED


def test_the_limits_are_those_of_the_server() -> None:
    for number in (
        limits.frame_bytes_max,
        limits.stranger_frame_bytes_max,
        f"{limits.command_values_max:,}",
        limits.connection_commands_max,
        f"{limits.tcp_connections_max:,}",
        f"{limits.connection_jobs_max:,}",
        limits.claim_wait_ms_max,
        limits.completion_wait_ms_max,
    ):
        assert str(number) in TEXT, number
