"""Pages of the journal for one namespace: events of other namespaces are skipped without being decoded."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.core import limits
from penstock.store.contract import JournalBlock, JournalPage

#: Replaces an event of another namespace, so that the numbers of the following events stay right. No kind has the number 0.
FOREIGN: Final = (0, 0, 0, None)


class _Head(msgspec.Struct, array_like=True, gc=False):
    """The beginning of an event. The decoder skips the rest of it."""

    kind: int
    queue: int
    job: int
    named: Any  #: the custom id of the job; of an event without a queue, its namespace


_split: Final = msgspec.msgpack.Decoder(tuple[dict[int, tuple[str, str]], msgspec.Raw]).decode
_heads: Final = msgspec.msgpack.Decoder(list[_Head]).decode
_pieces: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_event: Final = msgspec.msgpack.Decoder(list[object]).decode


class PageReader:
    """Makes a page of consecutive blocks, from the one that contains the number ``seq`` on.

    ``bytes_max``: how many bytes of the namespace's events are decoded, in stored form; at least one event.
    """

    def __init__(self, seq: int, namespace: str, bytes_max: int) -> None:
        self._seq = seq
        self._namespace = namespace
        self._room = bytes_max
        self._first = 0
        self._next = seq
        self._read_bytes = 0
        self._read_blocks = 0
        self._found: list[JournalBlock] = []
        self.is_full = False  #: no further block should be added

    def add(self, first: int, count: int, at: int, body: bytes) -> None:
        """Add a block: the number of its first event, its number of events, its time, and its body."""
        self._first = self._first or first
        self._read_bytes += len(body)
        self._read_blocks += 1
        self._next = max(self._next, self._keep_own_events(first, count, at, body))
        if self._read_bytes >= limits.replay_read_bytes or self._read_blocks >= limits.replay_blocks:
            self.is_full = True

    def _keep_own_events(self, first: int, count: int, at: int, body: bytes) -> int:
        """Keep the events of the namespace. Return the number of the event at which to continue."""
        queues, raw = _split(body)
        own = {number for number, (namespace, _) in queues.items() if namespace == self._namespace}
        without = {number for number, (namespace, _) in queues.items() if not namespace}
        if not own and not without:
            return first + count
        events: list[Any] = [FOREIGN] * count
        pieces: list[msgspec.Raw] | None = None
        found = False
        for index, head in enumerate(_heads(raw)):
            mine = head.queue in own or (head.queue in without and head.named in (None, self._namespace))
            if not mine or first + index < self._seq - 1:
                continue
            if pieces is None:
                pieces = _pieces(raw)
            events[index] = _event(pieces[index])
            if first + index < self._seq:  # the event before the first one: the failure before a retry describes the retry
                continue
            found = True
            self._room -= len(memoryview(pieces[index]))
            if self._room <= 0:
                self.is_full = True
                del events[index + 1 :]
                break
        if found:
            self._found.append(JournalBlock(first, at, events, queues))
        return first + len(events)

    def page(self) -> JournalPage:
        """Return the page. It is the last one if no block has filled it."""
        return JournalPage(self._first, self._next, self._found, is_last=not self.is_full)
