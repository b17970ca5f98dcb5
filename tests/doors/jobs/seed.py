"""The contract's tables, from seed.toml: which routes, events and commands there must be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

_TABLES: Final = tomllib.loads((Path(__file__).parent / "seed.toml").read_text(encoding="utf-8"))

#: Rows of the route tables: ``POST /queues/:q/jobs``.
ROUTES: Final[tuple[str, ...]] = tuple(row for rows in _TABLES["routes"].values() for row in rows)
#: How many rows each route table has.
ROUTE_TABLES: Final[dict[str, int]] = {name: len(rows) for name, rows in _TABLES["routes"].items()}
#: Payload of each event; a name that ends in ? may be missing.
EVENTS: Final[dict[str, tuple[str, ...]]] = {name: tuple(fields) for name, fields in _TABLES["events"].items()}
COMMANDS: Final[frozenset[str]] = frozenset(_TABLES["commands"]["served"])
ABSENT_COMMANDS: Final[frozenset[str]] = frozenset(_TABLES["commands"]["absent"])
SOCKET_COMMANDS: Final[frozenset[str]] = frozenset(_TABLES["commands"]["websocket"])


def row_of(method: str, path: str) -> str | None:
    """Return the row that a request belongs to: of several that fit, the one with the fewest placeholders."""
    found = [row for row in ROUTES if _pattern(row).fullmatch(f"{method} {path}")]
    return min(found, key=lambda row: row.count(":"), default=None)


def _pattern(row: str) -> re.Pattern[str]:
    return re.compile("".join("[^/]+" if part.startswith(":") else re.escape(part) for part in re.split(r"(:\w+)", row)))


def fits(name: str, payload: dict[str, object]) -> bool:
    """Tell whether a payload has the fields that the contract gives an event, all of them and no others."""
    fields = EVENTS[name]
    needed = {field for field in fields if not field.endswith("?")}
    return needed <= payload.keys() <= {field.removesuffix("?") for field in fields}
