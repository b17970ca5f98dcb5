"""Flags that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock import config as configuration

F = TypeVar("F", bound=Callable[..., Any])

#: The settings that have a flag, and the placeholder of its value (None: it has no value).
FLAGS: Final[dict[str, str | None]] = {
    "data": "DIR",
    "stores": "URL",
    "redis": "URL",
    "http": "HOST:PORT",
    "tcp": "HOST:PORT|off",
    "resp": "HOST:PORT|off",
    "resp_plain": "HOST:PORT|off",
    "metrics": "HOST:PORT|off",
    "batches": "HOST:PORT|off",
    "topics": "HOST:PORT|off",
    "messages": "HOST:PORT|off",
    "tls_cert_file": "FILE",
    "tls_key_file": "FILE",
    "tls_client_ca_file": "FILE",
    "dev_cert": None,
    "allowed_hosts": "HOST,...",
    "lake": "DIR|URL",
    "durability": "always|interval|never",
    "log_level": "LEVEL",
    "log_format": "auto|plain|json",
    "insecure": None,
    "accept_loss": None,
}
_SEVERAL: Final = frozenset({"stores"})


def config_option(command: F) -> F:
    """Add ``--config`` to a command, as ``config_file``."""
    kind = click.Path(path_type=Path)
    return click.option("--config", "config_file", metavar="FILE", type=kind, help="YAML file with settings")(command)


def setting_options(*names: str) -> Callable[[F], F]:
    """Add ``--config`` and the flags of some settings to a command, in this order."""

    def give(command: F) -> F:
        command = config_option(command)
        for name in reversed(names):
            more: dict[str, Any] = {"multiple": True} if name in _SEVERAL else {"is_flag": FLAGS[name] is None}
            text = configuration.SETTINGS[name].help
            command = click.option(configuration.flag_of(name), name, metavar=FLAGS[name], help=text, **more)(command)
        return command

    return give


def load(config_file: Path | None, flags: dict[str, Any]) -> configuration.Config:
    """Build the configuration of a command from its arguments. Raises ConfigInvalid."""
    given = {name: _text(value) for name, value in flags.items() if value not in (None, False, ())}
    return configuration.load(given, os.environ, config_file)


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else "yes" if value is True else str(value)
