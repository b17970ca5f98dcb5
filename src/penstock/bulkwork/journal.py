"""Events of the journal as columns.

Events of one kind have the same fields at the same positions. So they are grouped by kind, converted to columns with a few
calls each, and sorted again at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from penstock.bulkwork.columns import MOMENT, moments, numbers, texts, uuids
from penstock.core import limits
from penstock.core.events import FIELDS, PAYLOAD_KINDS, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.store.bulk_reader import Block

EVENTS: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("seq", pa.int64()),
        ("at", MOMENT),
        ("kind", pa.string()),
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("job_id", pa.string()),
        ("custom_id", pa.string()),
        ("attempt", pa.int32()),
        ("priority", pa.int32()),
        ("created_at", MOMENT),
        ("run_at", MOMENT),
        ("started_at", MOMENT),
        ("size", pa.int64()),
        ("error", pa.string()),
        ("payload", pa.string()),
        ("due_at", MOMENT),
    ]
)
#: Fields of events with a column of their own, and its name.
_COLUMNS: Final = {
    "attempts": "attempt", "priority": "priority", "created_at": "created_at", "run_at": "run_at", "started_at": "started_at",
    "size": "size", "error": "error", "reason": "error", "due_at": "due_at",
}  # fmt: skip
#: Fields that are never returned: with a lease token, its job can be settled.
_SECRET: Final = frozenset({"token"})
_MAKERS: Final[dict[str, Callable[[Sequence[Any]], pa.Array]]] = {
    "attempt": numbers,
    "priority": numbers,
    "created_at": moments,
    "run_at": moments,
    "started_at": moments,
    "due_at": moments,
    "size": lambda values: pa.array(values, pa.int64()),
    "error": lambda values: texts([None if each is None else str(each) for each in values]),
}
_WHO: Final = 4  #: kind, queue, job and custom id come first
_KNOWN: Final = {kind.value: kind for kind in EventKind}
_decode = msgspec.msgpack.Decoder(tuple[dict[int, tuple[str, str]], list[list[Any]]]).decode
_json = msgspec.json.Encoder().encode


class _Alike:
    """Events of one kind, with their numbers, times and queues."""

    __slots__ = ("at", "events", "names", "seq")

    def __init__(self) -> None:
        self.seq: list[int] = []
        self.at: list[int] = []
        self.names: list[tuple[str | None, str | None]] = []
        self.events: list[list[Any]] = []


_NO_QUEUE: Final = (None, None)


class EventColumns:
    """Collects blocks of the journal, and returns columns. ``namespace``: None for all."""

    def __init__(self, shard: int, namespace: str | None, seq: int, to: int) -> None:
        self._shard = shard
        self._namespace = namespace
        self._from = seq
        self._to = to
        self._kinds: dict[int, _Alike] = {}
        self.next = seq  #: number of the first event that was not taken
        self._count = 0  #: events taken since the last batch, including omitted ones
        self._bytes = 0  #: bytes of blocks since the last batch

    def take(self, block: Block) -> None:
        """Take the events of a block that are in the range."""
        queues, events = _decode(block.body)
        first = block.seq
        if first < self._from or first + len(events) > self._to:
            skipped = max(0, self._from - first)
            events = events[skipped : self._to - first]
            first += skipped
        self.next = first + len(events)
        self._count += len(events)
        self._bytes += len(block.body)
        if not self._take_alike(queues, events, first, block.at):
            self._take_each(queues, events, first, block.at)

    def _take_alike(self, queues: Mapping[int, tuple[str, str]], events: list[list[Any]], first: int, at: int) -> bool:
        """Take events by kind if all are about queues of the wanted namespace; else return False."""
        mentioned = {event[1] for event in events}
        wanted = self._namespace
        if not all(number in queues and (wanted is None or queues[number][0] == wanted) for number in mentioned):
            return False
        kinds = {event[0] for event in events}
        for kind in kinds:
            alike = self._alike(kind)
            if len(kinds) == 1:
                some = events
                alike.seq += range(first, first + len(events))
            else:
                places = [place for place, event in enumerate(events) if event[0] == kind]
                some = [events[place] for place in places]
                alike.seq += [first + place for place in places]
            alike.at += [at] * len(some)
            alike.events += some
            alike.names += [queues[some[0][1]]] * len(some) if len(mentioned) == 1 else [queues[event[1]] for event in some]
        return True

    def _take_each(self, queues: Mapping[int, tuple[str, str]], events: list[list[Any]], first: int, at: int) -> None:
        wanted = self._namespace
        for seq, event in enumerate(events, first):
            names: tuple[str | None, str | None] | None = queues.get(event[1])
            if names is None:
                names = _about(event)
            if wanted is not None and names[0] != wanted:
                continue
            alike = self._alike(event[0])
            alike.seq.append(seq)
            alike.at.append(at)
            alike.names.append(names)
            alike.events.append(event)

    def _alike(self, kind: int) -> _Alike:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Alike()
        return found

    @property
    def is_full(self) -> bool:
        """Return whether the batch is full."""
        return self._count >= limits.bulk_chunk_rows or self._bytes >= limits.bulk_chunk_bytes

    def batch(self) -> pa.RecordBatch | None:
        """Return the collected events as columns, and remove them; None if there is no visible event."""
        kinds, self._kinds, self._count, self._bytes = self._kinds, {}, 0, 0
        if not kinds:
            return None
        table = pa.Table.from_batches([_columns(self._shard, kind, alike) for kind, alike in kinds.items()])
        if len(kinds) > 1:
            table = table.combine_chunks().sort_by("seq")
        return table.combine_chunks().to_batches()[0]


def _about(event: Sequence[Any]) -> tuple[str | None, str | None]:
    """Return the namespace and the queue of an event without a queue number: the namespace replaces the custom id."""
    queue = None
    if event[0] in _PAYLOADS and len(event) > _WHO and isinstance(event[_WHO], dict):
        queue = event[_WHO].get("queue")
    return (event[3], queue) if not event[2] else _NO_QUEUE


_PAYLOADS: Final = frozenset(kind.value for kind in PAYLOAD_KINDS)


def _columns(shard: int, kind: int, alike: _Alike) -> pa.RecordBatch:
    count = len(alike.seq)
    most = max(map(len, alike.events))
    # Earlier versions may have stored fewer fields.
    events = alike.events
    if min(map(len, events)) < most:
        events = [[*each, *[None] * (most - len(each))] for each in events]
    _, _, jobs, names, *values = zip(*events, strict=True)
    known = _KNOWN.get(kind)
    given = dict(zip(FIELDS[known] if known is not None else (), values, strict=False))
    made = {_COLUMNS[name]: _MAKERS[_COLUMNS[name]](column) for name, column in given.items() if name in _COLUMNS}
    if known is EventKind.JOB_COMPLETED and "run_at" in made:
        made["due_at"] = made["run_at"]  # without a next attempt, ``run_at`` is the due time
    made |= {
        "shard": pa.repeat(pa.scalar(shard, pa.int32()), count),
        "seq": pa.array(alike.seq, pa.int64()),
        "at": moments(alike.at),
        "kind": pa.repeat(pa.scalar(known.wire_name if known is not None else f"unknown:{kind}", pa.string()), count),
        "namespace": texts([namespace for namespace, _ in alike.names]),
        "queue": texts([queue for _, queue in alike.names]),
        "job_id": uuids(jobs),
        "custom_id": texts([name if job else None for name, job in zip(names, jobs, strict=True)]),
    }
    rest = {name: column for name, column in given.items() if name not in _COLUMNS and name not in _SECRET}
    if rest:
        made["payload"] = texts(_rest(rest))
    arrays = [made[field.name] if field.name in made else pa.nulls(count, field.type) for field in EVENTS]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def _rest(columns: Mapping[str, Sequence[Any]]) -> list[str | None]:
    """Return the fields without a column as JSON; for a payload, the payload itself."""
    if set(columns) == {"payload"}:
        return [None if each is None else _json(each).decode() for each in columns["payload"]]
    names = tuple(columns)
    return [_json(dict(zip(names, each, strict=True))).decode() for each in zip(*columns.values(), strict=True)]
