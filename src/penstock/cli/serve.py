"""``penstock serve``: run the server."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from penstock import config as configuration
from penstock import logs, server
from penstock.config import without_password

F = TypeVar("F", bound=Callable[..., Any])


def _option(name: str, metavar: str | None = None, **more: Any) -> Callable[[F], F]:
    setting = name.replace("-", "_")
    help_text = configuration.SETTINGS[setting].help
    return click.option(configuration.flag_of(setting), setting, metavar=metavar, help=help_text, **more)


@click.command()
@_option("data", "DIR")
@_option("stores", "URL", multiple=True)
@_option("redis", "URL")
@_option("http", "HOST:PORT")
@_option("tcp", "HOST:PORT|off")
@_option("resp", "HOST:PORT|off")
@_option("metrics", "HOST:PORT|off")
@_option("batches", "HOST:PORT|off")
@_option("topics", "HOST:PORT|off")
@_option("tls-cert-file", "FILE")
@_option("tls-key-file", "FILE")
@_option("dev-cert", is_flag=True)
@_option("durability", "always|interval|never")
@_option("log-level", "LEVEL")
@_option("log-format", "auto|plain|json")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="YAML file with settings")
@_option("insecure", is_flag=True)
@_option("accept-loss", is_flag=True)
def serve(config_file: Path | None, stores: tuple[str, ...], **flags: str | bool | None) -> None:
    """Run the server until it is told to stop (Ctrl-C or SIGTERM)."""
    given = {name: "yes" if text is True else text for name, text in flags.items() if text is not None and text is not False}
    if stores:
        given["stores"] = ",".join(stores)
    config = configuration.load(given, os.environ, config_file)
    logs.set_up(config.log_level, config.log_format)

    _allow_many_connections()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(config, _greet))


def _allow_many_connections() -> None:
    """Use as many open files as the system grants: each waiting client is one."""
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
        click.echo(f"  RESP     {config.resp}")
    if config.batches is not None:
        click.echo(f"  batches  {scheme}://{config.batches}")
    if config.topics is not None:
        click.echo(f"  topics   {scheme}://{config.topics}")
    click.echo(f"  metrics  {base}/prometheus")
    if config.metrics is not None:
        click.echo(f"           {scheme}://{config.metrics}/metrics  (off with --metrics off)")
    if config.dev_cert:
        _tell_dev_cert(config)
    if config.stores:
        click.echo(f"  data     {', '.join(map(without_password, config.stores))}")
    else:
        click.echo(f"  data     {config.data}  (durability: {config.durability})")


def _tell_dev_cert(config: configuration.Config) -> None:
    host = str(config.http) if config.http.host in ("localhost", "127.0.0.1", "::1") else f"localhost:{config.http.port}"
    file = shlex.quote(str(config.tls_cert_file))
    click.echo(f"  TLS      {config.tls_cert_file}  (a development certificate, for this machine only; trust it like this:)")
    click.echo(f"           curl --cacert {file} https://{host}/health")
