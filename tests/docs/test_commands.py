"""Commands of pages that build, test and deploy: they exist, and the server starts as the README says."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2

from tests.docs.blocks import runs
from tests.docs.generate import ROOT
from tests.docs.shell import Terminal, commands, own_ports

#: The virtual environment is this one, and nothing is installed into it.
MAKE = [
    "make",
    "--no-print-directory",
    f"VENV={sys.prefix}",
    f"PYTHON={sys.executable}",
    "-o",
    str(Path(sys.prefix) / ".installed"),
]


def dry_run(command: str) -> str:
    """Return what make would do."""
    target = shlex.split(command, comments=True)
    assert target[0] == "make"
    done = subprocess.run(
        [*MAKE, "--dry-run", *target[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@runs("README.md", "sh 1")
def test_the_commands_of_the_readme(blocks: list[str], tmp_path: Path) -> None:
    run, test = commands(blocks[0])
    assert "pytest" in dry_run(test)
    assert shlex.split(run, comments=True) == ["make", "run"]
    ports = own_ports()
    terminal = Terminal(tmp_path, env=ports)
    arguments = f"RUN_ARGS={shlex.quote(f'--data {tmp_path}/data')}"
    make = f"{shlex.join(MAKE)} --directory {shlex.quote(str(ROOT))}"
    with terminal.running(f"{make} run {arguments}", codes=(0, 2, -2, 130)):  # make does not like to be interrupted
        assert httpx2.get(f"http://127.0.0.1:{ports['HTTP_PORT']}/health").json()["ok"] is True


@runs("CONTRIBUTING.md", "sh")
def test_the_commands_of_contributors(blocks: list[str]) -> None:
    for command in commands(blocks[0]):
        dry_run(command)


@runs("docs/deploy.md", "sh 1")
def test_the_cluster_of_this_machine(blocks: list[str]) -> None:
    """It is this program, which tests/deploy/test_cluster.py runs, with the tour it prints."""
    (command,) = commands(blocks[0])
    assert dry_run(command).split() == [str(Path(sys.prefix) / "bin" / "python"), "deploy/cluster.py"]


@runs("docs/deploy.md", "sh 2")
def test_the_commands_with_docker(blocks: list[str], tmp_path: Path) -> None:
    """There is no Docker here: the files are there, and say which settings are to be filled in."""
    copy, up = commands(blocks[0])
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns(".env"))
    Terminal(tmp_path).run(copy)
    settings = (tmp_path / "deploy" / ".env").read_text(encoding="utf-8")
    words = shlex.split(up)
    assert words == ["docker", "compose", "-f", "deploy/compose.yaml", "up", "--build", "--detach"]
    compose = (tmp_path / words[3]).read_text(encoding="utf-8")
    for name in ("AUTH_TOKENS", "POSTGRES_PASSWORD"):
        assert f"{name}=" in settings
        assert name in compose
