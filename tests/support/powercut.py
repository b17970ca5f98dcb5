"""Pulling the plug: records every write and sync that SQLite makes, and builds the disk as a power cut would have left it.

What was synced is there. Of what was not, nothing, a random part, or torn pieces of 512 bytes are there. One recorded run
gives thousands of moments at which the plug could have been pulled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

if TYPE_CHECKING:
    import random


class Event(NamedTuple):
    kind: str  # write, truncate, sync, delete, mark
    file: str
    offset: int = 0
    data: bytes = b""
    mark: Any = None


class Recorder:
    """Everything that happened to the files of one store, and the marks the test put between."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def mark(self, mark: Any) -> None:
        """Note that an answer left at this moment."""
        self.events.append(Event("mark", "", mark=mark))

    def synced(self, file: str, began: int) -> None:
        """Note that a sync has ended. It vouches for what was written before it began, not for what came during it."""
        self.events.append(Event("sync", file, offset=began))

    def image(self, until: int, mode: str, rng: random.Random) -> dict[str, bytes]:
        """Return the files as they would be found after a power cut at a moment. Modes: drop, subset, torn."""
        durable: dict[str, bytearray] = {}
        pending: dict[str, list[tuple[int, Event]]] = {}
        for number, event in enumerate(self.events[:until]):
            if event.kind in ("write", "truncate"):
                pending.setdefault(event.file, []).append((number, event))
            elif event.kind == "sync":
                content = durable.setdefault(event.file, bytearray())
                written = pending.pop(event.file, [])
                for at, each in written:
                    if at < event.offset:
                        _apply(content, each)
                pending[event.file] = [(at, each) for at, each in written if at >= event.offset]
            elif event.kind == "delete":
                durable.pop(event.file, None)
                pending.pop(event.file, None)
        for file, events in pending.items():
            content = durable.setdefault(file, bytearray())
            for _, each in events:
                for piece in _pieces(each, mode):
                    if mode != "drop" and rng.random() < 0.5:
                        _apply(content, piece)
        return {file: bytes(content) for file, content in durable.items()}

    def marks(self, until: int) -> list[Any]:
        return [event.mark for event in self.events[:until] if event.kind == "mark"]


def _pieces(event: Event, mode: str) -> list[Event]:
    if mode != "torn" or event.kind != "write":
        return [event]
    return [
        event._replace(offset=event.offset + at, data=event.data[at : at + 512]) for at in range(0, len(event.data), 512)
    ]


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == "write":
        if len(content) < event.offset:
            content.extend(bytes(event.offset - len(content)))
        content[event.offset : event.offset + len(event.data)] = event.data
    else:
        del content[event.offset :]
        content.extend(bytes(event.offset - len(content)))


class RecordingVfs(apsw.VFS):
    """SQLite's view of the file system, with a recorder looking over its shoulder."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__(name, "unix")
        self.name = name
        self.recorder = recorder

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the name is SQLite's
        return _RecordingFile(name, flags, self.recorder)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802
        self.recorder.events.append(Event("delete", Path(name).name))
        super().xDelete(name, syncdir)


class _RecordingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], recorder: Recorder) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.file = os.path.basename(path) if path else None  # noqa: PTH119
        self.recorder = recorder
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self.file:
            self.recorder.events.append(Event("write", self.file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        if self.file:
            self.recorder.events.append(Event("truncate", self.file, size))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        began = len(self.recorder.events)
        super().xSync(flags)
        if self.file:
            self.recorder.synced(self.file, began)
