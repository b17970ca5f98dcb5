"""Find files with secrets that other users can read or write, and secrets that are too short. Reported at the start."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from penstock.config.settings import SECRETS
from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.config.settings import Config

#: Permissions that a file with a secret must not have. Its group may read it, because the members of a group are chosen.
_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP


def findings(config: Config, file: Path | None) -> Iterator[str]:
    """Yield a text with the remedy for each secret that is not protected. ``file``: the file with the settings."""
    for name in ("auth_tokens", "api_key"):
        secrets: tuple[str, ...] = config.auth_tokens if name == "auth_tokens" else (config.api_key,)
        if any(0 < len(each) < limits.token_chars_min for each in secrets):
            yield (
                f"{name} (from {config.origins[name]}) has a secret of fewer than {limits.token_chars_min} characters, "
                "which can be guessed. Make one with: openssl rand -hex 24"
            )
    if file is not None and any(config.origins.get(name, "").startswith(f"{file}, line ") for name in sorted(SECRETS)):
        yield from _too_open(file, "The configuration file holds secrets")
    if config.tls_key_file is not None:
        yield from _too_open(config.tls_key_file, "tls_key_file holds a private key")
    yield from _writable(config.data)


def _too_open(file: Path, what: str) -> Iterator[str]:
    mode = _mode(file)
    if mode & _TOO_OPEN:
        yield f"{what}, and other users may read or change {file} (mode {mode:04o}). Run: chmod 600 {file}"


def _writable(directory: Path) -> Iterator[str]:
    mode = _mode(directory)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield (
            f"Other users may replace files in the data directory {directory} (mode {mode:04o}). Run: chmod 700 {directory}"
        )


def _mode(path: Path) -> int:
    """Return the permissions of a file; 0 if it does not exist, which is reported elsewhere."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
