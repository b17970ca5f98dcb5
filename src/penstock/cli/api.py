"""Send requests to a running server over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click
import msgspec

from penstock.core.errors import ConfigInvalid, ServerError

ANSWER_S: Final = 30.0

F = TypeVar("F", bound=Callable[..., Any])


def server_options(command: F) -> F:
    """Add ``--url`` and ``--token`` to a command."""
    url = click.option("--url", default="http://127.0.0.1:6790", show_default=True, envvar="PENSTOCK_URL", help="any server")
    return url(token_option(command))


def token_option(command: F) -> F:
    """Add ``--token`` to a command."""
    text = "the token or API key, if the server requires one; default: $PENSTOCK_TOKEN"
    return click.option("--token", envvar="PENSTOCK_TOKEN", help=text)(command)


class RequestRefused(ServerError):
    """The server refused the request."""

    code = "refused"


def ask(method: str, url: str, path: str, token: str | None, body: Any = None) -> dict[str, Any]:
    """Send a request to a server. Raises RequestRefused with its text if it refuses, PenstockError if it cannot be reached."""
    if not url.startswith(("http://", "https://")):
        raise ConfigInvalid(f"--url must begin with http:// or https://, and is {url!r}")
    headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    data = None if body is None else msgspec.json.encode(body)
    request = Request(url.rstrip("/") + path, data, headers, method=method)  # noqa: S310 - looked at above
    try:
        with build_opener(ProxyHandler({}), *_tls(url)).open(request, timeout=ANSWER_S) as reply:
            found: dict[str, Any] = msgspec.json.decode(reply.read())
            return found
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        if error.code in (400, 403, 404, 409):
            raise RequestRefused(_words(text)) from error
        raise ServerError(f"{url} answered {error.code}: {text[:1_000]}") from error
    except (URLError, OSError) as error:
        raise ServerError(f"{url} cannot be reached: {error}. Name a server with --url.") from error


def _tls(url: str) -> list[HTTPSHandler]:
    """Return the TLS settings from the variables of the SDK. Raises ConfigInvalid."""
    if not url.startswith("https"):
        return []
    from penstock.client import _tls as tls  # noqa: PLC0415 - commands that need no client start without it

    try:
        return [HTTPSHandler(context=tls.context(*tls.from_environment()))]
    except ValueError as error:
        raise ConfigInvalid(f"{error} See PENSTOCK_TLS_CA_FILE, PENSTOCK_TLS_CERT_FILE and PENSTOCK_TLS_KEY_FILE.") from None


def _words(text: str) -> str:
    try:
        return str(msgspec.json.decode(text)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text[:1_000]
