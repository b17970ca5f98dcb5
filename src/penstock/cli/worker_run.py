"""The work of ``penstock worker``. Other commands do not import it, because a server does not need the SDK."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.client import Client, PenstockError, Tasks, Worker
from penstock.client.tasks import default_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType, ModuleType

#: How often files are checked for changes, in seconds.
CHECK_S = 0.5


def work(
    target: str, server: Mapping[str, str], queues: Sequence[str], options: Mapping[str, Any], *, verbose: bool
) -> None:
    """Run tasks until stopped. ``server``: settings instead of the tasks' own. ``queues``: instead of all queues.

    ``options``: of the worker. ``verbose``: log its work in detail.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if verbose:
        logging.getLogger("penstock.client").setLevel(logging.DEBUG)
    sys.path.insert(0, str(Path.cwd()))
    tasks = _find(target)
    if server:
        try:
            tasks.connect(Client.from_settings(tasks.settings.but(**server)))
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    running = Worker(tasks, queues or None, **options)
    click.echo(f"Works on {', '.join(running.plan.queues)} at {tasks.settings.url}: {', '.join(sorted(tasks.tasks))}")
    try:
        running.run()
    except PenstockError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Done: {_so_many(running.processed, 'job')}, {_so_many(running.failed, 'failed attempt')}")


def _so_many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _find(target: str) -> Tasks:
    """Return the tasks of a target. Raises a ClickException with the remedy."""
    name, _, attribute = target.partition(":")
    found = _of(_module(name), attribute)
    if not isinstance(found, Tasks):
        raise click.ClickException(f"{target} is no Tasks object. Try {name}:tasks, with tasks = Tasks(…) in it.")
    if not found.tasks:
        raise click.ClickException(f"{target} has no tasks: decorate functions with @task")
    return found


def _module(name: str) -> ModuleType:
    """Import a module. Raises a ClickException, with different texts for a missing module and for a missing import of it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise click.ClickException(f"There is no module {missing!r} below {Path.cwd()}") from None
        importing = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        where = f"{importing[-1].filename}, line {importing[-1].lineno}"
        raise click.ClickException(
            f"The module {name!r} was found, but it imports {missing!r}, which is not installed here ({where})"
        ) from None


def _of(module: ModuleType, attribute: str) -> Any:
    if attribute:
        found = getattr(module, attribute, None)
        return default_tasks if found is None and attribute == "tasks" else found
    groups = [each for each in vars(module).values() if isinstance(each, Tasks)]
    return groups[0] if len(groups) == 1 else default_tasks


def supervise(arguments: list[str]) -> int:
    """Run the command in a child process, and start it again when files change, until stopped.

    Signals are forwarded to it one by one. It is not in this process group: otherwise Ctrl-C would reach it twice, and then
    it would not wait for running jobs.
    """
    stopping = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()
        for process in running:
            process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        seen = dict(_files())
        process = subprocess.Popen([sys.executable, "-m", "penstock", *arguments], process_group=0)  # noqa: S603, it is ourselves
        running[:] = [process]
        changed: set[str] = set()
        while not changed and not stopping.wait(CHECK_S):
            now = dict(_files())
            changed = {path for path in seen.keys() | now.keys() if seen.get(path) != now.get(path)}
        if not stopping.is_set():
            click.echo(f"Changed: {', '.join(sorted(changed))}. Restarting.")
            process.terminate()
        code = process.wait()
        if stopping.is_set():
            return code if code >= 0 else 128 - code


def _files() -> Iterator[tuple[str, int]]:
    """Yield the Python files below the current directory, with their modification times. Hidden directories are left out."""
    for directory, directories, files in os.walk("."):
        directories[:] = [each for each in directories if not each.startswith((".", "__")) and each != "node_modules"]
        for each in files:
            if each.endswith(".py"):
                path = os.path.join(directory, each)  # noqa: PTH118, many of them, twice a second
                try:
                    yield path, os.stat(path).st_mtime_ns  # noqa: PTH116, likewise
                except FileNotFoundError:
                    continue
