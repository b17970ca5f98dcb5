"""What went wrong in a task of Spark, without the pages that Spark puts around it."""

from __future__ import annotations

import re
from typing import Final

from penstock.client.errors import ApiError, ConnectionFailed, PenstockError

_OURS: Final = re.compile(r"^penstock\.[\w.]+\.\w+: (.+)$", re.MULTILINE)
_SPARKS: Final = re.compile(r"\[[A-Z][A-Z_.]+\][^\n]*")


def ours(error: Exception) -> PenstockError | None:
    """Return the error of ours that is somewhere in what Spark says; None if there is none."""
    found = _OURS.findall(str(error))
    return PenstockError(found[-1]) if found else None


def is_passing(error: Exception) -> bool:
    """Tell whether the server just did not answer, here or in a task, or has no time: another try later may do."""
    if isinstance(error, PenstockError):
        return isinstance(error, ConnectionFailed) or (isinstance(error, ApiError) and error.is_temporary)
    return f"{ConnectionFailed.__module__}.{ConnectionFailed.__name__}: " in str(error)


def sentence(error: Exception) -> str:
    """Return the one sentence of Spark that says what is wrong: the last that has a name, or else the first line."""
    text = str(error)
    named = _SPARKS.findall(text)
    said = named[-1] if named else next(iter(text.splitlines()), type(error).__name__)
    return said.split("; line", maxsplit=1)[0].split(" SQLSTATE", maxsplit=1)[0].rstrip(". ")
