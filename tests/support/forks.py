"""Starts servers as forks of a process that has imported the program once: tests start a thousand, and imports cost most.

Each server is a process of its own, as ``python -m penstock`` would be: with its own environment, output, files and signals.
``tests/cli`` and all tests that start a program with a launcher of their own run the command itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Variables with these beginnings change what an interpreter does when it starts, so a fork would not follow them.
_OF_THE_INTERPRETER = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
_PID = struct.Struct("=i")


class Fork:
    """A server that was forked. It has those parts of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, output: int, ended: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, encoding="utf-8")
        self.returncode: int | None = None
        self._ended = ended  #: a pipe; the exit status arrives there

    def poll(self) -> int | None:
        """Return the exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait up to ``timeout`` seconds (None: as long as it takes) for its end, and return the same as ``poll``."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            (self.returncode,) = _PID.unpack(os.read(self._ended, _PID.size))
            os.close(self._ended)
        return self.returncode


class _Forks:
    """The process of which servers are forks, and the connection to it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = _of_the_interpreter(env)
        self._lock = threading.Lock()  #: tests start servers in threads, and each must get the answer to its own order
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=dict(env), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def fits(self, env: Mapping[str, str]) -> bool:
        return _of_the_interpreter(env) == self._env and self._process.poll() is None

    def fork(self, args: Sequence[str], env: Mapping[str, str], errors: int) -> Fork:
        """Start ``penstock`` with these arguments; what it says as errors goes to the file with the number ``errors``."""
        output, their_output = os.pipe()
        ended, their_ended = os.pipe()
        order = json.dumps({"args": args, "env": dict(env), "cwd": str(Path.cwd())}).encode()
        with self._lock:
            socket.send_fds(self._control, [order], [their_output, errors, their_ended])
            (pid,) = _PID.unpack(self._control.recv(_PID.size))
        os.close(their_output)
        os.close(their_ended)
        return Fork(pid, output, ended)

    def close(self) -> None:
        """End it. Servers that still run go on, as other processes would."""
        self._control.close()
        self._process.wait()


_forks: _Forks | None = None
_first = threading.Lock()


def fork(args: Sequence[str], env: Mapping[str, str], errors: int) -> Fork | None:
    """Start ``penstock`` with these arguments; return None if its environment wants an interpreter of its own."""
    global _forks  # noqa: PLW0603, one for all tests of a process
    with _first:
        if _forks is None:
            _forks = _Forks(env)
    return _forks.fork(args, env, errors) if _forks.fits(env) else None


def _of_the_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_OF_THE_INTERPRETER)}


def _serve_forks(control: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each order. Return the order in the fork, and None here when nobody can order any more."""
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not control:
                    _report_end(ready, *key.data)
                    continue
                message, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    ready.close()
                    control.close()
                    _take_over(fds)
                    order: dict[str, Any] = json.loads(message)
                    return order
                output, errors, ended = fds
                os.close(output)
                os.close(errors)
                watched = os.pidfd_open(pid)
                ready.register(watched, selectors.EVENT_READ, (pid, watched, ended))
                control.send(_PID.pack(pid))


def _take_over(fds: list[int]) -> None:
    """Keep only a standard input, output and error stream."""
    output, errors, _ = fds
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _report_end(ready: selectors.BaseSelector, pid: int, watched: int, ended: int) -> None:
    ready.unregister(watched)
    os.close(watched)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(ended, _PID.pack(os.waitstatus_to_exitcode(status)))
    os.close(ended)


if __name__ == "__main__":
    from penstock.cli.main import main
    from penstock.cli.serve import serve as _  # noqa: F401, imported for the forks

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    order = _serve_forks(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["penstock", *order["args"]]
        main(prog_name="python -m penstock")
