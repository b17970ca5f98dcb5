"""Rows that are staged: how they are cut into chunks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bulkwork.stage_rows import pack
from penstock.core import bulk_records, limits

if TYPE_CHECKING:
    from pathlib import Path

ROWS_MAX, BYTES_MAX = 4, 100


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 2 * BYTES_MAX)), min_size=1, max_size=60))
def test_chunks_hold_all_rows_of_a_queue_in_order_and_no_more_than_they_may(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.arrow"
    values = [str(10**digits + at)[:digits].encode() for at, (_, digits) in enumerate(rows)]
    write(path, pa.table({"queue": [queue for queue, _ in rows], "value": values}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "slice_jobs_max", ROWS_MAX)
        patch.setattr(limits, "chunk_bytes", BYTES_MAX)
        packed = pack(path, {})
    expected: dict[str, list[bytes]] = defaultdict(list)
    for (queue, _), value in zip(rows, values, strict=True):
        expected[queue].append(value)
    found: dict[str, list[bytes]] = defaultdict(list)
    for chunk in packed:
        data = [bytes(new.data) for new in bulk_records.unpack(chunk.body)[0]]
        found[chunk.queue] += data
        assert chunk.rows == len(data) <= ROWS_MAX
        assert sum(map(len, data[:-1])) < BYTES_MAX
        is_last = len(found[chunk.queue]) == len(expected[chunk.queue])
        assert is_last or len(data) == ROWS_MAX or sum(map(len, data)) >= BYTES_MAX
    assert found == expected


def write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
