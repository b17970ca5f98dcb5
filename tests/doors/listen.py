"""Readers of live events, over clients we did not write."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2
    from websockets.sync.client import ClientConnection

    from tests.support.server import ServerProcess

WAIT_S = 20


class Ear:
    """A WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.skipped: list[Any] = []

    def receive(self) -> Any:
        return json.loads(self.socket.recv(timeout=WAIT_S))

    def ask(self, cmd: str, **more: Any) -> Any:
        """Send a command; return its reply, keeping events that come before it."""
        self.socket.send(json.dumps({"cmd": cmd, **more}))
        while "ok" not in (message := self.receive()):
            self.skipped.append(message)
        return message

    def until(self, name: str, /, **fields: Any) -> Any:
        """Return the payload of the next event of a name that has some fields."""
        while True:
            message = self.receive()
            if message.get("event") == name and fields.items() <= message["data"].items():
                return message["data"]
            self.skipped.append(message)


@contextmanager
def ear(server: ServerProcess, *events: str, path: str = "/ws", **options: Any) -> Iterator[Ear]:
    with connect(f"ws://127.0.0.1:{server.port}{path}", **options) as socket:
        listening = Ear(socket)
        if events:
            assert listening.ask("Subscribe", events=list(events)) == {"ok": True, "subscribed": list(events)}
            # Until a client subscribes, it receives the older form of all events.
            listening.skipped = [each for each in listening.skipped if "event" in each]
        yield listening


class Place(tuple[int, ...]):
    """The id of an event of a stream: its number, or one per shard. They grow from event to event."""

    __slots__ = ()

    def __str__(self) -> str:
        return "-".join(map(str, self))


class StreamEar:
    """An event stream, read message by message."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def message(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line and fields:
                return fields
            name, _, value = line.partition(":")
            if line:
                fields[name or "comment"] = value.removeprefix(" ")
        raise EOFError

    def event(self) -> tuple[Place | None, Any]:
        message = self.message()
        place = message.get("id")
        return None if place is None else Place(int(part) for part in place.split("-")), json.loads(message["data"])


@contextmanager
def stream(client: httpx2.Client, path: str = "/events", **options: Any) -> Iterator[StreamEar]:
    with client.stream("GET", path, **options) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["connection"] == "keep-alive"
        listening = StreamEar(response)
        first = listening.message()
        assert first["retry"] == "3000"
        assert json.loads(first["data"]).keys() == {"connected", "clientId"}
        yield listening
