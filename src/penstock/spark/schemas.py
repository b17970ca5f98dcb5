"""The columns of each table, in Spark and in Arrow, and the conversion of rows to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.client.errors import UnexpectedReply
from penstock.spark.options import OptionInvalid, Options, meant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType

_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

#: Each table's columns, with Spark's names of types.
COLUMNS: Final[dict[str, dict[str, str]]] = {
    "jobs": {
        "namespace": "string",
        "queue": "string",
        "id": "string",
        "shard": "int",
        "state": "string",
        "priority": "int",
        "attempts": "int",
        "max_attempts": "int",
        "custom_id": "string",
        "unique_key": "string",
        "group_id": "string",
        "created_at": "timestamp",
        "run_at": "timestamp",
        "started_at": "timestamp",
        "finished_at": "timestamp",
        "expires_at": "timestamp",
        "progress": "int",
        "size": "bigint",
        "error": "string",
        "value": "binary",
        "headers": "string",
        "result": "binary",
    },
    "journal": {
        "shard": "int",
        "seq": "bigint",
        "at": "timestamp",
        "kind": "string",
        "namespace": "string",
        "queue": "string",
        "job_id": "string",
        "custom_id": "string",
        "attempt": "int",
        "priority": "int",
        "created_at": "timestamp",
        "run_at": "timestamp",
        "started_at": "timestamp",
        "size": "bigint",
        "error": "string",
        "payload": "string",
        "due_at": "timestamp",
    },
    "queues": {
        "key": "string",
        "value": "binary",
        "queue": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "namespace": "string",
        "job_id": "string",
        "attempt": "int",
        "priority": "int",
        "headers": "string",
    },
}

#: The columns that a sink accepts, and the Spark types that each may have.
SINK_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "queue": ("string",),
    "key": ("string", "binary"),
    "priority": ("int", "bigint", "smallint", "tinyint"),
    "delay": ("int", "bigint"),
    "run_at": ("timestamp",),
    "max_attempts": ("int", "bigint", "smallint", "tinyint"),
    "backoff": ("int", "bigint"),
    "ttl": ("int", "bigint"),
    "timeout": ("int", "bigint"),
    "unique_key": ("string",),
    "group_id": ("string",),
    "headers": ("string",),
    "lifo": ("boolean",),
    "durable": ("boolean",),
    "remove_on_complete": ("boolean",),
}
#: Columns of the source that describe the origin of a row: a sink accepts and ignores them.
PASSED_OVER: Final = frozenset({"partition", "offset", "timestamp", "namespace", "job_id", "attempt"})


def ddl(options: Options) -> str:
    """Return the selected columns, in Spark's syntax. Raises OptionInvalid."""
    columns = COLUMNS[options.table]
    for name in options.columns:
        if name not in columns:
            raise OptionInvalid(
                f"Option columns: {options.table} has no column {name}.{meant(name, columns)} It has: {', '.join(columns)}."
            )
    return ", ".join(f"`{name}` {columns[name]}" for name in options.columns or columns)


def arrow_schema(table: str, wanted: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for the columns of a table. Raises OptionInvalid for others."""
    columns = COLUMNS[table]
    for field in wanted.fields:
        if field.name not in columns:
            raise OptionInvalid(
                f"schema(): {table} has no column {field.name}.{meant(field.name, columns)} It has: {', '.join(columns)}."
            )
        kind = field.dataType.simpleString()
        if kind != columns[field.name]:
            raise OptionInvalid(
                f"schema(): column {field.name} of {table} is {columns[field.name]}, not {kind}. Cast it afterwards."
            )
        if not field.nullable:
            raise OptionInvalid(f"schema(): column {field.name} must be nullable.")
    return pa.schema([pa.field(field.name, _ARROW[columns[field.name]]) for field in wanted.fields])


def fitted(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the wanted columns, in Spark's order and types: Spark accepts nothing else."""
    for batch in batches:
        if batch.schema.equals(schema):
            yield batch
            continue
        missing = [name for name in schema.names if name not in batch.schema.names]
        if missing:
            raise UnexpectedReply(f"The server sent no column {missing[0]}. Is it as new as this package?")
        columns = [batch.column(name) for name in schema.names]
        cast = [
            each if each.type == field.type else each.cast(field.type) for each, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(cast, schema=schema)


def check_sink(schema: StructType, options: Options) -> list[str]:
    """Return the columns of a DataFrame that become parts of jobs. Raises OptionInvalid for invalid ones."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise OptionInvalid(
            f"The column value is missing: the payload of the job, as string or binary. There are: {', '.join(types)}."
        )
    constant = options.constants()
    if "queue" not in types and "queue" not in constant:
        raise OptionInvalid("There is no queue to push to. Set the option queue, or add a column queue.")
    kept = []
    for name, kind in types.items():
        if name in SINK_COLUMNS:
            if kind not in SINK_COLUMNS[name]:
                raise OptionInvalid(f"Column {name} must be {' or '.join(SINK_COLUMNS[name])}, not {kind}.")
            if name not in constant:
                kept.append(name)
        elif name not in PASSED_OVER:
            raise OptionInvalid(
                f"Column {name} is not a column of a job.{meant(name, SINK_COLUMNS)} Leave it out; there are:"
                f" {', '.join(SINK_COLUMNS)}."
            )
    return kept
