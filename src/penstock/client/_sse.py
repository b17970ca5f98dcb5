"""Parse server-sent events, line by line. Does no I/O."""

from __future__ import annotations

import msgspec

from penstock.client.models import Event


class SseReader:
    """Builds events from lines. Comments, and messages that only confirm the connection, are left out."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: str) -> Event | None:
        """Read one line, without its end; return the event that it completes."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                self._data.append(value)
            elif name == "event":
                self._name = value
            elif name == "id":
                self._id = value
            return None
        event = None
        if self._data and self._name:
            event = Event(id=self._id, kind=self._name, data=msgspec.json.decode("\n".join(self._data)))
        self._id, self._name, self._data = None, "", []
        return event
