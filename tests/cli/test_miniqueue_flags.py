"""Whoever starts Penstock with miniqueue's flags is told what they are called here, and that command line works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from penstock.cli.miniqueue import translate
from tests.docs.generate import ROOT
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

TABLE = (ROOT / "docs" / "topics-door.md").read_text(encoding="utf-8")


def penstock(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *args], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("start", [(), ("serve",)])
@pytest.mark.parametrize(
    ("flags", "here"),
    [
        (("-human",), "--log-format plain --topics 127.0.0.1:8080"),
        (("--human",), "--log-format plain --topics 127.0.0.1:8080"),
        (("-port", "8081"), "--topics 127.0.0.1:8081"),
        (("-port=8081",), "--topics 127.0.0.1:8081"),
        (("-cert", "./a b.pem", "-key", "k.pem"), "--cert './a b.pem' --key k.pem --topics 127.0.0.1:8080"),
        (("-db", "dir", "-level", "debug"), "--data dir --log-level debug --topics 127.0.0.1:8080"),
        (("-level", "disabled"), "--log-level error --topics 127.0.0.1:8080"),
        (("-period", "1s"), "--topics 127.0.0.1:8080"),
    ],
)
def test_a_flag_of_miniqueue_is_translated(start: tuple[str, ...], flags: tuple[str, ...], here: str) -> None:
    done = penstock(*start, *flags)
    assert done.returncode == 2
    assert f"\n  penstock serve {here}\n" in done.stderr
    assert "docs/topics-door.md" in done.stderr
    assert ("-period is not needed" in done.stderr) == ("-period" in flags)


def test_every_flag_of_miniqueue_is_in_the_table() -> None:
    for flag in ("-cert", "-db", "-human", "-key", "-level", "-period", "-port"):
        assert re.search(rf"^\| `{flag}\b", TABLE, re.MULTILINE), flag
        assert translate([flag, "x"]) is not None


def test_other_flags_are_answered_as_before() -> None:
    assert translate(["--data", "x", "-z"]) is None
    unknown = penstock("serve", "-z")
    assert unknown.returncode == 2
    assert "No such option '-z'" in unknown.stderr
    assert "docs/topics-door.md" in unknown.stderr
    assert "miniqueue" not in penstock("serve", "--nothing").stderr


def test_the_translation_runs(tmp_path: Path) -> None:
    port = free_port()
    said = penstock("serve", "-human", "-db", str(tmp_path / "db"), "-port", str(port), "-level", "debug").stderr
    (line,) = re.findall(r"^  (penstock serve .*)$", said, re.MULTILINE)
    command = [sys.executable, "-m", *shlex.split(line), "--http", f"127.0.0.1:{free_port()}"]
    command += [word for name in ("tcp", "resp", "metrics") for word in (f"--{name}", "off")]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline()
        published = httpx2.post(f"http://127.0.0.1:{port}/publish/foo?secret=1", content=b"hello", trust_env=False)
        assert published.status_code == 201
    finally:
        server.terminate()
        server.communicate(timeout=60)
    (told,) = [each for each in (tmp_path / "log").read_text(encoding="utf-8").splitlines() if "/publish/foo" in each]
    assert "status=201" in told
    assert "secret" not in told
    assert "hello" not in told
