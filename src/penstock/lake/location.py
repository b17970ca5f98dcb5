"""The location of a lake's tables: a local directory, or an object store. Opening, creating and extending them.

``storage_options`` are those of delta-rs (``AWS_REGION`` and the like); without them, it reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from penstock.lake.tables import TABLES
from penstock.masking import without_password

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.lake.tables import Table


#: Marks a directory as a lake, with its namespace, its server and its format. The pipeline writes it.
LAKE_INFO: Final = "lake.json"


class LakeMissing(Exception):
    """There is no lake at the given location."""


class Lake:
    """A lake: the tables below one address."""

    def __init__(self, address: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        self.address = os.fspath(address).rstrip("/")
        self.is_local = "://" not in self.address
        if self.is_local:
            self.address = str(Path(self.address).absolute())
        self.storage_options = dict(storage_options or {}) or None

    @property
    def shown(self) -> str:
        """Return the address for texts: without a password and a query."""
        return without_password(self.address)

    def uri(self, table: Table) -> str:
        """Return the address of a table."""
        return f"{self.address}/{table.path}"

    def files(self, table: Table) -> pafs.FileSystem:
        """Return the file system of a table, with paths relative to it."""
        if self.is_local:
            root = Path(self.uri(table))
            root.mkdir(parents=True, exist_ok=True)
            return pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.uri(table), self.storage_options))

    def open(self, table: Table) -> DeltaTable | None:
        """Return the present version of a table; None if nothing was ever written to it."""
        if self.is_local and not Path(self.uri(table), "_delta_log").is_dir():
            return None
        try:
            return DeltaTable(self.uri(table), storage_options=self.storage_options)
        except TableNotFoundError:
            return None

    def log_of(self, table: Table, version: int) -> tuple[int, int] | None:
        """Return an identity of the file of a version, which differs if another table has taken the place of this one.

        None: there is no such file, or it is in an object store, where this is not checked.
        """
        try:
            about = Path(self.uri(table), "_delta_log", f"{version:020}.json").stat() if self.is_local else None
        except FileNotFoundError:
            about = None
        return None if about is None else (about.st_ino, about.st_mtime_ns)

    def exists(self) -> bool:
        """Return whether any part of a lake exists here."""
        return any(self.open(table) is not None for table in TABLES.values())

    def text(self, name: str) -> str | None:
        """Return the content of a small file of the lake that is not a table; None if it does not exist."""
        if self.is_local:
            here = Path(self.address, name)
            return here.read_text(encoding="utf-8") if here.is_file() else None
        files = pafs.PyFileSystem(DeltaStorageHandler(self.address, self.storage_options))
        try:
            with files.open_input_stream(name) as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None

    def put_text(self, name: str, text: str) -> None:
        """Write a small file that is not a table."""
        if self.is_local:
            Path(self.address).mkdir(parents=True, exist_ok=True)
            Path(self.address, name).write_text(text, encoding="utf-8")
            return
        files = pafs.PyFileSystem(DeltaStorageHandler(self.address, self.storage_options))
        with files.open_output_stream(name) as file:
            file.write(text.encode())

    def ensure(self, table: Table) -> DeltaTable:
        """Return a table; create it if it is missing, add columns if an earlier version created it."""
        found = self.open(table)
        if found is None:
            found = DeltaTable.create(
                self.uri(table),
                Schema.from_arrow(table.schema),
                mode="ignore",
                partition_by=[table.partition] if table.partition else None,
                name=table.path,
                description=table.help,
                configuration={"delta.checkpointInterval": "50"},
                storage_options=self.storage_options,
            )
            return DeltaTable(self.uri(table), storage_options=self.storage_options)
        widen(found, table.schema)
        return found

    def read(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        partitions: Sequence[tuple[str, str, Any]] | None = None,
        folded: bool = True,
    ) -> pa.Table:
        """Return the rows of a table, folded unless ``folded`` is False; no rows if there is no table.

        ``columns`` must include the keys if the rows are folded. ``partitions`` selects directories (``[("date", ">=",
        "2026-01-31")]``), ``filters`` rows, in the syntax of ``deltalake``.
        """
        found = self.open(table)
        wanted = list(columns) if columns is not None else table.schema.names
        if found is None:
            return table.schema.empty_table().select(wanted)
        here = {field.name for field in found.schema().fields}
        chosen = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
        for name, how, value in partitions or ():
            typed = pa.scalar(str(value)).cast(table.schema.field(name).type).as_py()
            one = pq.filters_to_expression([(name, how, typed)])
            chosen = one if chosen is None else chosen & one
        rows = found.to_pyarrow_table(columns=[name for name in wanted if name in here], filters=chosen)
        rows = fitted(rows, pa.schema([table.schema.field(name) for name in wanted]))
        return table.folded(rows) if folded else rows


def widen(found: DeltaTable, schema: pa.Schema) -> list[str]:
    """Add the columns that a table lacks, and return their names. They are null in old rows."""
    here = {field.name for field in found.schema().fields}
    wanted = [field for field in Schema.from_arrow(schema).fields if field.name not in here]
    if wanted:
        found.alter.add_columns([Field(field.name, field.type, nullable=True) for field in wanted])
        found.update_incremental()
    return [field.name for field in wanted]


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, in its order and of its types; missing columns are null."""
    columns: Iterable[Any] = (
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    )
    return pa.table(list(columns), schema=schema)
