"""A reader's terminal: the commands of a page are run in it as they are printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATIENCE_S = 60
#: What pages call the machine of a server.
_HOSTS = ("localhost", "127.0.0.1", "any-server")


class Terminal:
    """Runs commands in a directory. Where pages say port 6790 of this machine, ``port`` is meant, if it is curl that is run.

    A reply with an error is an error of curl, and each reply ends with its line.
    """

    def __init__(self, home: Path, port: int | None = None, env: Mapping[str, str] | None = None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        rules = [f'connect-to = "{host}:6790:127.0.0.1:{port}"' for host in _HOSTS] if port else []
        (home / ".curlrc").write_text("\n".join([*rules, "fail", "silent", "show-error", 'write-out = "\\n"', ""]))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {"PATH": path, "HOME": str(home), "CURL_HOME": str(home), "LANG": "C.UTF-8", **(env or {})}

    def run(self, script: str) -> str:
        """Run commands one after the other; return what they print. A command that fails ends it."""
        done = subprocess.run(
            ["bash", "-e"], input=script, cwd=self.home, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str, codes: tuple[int, ...] = (0,)) -> Iterator[subprocess.Popen[str]]:
        """Start a command that goes on, and wait for its first line; then end it as Ctrl-C does.

        ``codes``: what it may end with. A server may print warnings, and steps of its installation, before the line with its
        address.
        """
        process = subprocess.Popen(
            ["bash", "-ec", command], cwd=self.home, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            starts_server = "penstock serve" in command or re.search(r"\bmake\b.* run\b", command)
            seen = line = process.stdout.readline()
            while line and starts_server and GREETING not in line:
                line = process.stdout.readline()
                seen += line
            assert line, f"{command} ended at once: {seen}"
            yield process
            assert process.poll() is None, line + process.stdout.read()
            os.killpg(process.pid, signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode in codes, line + rest
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()


#: How a server tells where it listens.
GREETING = "Penstock listens on"


def own_ports() -> dict[str, str]:
    """Return settings for a server that is started without saying where it listens."""
    ports = {name: str(free_port()) for name in ("HTTP_PORT", "TCP_PORT")}
    return {**ports, "PENSTOCK_RESP": "off", "PENSTOCK_METRICS": "off", "LOG_FORMAT": "plain"}


def put(text: str, changes: Mapping[str, str]) -> str:
    """Put addresses of this machine into a block, each of which it must have."""
    for shown, here in changes.items():
        assert shown in text, f"{shown!r} is not in\n{text}"
        text = text.replace(shown, here)
    return text


def commands(block: str) -> list[str]:
    """Return the commands of a block, without comments, one per item; those that go on over several lines as one."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def check_install(command: str) -> None:
    """Check that an extra of ``pip install 'penstock-queue[extra]'`` is one of this package. Tests run with all of them."""
    found = re.fullmatch(r"pip install 'penstock-queue\[([\w-]+)\]'", command.strip())
    assert found, command
    assert found[1] in (metadata("penstock-queue").get_all("Provides-Extra") or []), command
