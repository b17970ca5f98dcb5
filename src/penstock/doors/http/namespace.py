"""The namespace of a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.job import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from granian._granian import RSGIHeaders

#: Valid names of namespaces, and of queues in most doors.
NAME: Final = re.compile(r"[A-Za-z0-9_.:-]+\Z")


def namespace_in(headers: RSGIHeaders) -> str:
    """Return the namespace that the headers choose: the default namespace without X-Namespace."""
    if "x-namespace" not in headers:
        return DEFAULT_NAMESPACE
    return check_namespace(headers.get("x-namespace"))  # None if the value is not ASCII


def check_namespace(name: str | None, told_by: str = "X-Namespace") -> str:
    """Return a valid namespace name. Raises InvalidInput, which names ``told_by``, for anything else."""
    if name is None or not 0 < len(name) <= limits.namespace_chars_max or NAME.match(name) is None:
        raise InvalidInput(f"{told_by} contains invalid characters or is too long")
    return name
