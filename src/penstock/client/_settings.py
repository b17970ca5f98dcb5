"""Settings of a connection: the base of every client, worker and group of tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.client import _tls
from penstock.masking import without_password

if TYPE_CHECKING:
    import ssl

DEFAULT_URL = "http://127.0.0.1:6790"
#: The problem with a secret that cannot be sent. The text never has the secret itself.
UNSENDABLE = "must be of printable ASCII characters, and has others: is there a line break in it, or a quotation mark?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to reach a server. Durations in seconds; ``Client`` documents each."""

    url: str
    api_key: str | None = None
    token: str | None = None
    namespace: str | None = None
    timeout: float = 30.0
    retry_for: float = 30.0
    connect_timeout: float = 5.0
    verify: ssl.SSLContext | bool = True
    ca: _tls.Path | None = None
    cert: _tls.Certificate | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, not {self.url!r}. Try http://{self.url}")
        if self.verify is not True and (self.ca is not None or self.cert is not None):
            raise ValueError("verify cannot be given together with ca or cert: put these into the SSLContext")
        for name, secret in (("api_key", self.api_key), ("token", self.token)):
            if secret is not None and not is_sendable(secret):
                raise ValueError(f"{name} {UNSENDABLE}")

    def __repr__(self) -> str:
        return f"Settings(url={without_password(self.url)!r}, namespace={self.namespace!r})"  # never a secret

    def but(self, **changes: Any) -> Settings:
        """Return a copy with changes."""
        return replace(self, **changes)

    def trust(self) -> ssl.SSLContext | bool:
        """Return the value of the HTTP client's TLS option. Raises ValueError if a file cannot be used."""
        if not self.url.startswith("https"):  # loading the system's certificates is slow
            return False
        return self.verify if self.ca is None and self.cert is None else _tls.context(self.ca, self.cert)

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        headers = {"content-type": "application/json", "user-agent": "penstock-client"}
        if self.api_key is not None:
            headers["x-api-key"] = self.api_key
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        if self.namespace is not None:
            headers["x-namespace"] = self.namespace
        return headers


def is_sendable(secret: str) -> bool:
    """Return whether a secret can be sent as it is. A later check would put the secret into an error text."""
    return secret.isascii() and secret.isprintable() and secret == secret.strip()


def from_environment() -> Settings:
    """Read PENSTOCK_URL, _API_KEY, _TOKEN, _NAMESPACE, and PENSTOCK_TLS_CA_FILE, _CERT_FILE, _KEY_FILE."""
    ca, cert = _tls.from_environment()
    return Settings(
        url=os.environ.get("PENSTOCK_URL", DEFAULT_URL),
        api_key=os.environ.get("PENSTOCK_API_KEY", "").strip() or None,
        token=os.environ.get("PENSTOCK_TOKEN", "").strip() or None,
        namespace=os.environ.get("PENSTOCK_NAMESPACE") or None,
        ca=ca,
        cert=cert,
    )
