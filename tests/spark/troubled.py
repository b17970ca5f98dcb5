"""The data source with something going wrong in its writers, for tests. Workers import it, and agree by files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark import options, sink
from penstock.spark.source import PenstockSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

#: How long one attempt of a task waits for another, in seconds.
WAIT_S = 120


class _Troubled(PenstockSource):
    """Options ``trouble`` (which) and ``place`` (a directory) are for the test."""

    def _rest(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() not in ("trouble", "place")}

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        wanted = options.for_write(self._rest(), overwrite=overwrite)
        return TroubledBatch(wanted, schema, self.options["trouble"], self.options["place"])

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        wanted = options.for_write_stream(self._rest(), overwrite=overwrite)
        return TroubledStream(wanted, schema, self.options["trouble"], self.options["place"])


class Troubled(_Troubled):
    @classmethod
    def name(cls) -> str:
        return "troubled"


assert issubclass(Troubled, DataSource)


class _Trouble:
    trouble: str
    place: str

    def after_staging(self, staged: WriterCommitMessage) -> WriterCommitMessage:
        assert isinstance(staged, sink.Staged)
        if staged.rows and self.trouble == "task" and _first(self.place, "task"):
            raise RuntimeError("this attempt is out of luck")
        if staged.rows and self.trouble == "slow" and _first(self.place, "slow"):
            waiting = threading.Event()  # for the other attempt, which has staged the same by then
            for _ in range(WAIT_S * 20):
                if (Path(self.place) / "slow.again").exists():
                    break
                waiting.wait(0.05)
        return staged

    def after_commit(self) -> None:
        if self.trouble == "commit" and _first(self.place, "commit"):
            raise RuntimeError("it took effect, and nobody heard of it")


class TroubledBatch(_Trouble, sink.BatchWriter):
    def __init__(self, wanted: options.Options, schema: StructType, trouble: str, place: str) -> None:
        super().__init__(wanted, schema)
        self.trouble, self.place = trouble, place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.after_staging(super().write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        super().commit(messages)
        self.after_commit()


class TroubledStream(_Trouble, sink.StreamWriter):
    def __init__(self, wanted: options.Options, schema: StructType, trouble: str, place: str) -> None:
        super().__init__(wanted, schema)
        self.trouble, self.place = trouble, place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.after_staging(super().write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        self.after_commit()


def _first(place: str, what: str) -> bool:
    """Tell whether this is the first to come by, of all processes. The second leaves word that it did, too."""
    try:
        (Path(place) / what).touch(exist_ok=False)
    except FileExistsError:
        (Path(place) / f"{what}.again").touch()
        return False
    return True
