"""Which namespace a client means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.job import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from granian._granian import RSGIHeaders

#: What namespaces, and the queues of most doors, may be called.
NAME: Final = re.compile(r"[A-Za-z0-9_.:-]+\Z")


def namespace_in(headers: RSGIHeaders) -> str:
    """Return the namespace that headers choose: the default one without X-Namespace."""
    if "x-namespace" not in headers:
        return DEFAULT_NAMESPACE
    return check_namespace(headers.get("x-namespace"))  # None, if it is not ASCII


def check_namespace(name: str | None, told_by: str = "X-Namespace") -> str:
    """Return what can be the name of a namespace; raises InvalidInput, naming who tells it, for anything else."""
    if name is None or not 0 < len(name) <= limits.namespace_chars_max or NAME.match(name) is None:
        raise InvalidInput(f"{told_by} contains invalid characters or is too long")
    return name
