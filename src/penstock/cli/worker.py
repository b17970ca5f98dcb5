"""``penstock worker``: run tasks."""

from __future__ import annotations

import sys
from typing import Any

import click


@click.command()
@click.argument("target", metavar="MODULE:TASKS")
@click.option("--url", metavar="URL", envvar="PENSTOCK_URL", help="the server; that of the tasks, unless given")
@click.option("--api-key", metavar="KEY", envvar="PENSTOCK_API_KEY", help="key of the server (X-Api-Key)")
@click.option("--token", metavar="TOKEN", envvar="PENSTOCK_TOKEN", help="bearer token of the server")
@click.option("--namespace", metavar="NAME", envvar="PENSTOCK_NAMESPACE", help="the namespace of the jobs; default")
@click.option("-c", "--concurrency", metavar="N", type=click.IntRange(min=1), default=10, help="jobs at a time; 10")
@click.option("-q", "--queue", "queues", metavar="QUEUE", multiple=True, help="only these; all queues of the tasks")
@click.option(
    "--stop-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    help="for what runs when it is stopped; 30",
)
@click.option(
    "--unknown-task-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=86_400.0,
    help="for how long a job whose task no worker has is deferred before it is dead; 86400",
)
@click.option("-v", "--verbose", is_flag=True, help="log what the worker does in detail")
@click.option("--reload", is_flag=True, help="restart when a .py file below this directory changes")
def worker(
    target: str,
    queues: tuple[str, ...],
    *,
    concurrency: int,
    stop_timeout: float,
    unknown_task_timeout: float,
    verbose: bool,
    reload: bool,
    **server: Any,
) -> None:
    """Run the tasks of a Python module, imported from the current directory.

    TASKS is a Tasks object of the module; without it, the only one in the module, or that of @task. SIGTERM and Ctrl-C
    finish running jobs, for up to --stop-timeout, and release the others; the second signal releases all at once.
    """
    # Other commands do not import the SDK.
    from penstock.cli import worker_run  # noqa: PLC0415

    if reload:
        sys.exit(worker_run.supervise([each for each in sys.argv[1:] if each != "--reload"]))
    given = {name: value for name, value in server.items() if value is not None}
    options = {
        "concurrency": concurrency,
        "stop_timeout": stop_timeout,
        "unknown_task_timeout": unknown_task_timeout,
    }
    worker_run.work(target, given, queues, options, verbose=verbose)
