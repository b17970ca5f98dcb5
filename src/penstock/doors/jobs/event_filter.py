"""The events that a client has subscribed to, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.doors.jobs.event_rendering import PATTERNS

if TYPE_CHECKING:
    from penstock.core.events import EventKind


class EventFilter:
    """Event names and wildcards, and single events excluded from wildcards."""

    def __init__(self) -> None:
        self.begun = False  #: whether anything was ever subscribed to: after that, the client no longer gets the older form
        self.names: dict[str, None] = {}
        self._left_out: set[EventKind] = set()

    @property
    def kinds(self) -> frozenset[EventKind]:
        """The event kinds that match."""
        return frozenset().union(*(PATTERNS[name] for name in self.names)) - self._left_out

    def add(self, names: object) -> None:
        """Add names. Raises InvalidInput, and adds nothing, if one of them is not a name of events."""
        if not isinstance(names, list) or not names or len(names) > limits.subscribe_names_max:
            raise InvalidInput("events must be a non-empty array")
        unknown = [str(name) for name in names if not isinstance(name, str) or name not in PATTERNS]
        if unknown:
            raise InvalidInput(f"Invalid: {', '.join(unknown)}"[: limits.key_chars_max])
        self.begun = True
        for name in names:
            self.names[name] = None
            self._left_out -= PATTERNS[name]

    def remove(self, names: object) -> None:
        """Remove names. A single event is also excluded from the wildcards that include it.

        Without names, remove everything.
        """
        if not names:
            self.names.clear()
            self._left_out.clear()
            return
        if not isinstance(names, list):
            raise InvalidInput("events must be an array")
        for name in names:
            if isinstance(name, str) and name in PATTERNS:
                self.names.pop(name, None)
                if not name.endswith("*"):
                    self._left_out |= PATTERNS[name]
