"""Arrow bodies that are small when they are sent and large when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.core import limits
from tests.security.measure import MB, Bystander
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What reading a body that is refused may cost the bulk process, in MiB: the body itself and some pages of code.
_GROWN_MB = 150


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("bombs") / "data") as running:
        yield running


def bulk_processes(server: ServerProcess) -> list[int]:
    """Return the children of a server that do bulk work."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="ascii").split()
    return [int(pid) for pid in children if b"penstock.bulkwork" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def most_mb(server: ServerProcess) -> float:
    """Return the most memory that a bulk process has taken so far, in MiB."""
    most = 0.0
    for pid in bulk_processes(server):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                most = max(most, int(line.split()[1]) / 1024)
    return most


def stream(table: pa.Table, times: int = 1, *, compression: str | None = None, file: bool = False) -> bytes:
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(times):
            writer.write_table(table)
    return bytes(sink.getvalue())


def stage(server: ServerProcess, body: bytes, **params: Any) -> Any:
    with server.client() as client:
        return client.post("/bulk/stages/bomb", params={"queue": "q", **params}, content=body)


def compressed(compression: str, *, file: bool = False) -> bytes:
    """2 GiB of zeros."""
    return stream(pa.table({"value": [bytes(8 * MB)] * 4}), 64, compression=compression, file=file)


def empty_values() -> bytes:
    """2**31 - 1 rows without a byte, a hundred times."""
    nothing = pa.py_buffer(b"")
    array = pa.Array.from_buffers(pa.binary(0), 2**31 - 1, [None, nothing])
    return stream(pa.table({"value": array}), 100)


def null_rows() -> bytes:
    return stream(pa.table({"value": pa.nulls(2**31 - 1)}), 100)


def dictionary() -> bytes:
    one = pa.array([bytes(8 * MB)])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), one)
    return stream(pa.table({"value": column}), compression="zstd")


def many_columns() -> bytes:
    none = pa.array([], pa.int8())
    return stream(pa.table([none] * 50_000, names=[f"c{number}" for number in range(50_000)]))


def many_batches() -> bytes:
    return stream(pa.table({"value": [b"1"]}), limits.stage_batches_max + 1)


def many_queues() -> bytes:
    names = [f"q{number}" for number in range(limits.stage_queues_max + 1)]
    return stream(pa.table({"value": [b"1"] * len(names), "queue": names}))


def nested() -> bytes:
    kind = pa.int8()
    for _ in range(50):
        kind = pa.list_(kind)
    return stream(pa.table({"value": pa.nulls(1_000, kind)}))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda: compressed("zstd"), "unpacked"),
        (lambda: compressed("lz4"), "unpacked"),
        (lambda: compressed("zstd", file=True), "unpacked"),
        (empty_values, "rows"),
        (null_rows, "rows"),
        (dictionary, "dictionary"),
        (many_columns, "columns"),
        (many_batches, "record batches"),
        (many_queues, "queues"),
        (nested, "must be binary or string"),
    ],
    ids=["zstd", "lz4", "file", "no bytes", "nulls", "dictionary", "columns", "batches", "queues", "nesting"],
)
def test_a_body_that_becomes_too_large_is_refused_before_it_is_unpacked(
    server: ServerProcess, body: Callable[[], bytes], said: str
) -> None:
    good = stream(pa.table({"value": [b"1"] * 1_000}), compression="zstd")
    assert stage(server, good).status_code == 200
    rest = most_mb(server)
    bomb = body()
    with Bystander(server) as other:
        reply = stage(server, bomb)
    assert reply.status_code == 400, reply.text
    assert said in reply.json()["error"]
    assert most_mb(server) - rest < _GROWN_MB
    assert other.grown_mb < _GROWN_MB
    assert other.statuses <= {200}
    assert not other.failures
    assert stage(server, good).status_code == 200


def one_text_in_a_column() -> tuple[bytes, dict[str, str]]:
    """Rows without headers, which get those of the parameter, in a column that has one."""
    headers = ["{}", *[None] * 999_999]
    body = stream(pa.table({"value": [b"1"] * 1_000_000, "headers": pa.array(headers, pa.string())}), compression="zstd")
    return body, {"headers": '{"a":"' + "x" * 1_000 + '"}'}


def one_text_for_all() -> tuple[bytes, dict[str, str]]:
    body = stream(pa.table({"value": [b"1"] * 1_000_000}), compression="zstd")
    return body, {"headers": '{"a":"' + "x" * 1_000 + '"}'}


def one_group_for_all() -> tuple[bytes, dict[str, str]]:
    """The group of rows that have none of their own."""
    groups = ["g", *[None] * 1_999_999]
    body = stream(pa.table({"value": [b"1"] * 2_000_000, "group_id": pa.array(groups, pa.string())}), compression="zstd")
    return body, {"group_id": "g" * limits.key_chars_max}


def base64() -> tuple[bytes, dict[str, str]]:
    """8 kB that are 250 MiB when they are unpacked, and 340 MB in base64."""
    return stream(pa.table({"value": [bytes(5 * MB)] * 2}), 25, compression="zstd"), {}


@pytest.mark.parametrize("made", [one_text_for_all, one_text_in_a_column, one_group_for_all, base64])
def test_rows_that_become_too_large_as_jobs_are_refused(
    server: ServerProcess, made: Callable[[], tuple[bytes, dict[str, str]]]
) -> None:
    body, params = made()
    with Bystander(server) as other:
        reply = stage(server, body, **params)
    assert reply.status_code == 400, reply.text
    assert "Send the rows in more parts" in reply.json()["error"]
    assert other.grown_mb < _GROWN_MB
    assert other.statuses <= {200}
    assert not other.failures


def test_a_task_that_needs_more_memory_than_its_process_may_use_is_refused(tmp_path: Path) -> None:
    body = stream(pa.table({"value": [b"\xff" * (6 * MB)] * 10}))
    with ServerProcess(tmp_path / "data", env={"PENSTOCK_BULK_MEMORY_BYTES": str(256 * MB)}) as server:
        reply = stage(server, body)
        assert reply.status_code == 507, reply.text
        assert reply.headers["penstock-error"] == "bulk_memory"
        assert "PENSTOCK_BULK_MEMORY_BYTES" in reply.json()["error"]
        assert stage(server, stream(pa.table({"value": [b"1"]}))).status_code == 200


def test_a_process_that_has_grown_ends_after_its_task(tmp_path: Path) -> None:
    wide = pa.table({"value": [b"\xff" * (6 * MB)] * 10, "headers": ["{}"] * 10})
    with ServerProcess(tmp_path / "data") as server:
        assert stage(server, stream(pa.table({"value": [b"1"]}))).status_code == 200
        before = bulk_processes(server)
        assert stage(server, stream(wide, 3, compression="zstd")).status_code == 200
        assert stage(server, stream(pa.table({"value": [b"1"]}))).status_code == 200
        after = bulk_processes(server)
    assert len(before) == len(after) == 1
    assert before != after
