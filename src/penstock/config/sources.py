"""Build the configuration from the file, the environment and the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.config import parsers
from penstock.config.checks import check_listeners, check_messages, check_tls, check_wal_dir
from penstock.config.env_compat import MQUEUE_ORIGIN, from_originals, scopes_of_mqueue
from penstock.config.exposed import findings
from penstock.config.file import Given, read_file
from penstock.config.settings import SECRETS, SETTINGS, Config, flag_of
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def load(flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None) -> Config:
    """Build the configuration. Raises ConfigInvalid, with the setting, its source and what was expected."""
    found = read_file(file)
    originals = from_originals(env)
    texts = found.texts | originals.texts | _from_env(env, found.texts)
    texts |= {name: Given(text, flag_of(name), name) for name, text in flags.items()}
    texts |= scopes_of_mqueue(env, texts)
    values: dict[str, Any] = {}
    for name, given in texts.items():
        try:
            values[name] = SETTINGS[name].read(given.text.strip())
        except ValueError as error:
            shown = "***" if name in SECRETS else repr(given.text)
            raise ConfigInvalid(f"{given.key} (from {given.origin}) is {shown}: {error}.") from None
    origins = {name: given.origin for name, given in texts.items()}
    unguarded = frozenset(name for name, host in found.unguarded.items() if _host(values.get(name)) == host)
    config = Config(**values, origins=origins, unguarded=unguarded)
    config = msgspec.structs.replace(
        config, notes=(*found.notes, *originals.notes, *_warnings(config), *findings(config, file))
    )
    check_listeners(config)
    check_tls(config)
    check_messages(config)
    check_wal_dir(config)
    return config


def _warnings(config: Config) -> Iterator[str]:
    """Yield warnings about settings that are allowed and carry a risk."""
    if config.origins.get("jwt_default_scopes") == MQUEUE_ORIGIN:
        yield (
            "JSON Web Tokens without scopes may read and write in every namespace, as in mqueue, whose variables are set. Have "
            "tokens issued with scopes, and set JWT_DEFAULT_SCOPES to none."
        )
    for name in sorted(config.unguarded):
        listener = getattr(config, name)
        if not listener.is_loopback and not config.asks_for_tokens:
            yield f"{name} listens on {listener} and requires no key, because of auth.enabled in the file."
    if config.tls_client_ca_file is not None and config.resp_plain is not None:
        yield "resp_plain never uses TLS, so its clients need no certificate, although tls_client_ca_file is set."


def _host(value: object) -> str:
    return value.host if isinstance(value, parsers.Listener) else ""


def _from_env(env: Mapping[str, str], from_file: Mapping[str, Given]) -> dict[str, Given]:
    texts: dict[str, Given] = {}
    host, defaults = env.get("HOST"), Config()
    for listener, default in (("http", defaults.http), ("tcp", defaults.tcp)):
        assert default is not None
        variable = f"{listener.upper()}_PORT"
        port = env.get(variable)
        if port or (host and f"PENSTOCK_{listener.upper()}" not in env and parsers.is_address(host)):
            address = host if host and parsers.is_address(host) else default.host
            names = [f"${name}" for name, value in (("HOST", host), (variable, port)) if value]
            texts[listener] = Given(f"{address}:{port or default.port}", " and ".join(names), listener)
    for variable in ("EPOCHQUEUE_PORT", "EPOCHQ_PORT"):
        if env.get(variable):  # the file gives the address
            address = from_file["messages"].text.rpartition(":")[0] if "messages" in from_file else "127.0.0.1"
            texts["messages"] = Given(f"{address or '127.0.0.1'}:{env[variable]}", f"${variable}", "messages")
    for name, setting in SETTINGS.items():
        for variable in setting.env:
            if env.get(variable):
                texts[name] = Given(env[variable], f"${variable}", name)
                break
    return texts
