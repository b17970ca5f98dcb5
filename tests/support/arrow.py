"""Arrow, as a client of the bulk door sends and reads it."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx2


def stream_of(columns: Mapping[str, Any], *, file: bool = False) -> bytes:
    """Return rows as an Arrow IPC stream, or file."""
    table = pa.table(dict(columns))
    sink = io.BytesIO()
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def values(items: Sequence[object]) -> bytes:
    """Return a stream with nothing but values."""
    return stream_of({"value": [str(item).encode() for item in items]})


def rows_of(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the rows of an answer, which must be complete."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.apache.arrow.stream"
    mark, count = struct.unpack("<8sQ", response.content[-16:])
    assert mark == b"PNSTROWS"
    rows: list[dict[str, Any]] = pa.ipc.open_stream(response.content[:-16]).read_all().to_pylist()
    assert len(rows) == count == int(response.headers["x-penstock-rows"])
    return rows
