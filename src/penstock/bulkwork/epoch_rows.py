"""Builds Arrow from claimed jobs, for consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.bulkwork.columns import MOMENT, moments, named, numbers, texts, uuids
from penstock.core.binary_payload import unwrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.store.bulk_reader import Leased

SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("queue", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", MOMENT),
        ("namespace", pa.string()),
        ("job_id", pa.string()),
        ("attempt", pa.int32()),
        ("priority", pa.int32()),
        ("headers", pa.string()),
    ]
)


def epoch_batch(
    jobs: Sequence[Leased], offsets: Sequence[int], queues: Mapping[int, tuple[str, str]], shard: int
) -> pa.RecordBatch:
    """Build columns of jobs. ``queues``: namespace and name, by number."""
    ids, queue, _, _, priority, attempts, custom, created, options, data = zip(*jobs, strict=True)
    used = {number: queues[number] for number in set(queue)}
    value, headers = _payloads(data, options)
    arrays = [
        texts(custom),
        value,
        named(queue, {number: name for number, (_, name) in used.items()}),
        pa.repeat(pa.scalar(shard, pa.int32()), len(jobs)),
        pa.array(offsets, pa.int64()),
        moments(created),
        named(queue, {number: namespace for number, (namespace, _) in used.items()}),
        uuids(ids),
        numbers([each + 1 for each in attempts]),
        numbers(priority),
        headers,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _payloads(data: Sequence[bytes], options: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
    if not any(options):  # most jobs have none
        return pa.array(data, pa.binary()), pa.nulls(len(data), pa.string())
    pairs = [unwrapped(each, more) for each, more in zip(data, options, strict=True)]
    headers = [None if raw is None else bytes(raw).decode() for _, raw in pairs]
    return pa.array([value for value, _ in pairs], pa.binary()), texts(headers)
