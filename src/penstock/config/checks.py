"""Checks of settings that depend on each other, from whatever source each comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config.parsers import Listener
from penstock.config.settings import SETTINGS, flag_of
from penstock.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from penstock.config.settings import Config


def check_listeners(config: Config) -> None:
    """Raise ConfigInvalid if two listeners have the same address, or one would accept other machines without permission."""
    found = {name: each for name in SETTINGS if isinstance(each := getattr(config, name), Listener)}
    listeners = list(found.values())
    for listener in listeners:
        if listeners.count(listener) > 1:
            raise ConfigInvalid(f"Two listeners share the address {listener}. Give each its own, or switch one off.")
    exposed = [str(listener) for listener in listeners if not listener.is_loopback]
    unasked = [str(each) for name, each in found.items() if not each.is_loopback and name not in config.unguarded]
    if unasked and not config.asks_for_tokens and not config.insecure:
        raise ConfigInvalid(
            f"Listening on {', '.join(unasked)} would give access to everyone who can reach this machine. Set AUTH_TOKENS or "
            "JWT_SECRET, create keys and set auth_required, or listen on 127.0.0.1. To allow access without tokens, set "
            "--insecure."
        )
    if exposed and config.dev_cert and not config.insecure:
        # Clients on other machines would disable the verification. Then a machine in between can read everything, with the
        # tokens.
        raise ConfigInvalid(
            f"Listening on {', '.join(exposed)} with a development certificate: only clients on "
            "this machine can trust it. Set your own certificate with --cert and --key, or listen on 127.0.0.1. To use it "
            "anyway, set --insecure."
        )


def check_tls(config: Config) -> None:
    """Raise ConfigInvalid if a setting that TLS needs is missing, or two of them contradict each other."""
    files = ("tls_cert_file", "tls_key_file")
    given = [f"{name} (from {config.origins[name]})" for name in files if getattr(config, name) is not None]
    if len(given) == 1:
        (missing,) = (name for name in files if getattr(config, name) is None)
        raise ConfigInvalid(
            f"TLS needs both a certificate and its key, and there is only {given[0]}. Set {missing} too, with "
            f"{flag_of(missing)} or ${SETTINGS[missing].env[0]}, or neither."
        )
    if given and config.dev_cert:
        raise ConfigInvalid(
            f"There is a certificate in {' and '.join(given)}, and dev_cert (from {config.origins['dev_cert']}) creates "
            "another one. Remove one of the two settings."
        )
    if config.tls_client_ca_file is not None and not given and not config.dev_cert:
        raise ConfigInvalid(
            f"tls_client_ca_file (from {config.origins['tls_client_ca_file']}) requires certificates of clients, and there is "
            "no TLS without a certificate of the server. Set tls_cert_file and tls_key_file too, with --cert and --key."
        )


def check_messages(config: Config) -> None:
    """Raise ConfigInvalid if the default number of messages for a consumer is above the allowed number."""
    if config.messages_batch_default > config.messages_batch_max:
        raise ConfigInvalid(
            f"messages_batch_default ({config.messages_batch_default}) is more than messages_batch_max "
            f"({config.messages_batch_max}). Reduce it, or increase the other one."
        )


def check_wal_dir(config: Config) -> None:
    """Raise ConfigInvalid if a directory is given for a log that is not used."""
    if config.wal_dir is not None and not any(store.startswith("postgres") for store in config.stores):
        raise ConfigInvalid(
            f"wal_dir (from {config.origins['wal_dir']}) is where the log of the enqueue buffer is kept, and only databases "
            "have one. Give them too (--store postgresql://…, or DATABASE_URLS), or unset it: a file keeps its log beside it, "
            "in the directory given by --data."
        )
