"""``penstock worker``: run tasks."""

from __future__ import annotations

import sys
from typing import Any

import click


@click.command()
@click.argument("target", metavar="MODULE:TASKS")
@click.option("--url", metavar="URL", envvar="PENSTOCK_URL", help="address of the server; default: that of the tasks")
@click.option("--api-key", metavar="KEY", envvar="PENSTOCK_API_KEY", help="key of the server (X-Api-Key)")
@click.option("--token", metavar="TOKEN", envvar="PENSTOCK_TOKEN", help="bearer token of the server")
@click.option("--namespace", metavar="NAME", envvar="PENSTOCK_NAMESPACE", help="the namespace of the jobs; default: default")
@click.option(
    "-c",
    "--concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=10,
    help="jobs that run at the same time; default: 10",
)
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="QUEUE",
    multiple=True,
    help="claim from this queue; may be repeated; default: all queues of the tasks",
)
@click.option(
    "--stop-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    help="time for running jobs to end after a stop; default: 30",
)
@click.option(
    "--unknown-task-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=86_400.0,
    help="time until a job whose task no worker has becomes a dead letter; default: 86400",
)
@click.option("-v", "--verbose", is_flag=True, help="log details of the worker's actions")
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
