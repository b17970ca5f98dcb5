"""The cause of an error in a Spark task, without Spark's stack traces around it."""

from __future__ import annotations

import re
from typing import Final

from penstock.client.errors import ApiError, ConnectionFailed, PenstockError

_OURS: Final = re.compile(r"^penstock\.[\w.]+\.\w+: (.+)$", re.MULTILINE)
_SPARKS: Final = re.compile(r"\[[A-Z][A-Z_.]+\][^\n]*")


def ours(error: Exception) -> PenstockError | None:
    """Return the Penstock error in an error of Spark; None if there is none."""
    found = _OURS.findall(str(error))
    return PenstockError(found[-1]) if found else None


def is_passing(error: Exception) -> bool:
    """Return whether a later retry may help: the server did not answer, here or in a task, or was overloaded."""
    if isinstance(error, PenstockError):
        return isinstance(error, ConnectionFailed) or (isinstance(error, ApiError) and error.is_temporary)
    return f"{ConnectionFailed.__module__}.{ConnectionFailed.__name__}: " in str(error)


def sentence(error: Exception) -> str:
    """Return the sentence of Spark's text with the cause: the last one with an error name, or else the first line."""
    text = str(error)
    named = _SPARKS.findall(text)
    said = named[-1] if named else next(iter(text.splitlines()), type(error).__name__)
    return said.split("; line", maxsplit=1)[0].split(" SQLSTATE", maxsplit=1)[0].rstrip(". ")
