"""The data source ``penstock``: selects the reader or writer for the options. The parts are imported when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """``spark.read``, ``readStream``, ``write`` and ``writeStream`` with ``format("penstock")``. See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "penstock"

    def schema(self) -> str:
        """Return the columns of the table in the options."""
        from penstock.spark import options, schemas  # noqa: PLC0415

        return schemas.ddl(options.shape_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch: jobs or journal."""
        from penstock.spark import batch, options  # noqa: PLC0415

        return batch.reader(options.for_batch(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        """Return the reader of a stream: the journal, or queues."""
        from penstock.spark import journal, options, queue_stream  # noqa: PLC0415

        wanted = options.for_stream(self.options)
        return (
            queue_stream.LeaseReader(wanted, schema) if wanted.table == "queues" else journal.JournalStream(wanted, schema)
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from penstock.spark import options, sink  # noqa: PLC0415

        return sink.BatchWriter(options.for_write(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, Spark's
        """Return the writer of a stream."""
        from penstock.spark import options, sink  # noqa: PLC0415

        return sink.StreamWriter(options.for_write_stream(self.options, overwrite=overwrite), schema)
