"""TLS of a client: the authorities that it trusts, and its own certificate (mutual TLS)."""

from __future__ import annotations

import os
import ssl
from typing import Final

Path = str | os.PathLike[str]
#: A PEM file with a certificate and its private key, or one file for each.
Certificate = Path | tuple[Path, Path]

CA_VARIABLE: Final = "PENSTOCK_TLS_CA_FILE"
CERT_VARIABLE: Final = "PENSTOCK_TLS_CERT_FILE"
KEY_VARIABLE: Final = "PENSTOCK_TLS_KEY_FILE"


def context(ca: Path | None, cert: Certificate | None) -> ssl.SSLContext:
    """Return the TLS settings. ``ca``: PEM file with the authorities to trust; None: those of the system.

    Raises ValueError, with the names of the files, if one of them cannot be used.
    """
    try:
        made = ssl.create_default_context(cafile=ca)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
    except OSError as error:
        raise ValueError(f"ca ({os.fspath(ca or '')}) cannot be used: {_why(error)}") from None
    if cert is not None:
        file, key = cert if isinstance(cert, tuple) else (cert, None)
        try:
            made.load_cert_chain(file, key, password=_no_passphrase)
        except OSError as error:
            told = os.fspath(file) if key is None else f"{os.fspath(file)}, {os.fspath(key)}"
            raise ValueError(f"cert ({told}) cannot be used: {_why(error)}") from None
    return made


def from_environment() -> tuple[str | None, Certificate | None]:
    """Read PENSTOCK_TLS_CA_FILE, PENSTOCK_TLS_CERT_FILE and PENSTOCK_TLS_KEY_FILE: authorities to trust, own certificate."""
    ca, cert, key = (os.environ.get(name) or None for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE))
    return ca, cert if cert is None or key is None else (cert, key)


def _why(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return f"{reason or error}."


def _no_passphrase() -> str:
    """Return an empty passphrase, so that a worker never waits for one at the terminal."""
    return ""
