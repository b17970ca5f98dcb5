"""Queries of the lake, executed in a bulk process, so that the server neither loads Delta nor waits for files."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError

from penstock.bulkwork.arrow_files import Spooler
from penstock.core import limits
from penstock.core.errors import InvalidInput, LakeNotFound, LakeUnusable, StorageFailed
from penstock.lake.location import Lake, LakeMissing
from penstock.lake.queries.api import Answer, Insights, Question, QuestionInvalid
from penstock.lake.queries.objectives import ObjectivesInvalid
from penstock.lake.queries.window import milliseconds
from penstock.masking import masked

#: A server has one lake, so this has one entry, with its cached data.
_lakes: Final[dict[str, Insights]] = {}
_encode = msgspec.json.Encoder().encode


def answer(
    *, lake: str, insight: str, question: dict[str, Any], directory: str | None = None, room: int = 0
) -> dict[str, Any]:
    """Execute a query. Return JSON or, with a directory, Arrow in a file there.

    Raises InvalidInput, LakeNotFound, LakeUnusable, StorageFailed.
    """
    if lake not in _lakes:
        _lakes.clear()
        _lakes[lake] = Insights(Lake(lake))
    try:
        found = _lakes[lake].ask(insight, msgspec.convert(question, Question))
    except QuestionInvalid as error:
        raise InvalidInput(str(error)) from None
    except ObjectivesInvalid as error:
        raise LakeUnusable(str(error)) from None
    except LakeMissing:
        raise LakeNotFound from None
    except MemoryError:  # Arrow's MemoryError is also an ArrowException
        raise
    except (DeltaError, OSError, pa.ArrowException) as error:
        # Delta adds more lines, with colours.
        said = masked(next(iter(str(error).splitlines()), type(error).__name__))
        raise StorageFailed(
            f"The lake cannot be read ({said}). Retry in a moment. penstock spark doctor --lake DIR shows details."
        ) from error
    return {"body": _json(found)} if directory is None else _file(found, directory, room)


def _json(found: Answer) -> bytes:
    rows = pa.table(
        [
            milliseconds(column) if pa.types.is_temporal(column.type) else column
            for column in map(found.rows.column, found.rows.column_names)
        ],
        names=found.rows.column_names,
    ).to_pylist()
    return _encode({"ok": True, **found.about, "rows": rows})


def _file(found: Answer, directory: str, room: int) -> dict[str, Any]:
    most = limits.insight_rows_max
    with Spooler(directory, "insight", found.rows.schema, rows_max=most, room=room, bytes_max=room + 1) as spooler:
        spooler.begin()
        for batch in found.rows.to_batches():
            spooler.write(batch)
    made: dict[str, Any] = msgspec.to_builtins(spooler.parts[0])
    return made
