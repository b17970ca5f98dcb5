"""``penstock serve``: run the server."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import shlex
from typing import TYPE_CHECKING, Any

import click
import structlog
import uvloop

from penstock.cli.miniqueue import Translating
from penstock.cli.options import FLAGS, load, setting_options
from penstock.masking import without_password
from penstock.server import app, logging

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import config as configuration

log = structlog.get_logger("penstock")


@click.command(cls=Translating)
@setting_options(*FLAGS)
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the server until it is stopped (Ctrl-C or SIGTERM)."""
    os.umask(0o077)  # other users must not read jobs, in any file of the server or of its child processes
    config = load(config_file, flags)
    logging.set_up(config.log_level, config.log_format)
    for note in config.notes:
        log.warning(note)

    _allow_many_connections()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(app.serve(config, _greet))


def _allow_many_connections() -> None:
    """Set the limit of open files to what the system allows: each waiting client needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _greet(config: configuration.Config) -> None:
    scheme = "http" if config.tls_cert_file is None else "https"
    base = f"{scheme}://{config.http}"
    click.echo(f"Penstock listens on {base}")
    click.echo(f"  health   {base}/health")
    click.echo(f"  API      {base}/docs")
    if config.tcp is not None:
        click.echo(f"  TCP      {config.tcp}")
    if config.resp is not None:
        click.echo(f"  RESP     {config.resp}{'' if config.tls_cert_file is None else '  (TLS)'}")
    if config.resp_plain is not None:
        click.echo(f"  RESP     {config.resp_plain}  (without TLS)")
    if config.batches is not None:
        click.echo(f"  batches  {scheme}://{config.batches}")
    if config.topics is not None:
        click.echo(f"  topics   {scheme}://{config.topics}")
    if config.messages is not None:
        click.echo(f"  messages {scheme}://{config.messages}")
    click.echo(f"  metrics  {base}/prometheus")
    if config.metrics is not None:
        click.echo(f"           {scheme}://{config.metrics}/metrics  (off with --metrics off)")
    if config.dev_cert:
        _tell_dev_cert(config)
    if not config.asks_for_tokens:
        names = ", ".join(("localhost", "its address", *config.allowed_hosts))
        click.echo(
            f"  open     until there is a token or a key; web pages of other sites are refused, and names besides {names}"
        )
    if config.stores:
        click.echo(f"  data     {', '.join(map(without_password, config.stores))}")
    else:
        click.echo(f"  data     {config.data}  (durability: {config.durability})")


def _tell_dev_cert(config: configuration.Config) -> None:
    host = str(config.http) if config.http.host in ("localhost", "127.0.0.1", "::1") else f"localhost:{config.http.port}"
    file = shlex.quote(str(config.tls_cert_file))
    click.echo(f"  TLS      {config.tls_cert_file}  (a development certificate, for this machine only; trust it like this:)")
    click.echo(f"           curl --cacert {file} https://{host}/health")
