"""Converts Arrow to staged rows: checks them, builds the fields of jobs, and packs them for each queue."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from penstock.bulkwork.arrow_files import trailer
from penstock.bulkwork.arrow_size import check_sizes
from penstock.core import ids, limits
from penstock.core.binary_payload import wrap
from penstock.core.bulk_records import pack as pack_columns
from penstock.core.errors import InvalidInput
from penstock.core.job import IDEMPOTENCY_PREFIX, JobFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


class _Number(NamedTuple):
    """A column of whole numbers: its field of ``JobSpec``, and its range."""

    field: str
    low: int
    high: int


_NUMBERS: Final[dict[str, _Number]] = {
    "priority": _Number("priority", limits.priority_min, limits.priority_max),
    "delay": _Number("delay", 0, limits.delay_ms_max),
    "run_at": _Number("due_at", 0, limits.timestamp_ms_max),
    "max_attempts": _Number("max_attempts", 1, limits.attempts_max),
    "backoff": _Number("backoff", 0, limits.backoff_ms_max),
    "ttl": _Number("ttl", 0, limits.ttl_ms_max),
    "timeout": _Number("timeout", 0, limits.timeout_ms_max),
}
_DEFAULTS: Final[dict[str, int | None]] = {
    "priority": 0, "delay": 0, "due_at": None, "max_attempts": 3, "backoff": 1_000, "ttl": None, "timeout": None,
}  # fmt: skip
_TEXTS: Final = {"key": "job_id", "unique_key": "unique_key", "group_id": "group_id"}
_FLAGS: Final = {
    "lifo": JobFlag.LIFO,
    "durable": JobFlag.DURABLE,
    "remove_on_complete": JobFlag.REMOVE_ON_COMPLETE,
}
#: Columns, and parameters of the same names that apply to all rows.
COLUMNS: Final = ("value", "queue", "headers", *_NUMBERS, *_TEXTS, *_FLAGS)
_FILE_MARK: Final = b"ARROW1"
_FILE_BEGIN_BYTES: Final = 8  # the mark, and two bytes of padding for alignment
_check_object: Final = msgspec.json.Decoder(dict[str, Raw]).decode


class Packed(NamedTuple):
    """Rows for one queue, as they are stored."""

    queue: str
    rows: int
    body: bytes


def pack(path: Path, constants: Mapping[str, str]) -> list[Packed]:
    """Build the rows of a file with an Arrow IPC stream or file. ``constants``: the values of missing columns.

    Names of queues are not checked here. Raises InvalidInput with the column and, if possible, the row.
    """
    table = _read(path)
    unknown = [name for name in constants if name == "value" or name not in COLUMNS]
    if unknown:
        raise InvalidInput(f"Unknown parameters: {', '.join(unknown)}. Known are: part, {', '.join(COLUMNS[1:])}.")
    if not table.num_rows:
        return []
    columns: dict[str, Any] = {"data": None}
    columns["data"], columns["options"] = _values(table, constants)
    for name, number in _NUMBERS.items():
        columns[number.field] = _numbers(table, name, number, constants)
    for name, field in _TEXTS.items():
        columns[field] = _texts(table, name, constants)
    columns["flags"] = _flags(table, constants)
    columns = {name: value for name, value in columns.items() if not _is_default(name, value)}
    return _chunks(_by_queue(table, constants), columns)


def _read(path: Path) -> pa.Table:
    """Read a stream or a file. Its size and columns are checked before any of it is decompressed."""
    body = path.read_bytes()  # not mapped: damage is found here, not later
    source = pa.BufferReader(body)
    is_file = body.startswith(_FILE_MARK)
    if is_file:
        if not body.endswith(_FILE_MARK):
            raise InvalidInput(
                "The body is not an Arrow IPC stream or file: its end is missing. Check whether it was cut off."
            )
        # A file is a stream between two marks. Its index is not used: it may list one batch any number of times.
        source.seek(_FILE_BEGIN_BYTES)
    try:
        sizes = check_sizes(source)
        with pa.ipc.open_stream(source) as stream:
            _check_columns(stream.schema)
            if sizes.rows:  # without rows, the columns may have any type
                _check_types(stream.schema)
            table = stream.read_all()
        rest = b"" if is_file else body[source.tell() :]
        table.validate(full=True)  # offsets and texts come from the sender, and may be invalid
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The body is not an Arrow IPC stream or file: {error}") from None
    if table.num_rows != sizes.rows:
        raise InvalidInput(
            "The body is not an Arrow IPC stream or file: its batches do not have the declared number of rows"
        )
    if rest and rest != trailer(table.num_rows):
        raise InvalidInput(
            f"Behind the Arrow stream of {table.num_rows} rows are bytes that are not their trailer. "
            "Check whether the body was cut off."
        )
    return table


def _check_columns(schema: pa.Schema) -> None:
    """Raise InvalidInput for columns that staged rows do not have, before any value is read."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise InvalidInput(f"Duplicate columns: {_some(twice)}. Leave one of them out.")
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidInput(f"Unknown columns: {_some(unknown)}. Valid columns are: {', '.join(COLUMNS)}.")
    if "value" not in schema.names:
        raise InvalidInput("The column value is missing")


