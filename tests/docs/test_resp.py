"""The page of the Redis protocol knows every command and every limit, and its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.doors.resp.command_table import COMMANDS
from tests.docs.blocks import runs
from tests.docs.generate import ROOT
from tests.docs.shell import Terminal, put
from tests.support import npm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

TEXT = (ROOT / "docs" / "resp.md").read_text(encoding="utf-8")


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


@runs("docs/resp.md", "sh")
def test_the_commands_of_the_page_work(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    (script,) = blocks
    said = Terminal(tmp_path).run(put(script, {"6380": str(server.resp_port)}))
    published, pushed, topics, *pulled = said.splitlines()
    assert published == "OK"
    assert re.fullmatch(r"[0-9a-f-]{36}", pushed)
    assert {"greetings", "mails"} <= set(topics.strip("[]").split())
    assert pulled[-1] == "hello"


@runs("docs/resp.md", "python")
def test_the_programs_of_the_page_work(blocks: list[str], server: ServerProcess) -> None:
    said = []
    for body in blocks:
        program = put(body, {"6380": str(server.resp_port)})
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
        said.append(done.stdout)
    assert said == ["first\nsecond\n", "{b'OK'} 100\n"]


@runs("docs/resp.md", "js")
def test_the_programs_for_node_work(blocks: list[str], server: ServerProcess) -> None:
    for body in blocks:
        program = put(body, {"6380": str(server.resp_port)})
        env = npm.environment(NODE_PATH=str(npm.modules()))
        done = subprocess.run([npm.node(), "-e", program], env=env, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "first\nsecond\n"
