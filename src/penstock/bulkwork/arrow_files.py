"""Files of the spool: an Arrow IPC stream, then its number of rows, so that a reader can check that it got all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
import pyarrow as pa

from penstock.core import limits
from penstock.core.errors import SpoolFull

if TYPE_CHECKING:
    from types import TracebackType


MARK: Final = b"PNSTROWS"


def trailer(rows: int) -> bytes:
    """Return the trailer: 16 bytes, the mark and the number of rows as a little-endian uint64."""
    return MARK + rows.to_bytes(8, "little")


class FilePart(msgspec.Struct):
    """One complete file."""

    path: str
    rows: int
    bytes: int


class Spooler:
    """Writes batches into files of at most ``rows_max`` rows each, in a directory. All files may use ``room`` bytes.

    A file ends with the batch that brings it to ``bytes_max``.

    After an exception, all files are removed.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        schema: pa.Schema,
        *,
        rows_max: int,
        room: int,
        bytes_max: int = limits.bulk_part_bytes,
    ) -> None:
        self._directory = Path(directory)
        self._name = name
        self._schema = schema
        self._rows_max = rows_max
        self._room = room
        self._bytes_max = bytes_max
        self._sink: pa.OSFile | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._path = ""
        self._rows = 0
        self.parts: list[FilePart] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.end()
            return
        if self._sink is not None:
            self._sink.close()
            Path(self._path).unlink(missing_ok=True)
        for part in self.parts:
            Path(part.path).unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; start a new file when one is full. Raises SpoolFull."""
        while batch.num_rows:
            if self._stream is None:
                self.begin()
            assert self._stream is not None
            some = batch.slice(0, self._rows_max - self._rows)
            self._stream.write_batch(some)
            self._rows += some.num_rows
            batch = batch.slice(some.num_rows)
            written = self._check_room()
            if self._rows >= self._rows_max or written >= self._bytes_max:
                self.end()

    def begin(self) -> None:
        """Start a file."""
        self._path = str(self._directory / f"{self._name}-{len(self.parts)}.arrow")
        self._sink = pa.OSFile(self._path, "wb")
        self._stream = pa.ipc.new_stream(self._sink, self._schema)
        self._rows = 0

    def end(self) -> None:
        """Finish the current file, if there is one."""
        if self._stream is None or self._sink is None:
            return
        self._stream.close()
        self._sink.write(trailer(self._rows))
        size = self._check_room()
        self._sink.close()
        self.parts.append(FilePart(self._path, self._rows, size))
        self._room -= size
        self._sink = self._stream = None

    def _check_room(self) -> int:
        assert self._sink is not None
        written: int = self._sink.tell()
        if written > self._room:
            raise SpoolFull
        if shutil.disk_usage(self._directory).free < limits.bulk_disk_bytes_min:
            raise SpoolFull("The disk that holds the spool is almost full. Free some space, or request less at once.")
        return written
