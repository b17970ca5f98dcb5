"""Jobs as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from penstock.bulkwork.columns import MOMENT, column, moments, named, numbers, texts, uuids
from penstock.core.binary_payload import unwrapped
from penstock.core.job import Details
from penstock.store.bulk_reader import HEAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.store.bulk_reader import Row

JOBS: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("id", pa.string()),
        ("shard", pa.int32()),
        ("state", pa.string()),
        ("priority", pa.int32()),
        ("attempts", pa.int32()),
        ("max_attempts", pa.int32()),
        ("custom_id", pa.string()),
        ("unique_key", pa.string()),
        ("group_id", pa.string()),
        ("created_at", MOMENT),
        ("run_at", MOMENT),
        ("started_at", MOMENT),
        ("finished_at", MOMENT),
        ("expires_at", MOMENT),
        ("progress", pa.int32()),
        ("size", pa.int64()),
        ("error", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        ("result", pa.binary()),
    ]
)
_NUMBERS: Final = ("priority", "attempts", "max_attempts", "progress")
_TEXTS: Final = ("custom_id", "unique_key", "group_id")
_MOMENTS: Final = ("created_at", "run_at", "started_at", "finished_at", "expires_at")
_decode_details = msgspec.msgpack.Decoder(Details).decode


def jobs_batch(
    rows: Sequence[Row], queues: Mapping[int, tuple[str, str]], states: Mapping[int, str], shard: int
) -> pa.RecordBatch:
    """Build columns of rows. ``queues``: namespace and name, by number. ``states``: public names of states, by number."""
    columns = list(zip(*rows, strict=True))  # a store may add values at the end
    given = dict(zip(HEAD, columns, strict=False))
    options, data, result = columns[len(HEAD) : len(HEAD) + 3]
    numbered = {number: queues[number] for number in set(given["queue"])}
    value, headers = _payloads(data, options)
    made: dict[str, pa.Array] = {
        "namespace": named(given["queue"], {number: namespace for number, (namespace, _) in numbered.items()}),
        "queue": named(given["queue"], {number: name for number, (_, name) in numbered.items()}),
        "id": uuids(given["id"]),
        "shard": pa.repeat(pa.scalar(shard, pa.int32()), len(rows)),
        "state": named(given["state"], states),
        "size": pa.array(given["size"], pa.int64()),
        "error": _errors(given["details"]),
        "value": value,
        "headers": headers,
        "result": column(result, pa.binary()),
        **{name: numbers(given[name]) for name in _NUMBERS},
        **{name: texts(given[name]) for name in _TEXTS},
        **{name: moments(given[name]) for name in _MOMENTS},
    }
    return pa.RecordBatch.from_arrays([made[name] for name in JOBS.names], schema=JOBS)


def _errors(details: Sequence[bytes | None]) -> pa.Array:
    """Return the last errors of jobs."""
    if not any(details):
        return pa.nulls(len(details), pa.string())
    return texts([None if each is None else _decode_details(each).error for each in details])


def _payloads(data: Sequence[Any], options: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
    """Return payloads as the producers sent them, and their headers."""
    if not any(options):  # most jobs have none
        return column(data, pa.binary()), pa.nulls(len(data), pa.string())
    pairs = [unwrapped(each, more) if each is not None else (None, None) for each, more in zip(data, options, strict=True)]
    headers = [None if raw is None else bytes(raw).decode() for _, raw in pairs]
    return pa.array([value for value, _ in pairs], pa.binary()), texts(headers)