def _check_types(schema: pa.Schema) -> None:
    """Raise InvalidInput for a column with a wrong type. All valid types are flat."""
    for column in schema:
        name, kind = column.name, column.type
        if name == "value":
            fits, wanted = _is_bytes(kind) or _is_text(kind), "binary or string"
        elif name in _NUMBERS:
            fits, wanted = bool(pa.types.is_integer(kind)), "an integer"
            if name == "run_at":
                fits, wanted = fits or bool(pa.types.is_timestamp(kind)), "a timestamp"
        elif name in _FLAGS:
            fits, wanted = bool(pa.types.is_boolean(kind)), "a boolean"
        else:
            fits, wanted = _is_text(kind) or (name == "key" and _is_bytes(kind)), "a string"
        if not fits:
            raise InvalidInput(f"The column {name} must be {wanted}, not {str(kind)[:100]}")


def _some(names: Sequence[str]) -> str:
    """Format names for an error: the first of them, and the number of others."""
    shown = ", ".join(name[:100] for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _is_default(name: str, value: object) -> bool:
    return value is None or (not isinstance(value, list) and value == _DEFAULTS.get(name, 0))


def _values(table: pa.Table, constants: Mapping[str, str]) -> tuple[list[bytes], list[bytes | None] | None]:
    """Return data and options of all rows; None for options if no row has any."""
    column = table.column("value")
    if column.null_count:
        raise InvalidInput("The column value has nulls: every row needs one")
    values: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    longest = max(map(len, values))
    if longest > limits.payload_bytes_max:
        raise InvalidInput(f"A value has {longest} bytes, at most {limits.payload_bytes_max} are accepted")
    headers = _texts(table, "headers", constants, longest=limits.payload_bytes_max)
    objects: Iterable[Raw | None] = map(_object, headers) if isinstance(headers, list) else repeat(_object(headers))
    data: list[bytes] = []
    options: list[bytes | None] = []
    size = 0
    for value, metadata in zip(values, objects, strict=False):
        body, some = wrap(value, metadata)
        size += len(body) + (0 if some is None else len(some))
        _check_encoded(size)
        data.append(body)
        options.append(some)
    return data, options if any(options) else None


def _check_encoded(size: int) -> None:
    """Raise InvalidInput if the jobs made so far have too many bytes: base64, and one text for all rows, make them larger."""
    if size > limits.stage_unpacked_bytes_max:
        raise InvalidInput(
            f"The rows have more than {limits.stage_unpacked_bytes_max} bytes as they are stored: bytes that are not JSON are "
            "stored in base64, and a text for all rows is stored with each. Send the rows in more parts."
        )


def _object(text: str | None) -> Raw | None:
    if text is None:
        return None
    try:
        _check_object(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput(f"headers must be a JSON object, not {text[:100]!r}") from None
    return Raw(text.encode())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _numbers(table: pa.Table, name: str, number: _Number, constants: Mapping[str, str]) -> Any:
    default = _DEFAULTS[number.field]
    if name in constants:
        default = _within(name, constants[name], number)
    if name not in table.column_names:
        return default
    column = table.column(name)
    if name == "run_at" and pa.types.is_timestamp(column.type):
        column = _milliseconds(column)
    ends = pc.min_max(column).as_py()
    if ends["min"] is not None and (ends["min"] < number.low or ends["max"] > number.high):
        raise InvalidInput(f"The column {name} must be between {number.low} and {number.high}")
    if column.null_count:
        return [default if value is None else value for value in column.to_pylist()]
    return column.to_pylist()


def _milliseconds(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as ms since 1970. Raises InvalidInput if a time is out of range."""
    wanted = pc.CastOptions(pa.timestamp("ms", tz=moments.type.tz), allow_time_truncate=True)
    try:
        return moments.cast(options=wanted).cast(pa.int64())
    except pa.ArrowInvalid:
        raise InvalidInput(f"The column run_at must be between 0 and {limits.timestamp_ms_max}") from None


def _within(name: str, text: str, number: _Number) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a whole number") from None
    if not number.low <= value <= number.high:
        raise InvalidInput(f"{name} must be between {number.low} and {number.high}")
    return value


def _texts(table: pa.Table, name: str, constants: Mapping[str, str], longest: int = limits.key_chars_max) -> Any:
    default = constants.get(name)
    if name == "key" and default is not None:
        raise InvalidInput("key cannot be the same for all rows. Give it as a column.")
    values: list[str | None] = []
    if name in table.column_names:
        column = table.column(name)
        if _is_bytes(column.type) and name == "key":
            column = _decoded(column)
        values = column.to_pylist()
        if default is not None:
            values = [default if value is None else value for value in values]
        if not any(value is not None for value in values):
            return None
    for value in values or [default]:
        if value is not None and (not value or len(value) > longest or "\x00" in value):
            raise InvalidInput(f"{name} must have between 1 and {longest} characters, and no NUL: {value[:100]!r}")
        if name == "key" and value is not None:
            _check_name(value)
    return values or default


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidInput("The column key must be UTF-8") from None


def _check_name(value: str) -> None:
    if ids.from_uuid(value) is not None:
        raise InvalidInput(f"key {value!r} has the form of an id that Penstock assigns. Choose another, or leave it out.")
    if value.startswith(IDEMPOTENCY_PREFIX):
        raise InvalidInput(f"key must not begin with {IDEMPOTENCY_PREFIX!r}. Choose another, or leave it out.")


def _flags(table: pa.Table, constants: Mapping[str, str]) -> int | list[int]:
    common = 0
    varying: list[list[int]] = []
    for name, flag in _FLAGS.items():
        given = constants.get(name, "false")
        if given not in ("true", "false"):
            raise InvalidInput(f"{name} must be true or false")
        default = flag if given == "true" else 0
        if name not in table.column_names:
            common |= default
            continue
        column = table.column(name)
        varying.append([default if value is None else flag * value for value in column.to_pylist()])
    return [common | sum(row) for row in zip(*varying, strict=True)] if varying else common


def _by_queue(table: pa.Table, constants: Mapping[str, str]) -> dict[str, Sequence[int]]:
    """Return the rows of each queue, in order."""
    queues = _texts(table, "queue", constants, longest=limits.name_chars_max)
    if queues is None:
        raise InvalidInput("There is no queue. Set the parameter queue, or a column queue with values")
    if isinstance(queues, str):
        return {queues: range(table.num_rows)}
    rows: dict[str, list[int]] = {}
    for row, queue in enumerate(queues):
        if queue is None:
            raise InvalidInput(f"Row {row} has no queue, and there is no parameter queue")
        rows.setdefault(queue, []).append(row)
    if len(rows) > limits.stage_queues_max:
        raise InvalidInput(
            f"The rows are for {len(rows)} queues, at most {limits.stage_queues_max} are accepted. Send the rows in more parts."
        )
    return {**rows}


def _chunks(queues: Mapping[str, Sequence[int]], columns: Mapping[str, Any]) -> list[Packed]:
    packed: list[Packed] = []
    data: list[bytes] = columns["data"]
    encoded = 0
    for queue, rows in queues.items():
        sizes = [0, *accumulate(len(data[row]) for row in rows)]  # the bytes of all rows before each
        first = 0
        while first < len(rows):
            full = bisect_left(sizes, sizes[first] + limits.chunk_bytes, first + 1)
            end = min(first + limits.slice_jobs_max, full, len(rows))
            packed.append(Packed(queue, end - first, _pack(columns, rows[first:end])))
            encoded += len(packed[-1].body)
            _check_encoded(encoded)
            first = end
    return packed


def _pack(columns: Mapping[str, Any], rows: Sequence[int]) -> bytes:
    if isinstance(rows, range):
        return pack_columns(
            {name: value[rows.start : rows.stop] if isinstance(value, list) else value for name, value in columns.items()}
        )
    return pack_columns(
        {name: [value[row] for row in rows] if isinstance(value, list) else value for name, value in columns.items()}
    )
