"""Names of queues, checked on the client where the mistake was made."""

from __future__ import annotations

import re
from typing import Final

from penstock.client._request import path

#: The server's limits; a test compares the two.
NAME_CHARS_MAX: Final = 256
_NEW: Final = re.compile(r"[A-Za-z0-9_.:-]+\Z")
_ALLOWED: Final = f"A name has 1 to {NAME_CHARS_MAX} letters, digits, and any of . _ : -"


def new_queue(name: str) -> str:
    """Return the name if a new queue may have it. Raises TypeError or ValueError, with the name, if not."""
    queue(name)
    if len(name) > NAME_CHARS_MAX or _NEW.match(name) is None:
        shown = name if len(name) <= NAME_CHARS_MAX else f"{name[:40]}…"
        raise ValueError(f"{shown!r} cannot be the name of a queue or namespace. {_ALLOWED}.")
    return name


def queue(name: str) -> str:
    """Return the name if a queue may have it. A topic's name may have more characters, but none that ends a part of a URL."""
    if not isinstance(name, str):
        raise TypeError(f"The name of a queue or namespace must be a text, not {type(name).__name__}")
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} cannot be the name of a queue or namespace. {_ALLOWED}.")
    return name


def queue_path(template: str, *names: str) -> str:
    """Return a path with the names of queues or namespaces in place of ``{}``."""
    return path(template, *(queue(name) for name in names))
