"""The addresses of listeners: names are resolved, and an address that cannot be used gives a clear error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

import structlog
from granian.constants import Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server as Granian

from penstock.config import flag_of
from penstock.core import limits
from penstock.core.errors import ConfigInvalid
from penstock.doors.http.request_log import RequestLog

if TYPE_CHECKING:
    from penstock.config import Config, Listener
    from penstock.core.clock import Clock
    from penstock.doors.http.app import HttpApp
    from penstock.doors.net.listener import ConnectionListener

log = structlog.get_logger("penstock")

#: Connections that may be waiting to be accepted.
BACKLOG: Final = 4_096
#: A client that does not finish its headers within this time is disconnected.
HEADER_TIMEOUT_MS: Final = 10_000
#: What is offered with TLS 1.2: key exchange with forward secrecy, and authenticated encryption (AEAD). TLS 1.3 has only
#: such ciphers, and Granian (rustls) offers no others.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


def check_tls(config: Config) -> ssl.SSLContext | None:
    """Return the TLS settings of a listener; None without TLS. Raises ConfigInvalid, with the file and the remedy."""
    cert, key = config.tls_cert_file, config.tls_key_file
    if cert is None or key is None:
        return None
    the_cert, the_key = _told(config, "tls_cert_file"), _told(config, "tls_key_file")
    for told, file in ((the_cert, cert), (the_key, key)):
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ConfigInvalid(f"{told} cannot be read: {error.strerror}.") from None
        if b"-----BEGIN " not in text:
            raise ConfigInvalid(f"{told} is not a PEM file. Convert it with openssl.")
        if b"ENCRYPTED" in text:
            raise ConfigInvalid(f"{told} has a passphrase. Remove it with: openssl pkey -in FILE -out NEW.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could renegotiate keys again and again
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigInvalid(f"{the_key} is not the key of the certificate in {the_cert}.") from None
        raise ConfigInvalid(
            f"{the_cert} and {the_key} cannot be used: {error.reason or error}. Expected a certificate "
            "and its private key in PEM form."
        ) from None
    if config.tls_client_ca_file is not None:
        told = _told(config, "tls_client_ca_file")
        try:
            context.load_verify_locations(cafile=config.tls_client_ca_file)
        except ssl.SSLError as error:
            raise ConfigInvalid(
                f"{told} cannot be used: {error.reason or error}. Expected certificates in PEM form."
            ) from None
        except OSError as error:
            raise ConfigInvalid(f"{told} cannot be read: {error.strerror}.") from None
        if not context.get_ca_certs():
            raise ConfigInvalid(f"{told} has no certificate of an authority, so no client could connect.")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _told(config: Config, name: str) -> str:
    """Return the name that the user wrote for a file: the flag if it was given as one, otherwise the setting."""
    origin = config.origins.get(name, "")
    return f"{origin if origin.startswith('--') else name} ({getattr(config, name)})"


def listen(app: HttpApp, listener: Listener, config: Config, clock: Clock, *, connections_max: int) -> Granian:
    """Return an HTTP server for an application, ready to serve. It accepts at most ``connections_max`` connections."""
    return Granian(
        RequestLog(app, clock) if config.log_level == "debug" else app,
        address=_address(listener),
        port=listener.port,
        interface=Interfaces.RSGI,
        backlog=BACKLOG,
        backpressure=connections_max,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=limits.http1_buffer_bytes_max),
        http2_settings=HTTP2Settings(
            max_concurrent_streams=limits.http2_streams_max, max_headers_size=limits.header_list_bytes_max
        ),
        log_enabled=False,
        ssl_cert=config.tls_cert_file,
        ssl_key=config.tls_key_file,
        ssl_protocol_min=SSLProtocols.tls12,
        ssl_ca=config.tls_client_ca_file,
        ssl_client_verify=config.tls_client_ca_file is not None,
    )


def _address(listener: Listener) -> str:
    """Return the IP address of a listener's host."""
    try:
        found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigInvalid(
            f"Cannot listen on {listener}: {listener.host} is not the address of this machine ({error})."
        ) from None
    addresses = sorted({str(each[4][0]) for each in found}, key=lambda address: ":" in address)  # 127.0.0.1 before ::1
    return addresses[0]


def check_free(listener: Listener, name: str) -> None:
    """Raise ConfigInvalid if another program listens on the address."""
    address = _address(listener)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, listener.port))
        except OSError as error:
            raise ConfigInvalid(
                f"Cannot listen on {listener}: {os.strerror(error.errno or 0)}. Stop the program that uses it, or choose "
                f"another address with {flag_of(name)}."
            ) from None


def wanted(config: Config, name: str, listener: Listener) -> bool:
    """Return whether a listener can be started. A listener that is on by default never prevents the server from starting."""
    try:
        check_free(listener, name)
    except ConfigInvalid as error:
        if name in config.origins:
            raise
        log.warning("a listener is not started", listener=name, reason=str(error))
        return False
    return True


async def start(
    name: str, opened: ConnectionListener[Any], listener: Listener | None, config: Config, tls: ssl.SSLContext | None
) -> bool:
    """Start a listener other than HTTP if it is wanted and possible, and return whether it runs. ``name`` is its setting."""
    if listener is None or not wanted(config, name, listener):
        return False
    try:
        await opened.start(_address(listener), listener.port, backlog=BACKLOG, tls=tls)
    except OSError as error:  # another program was faster
        if name in config.origins:
            raise ConfigInvalid(f"Cannot listen on {listener}: {error.strerror}.") from None
        log.warning("a listener is not started", listener=name, reason=str(error))
        return False
    return True


async def until_listening(listener: Listener, running: asyncio.Task[None]) -> None:
    """Wait until the listener accepts connections."""
    while not running.done():
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(listener.host, listener.port)
            writer.close()
            return
        await asyncio.sleep(0.01)
    running.result()
