"""The page of the Redis protocol knows every command and every limit, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.doors.topics.resp.table import COMMANDS
from tests.docs.generate import ROOT
from tests.docs.test_docs import BLOCK

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

TEXT = (ROOT / "docs" / "resp.md").read_text(encoding="utf-8")
EXAMPLES = BLOCK.findall(TEXT)


@pytest.mark.parametrize("name", [name.decode() for name in COMMANDS])
def test_every_command_has_a_row_with_its_syntax(name: str) -> None:
    assert f"\n| `{COMMANDS[name.encode()].syntax.replace('|', chr(92) + '|')}` |" in TEXT


def test_the_limits_are_those_of_the_server() -> None:
    for number in (
        limits.payload_bytes_max,
        limits.resp_args_max,
        limits.body_bytes_max,
        limits.resp_line_bytes_max,
        limits.stranger_args_max,
        limits.stranger_bulk_bytes_max,
        f"{limits.resp_connections_max:,}",
        limits.connection_frames_bytes,
        limits.resp_ahead_bytes,
        limits.claim_jobs_max,
        limits.claim_wait_ms_max,
        f"{limits.connection_write_bytes_max // limits.MEBIBYTE} MiB",
        f"{limits.claim_batch_bytes_max // limits.MEBIBYTE} MiB",
        f"{limits.frame_idle_ms_max // 1_000} s",
        f"{limits.auth_wait_ms_max // 1_000} s",
    ):
        assert str(number) in TEXT, number


def test_the_commands_of_the_page_work(server: ServerProcess) -> None:
    (script,) = (body for kind, body in EXAMPLES if kind == "sh")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e"], input=script.replace("6380", str(server.resp_port)), env={"PATH": path},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    published, pushed, topics, *pulled = done.stdout.splitlines()
    assert published == "OK"
    assert re.fullmatch(r"[0-9a-f-]{36}", pushed)
    assert {"greetings", "mails"} <= set(topics.strip("[]").split())
    assert pulled[-1] == "hello"


def test_the_programs_of_the_page_work(server: ServerProcess) -> None:
    said = []
    for body in (body for kind, body in EXAMPLES if kind == "python"):
        program = body.replace("6380", str(server.resp_port))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
        said.append(done.stdout)
    assert said == ["first\nsecond\n", "{b'OK'} 100\n"]
