"""``lake.json``: marks a directory as a lake, with its namespace, its server and its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client.errors import PenstockError
from penstock.lake.location import LAKE_INFO

if TYPE_CHECKING:
    from penstock.lake.location import Lake

#: The format of a lake. A lake with a higher number is not changed, one with a lower number is migrated (``migrate``). 2:
#: ``silver/attempts`` and all tables with waits use ``due_at`` of an attempt.
FORMAT: Final = 2
#: The format of a ``lake.json`` without a number: the first version wrote none.
_FIRST_FORMAT: Final = 1
LOCK: Final = "_lock"


class LakeInfo(NamedTuple):
    """The content of ``lake.json``. ``histories``: the history of each shard in the lake, by its number (``core.history``)."""

    namespace: str | None
    made_as: int
    histories: dict[str, str]


class LakeInvalid(PenstockError):
    """A lake cannot be used in its present state. The message has the remedy."""


def open_lake_info(lake: Lake, namespace: str | None) -> int:
    """Return the format of the lake of a namespace; write ``lake.json`` if there is none yet. Raises LakeInvalid."""
    text = lake.text(LAKE_INFO)
    if text is None:
        if lake.is_local and _is_used(Path(lake.address)):
            raise LakeInvalid(f"{lake.shown} is not empty, and is not a lake. Choose another directory, or empty it.")
        _write(lake, LakeInfo(namespace, FORMAT, {}))
        return FORMAT
    known = _read(lake, text)
    if known.namespace != namespace:
        raise LakeInvalid(
            f"{lake.shown} is the lake of namespace {known.namespace}, not {namespace}. Say --namespace"
            f" {known.namespace}, or choose another."
        )
    return known.made_as


def note_format(lake: Lake) -> None:
    """Record that a lake has the format of this version. Raises LakeInvalid."""
    text = lake.text(LAKE_INFO)
    if text is not None:
        known = _read(lake, text)
        if known.made_as < FORMAT:
            _write(lake, known._replace(made_as=FORMAT))


def histories_of(lake: Lake) -> dict[str, str]:
    """Return the history of each shard in a lake, by its number. Earlier versions recorded none. Raises LakeInvalid."""
    text = lake.text(LAKE_INFO)
    return {} if text is None else _read(lake, text).histories


def note_histories(lake: Lake, histories: dict[str, str]) -> None:
    """Record the histories of a lake. Raises LakeInvalid."""
    text = lake.text(LAKE_INFO)
    if text is not None:
        _write(lake, _read(lake, text)._replace(histories=histories))


def _write(lake: Lake, info: LakeInfo) -> None:
    shown = {"format": info.made_as, "namespace": info.namespace} | ({"histories": info.histories} if info.histories else {})
    lake.put_text(LAKE_INFO, json.dumps(shown) + "\n")


def _read(lake: Lake, text: str) -> LakeInfo:
    """Return the content of ``lake.json``. Raises LakeInvalid."""
    try:
        found = json.loads(text)
        of, made_as = found.get("namespace"), int(found.get("format", _FIRST_FORMAT))
        histories = {str(shard): str(history) for shard, history in found.get("histories", {}).items()}
    except (ValueError, TypeError, AttributeError):
        raise LakeInvalid(
            f"{lake.shown}/{LAKE_INFO} cannot be read. It has the source of the lake, such as"
            f' {{"format": {FORMAT}, "namespace": "*"}}.'
        ) from None
    if made_as > FORMAT:
        raise LakeInvalid(f"{lake.shown} was made by a newer version of Penstock (format {made_as}). Update this one.")
    return LakeInfo(None if of is None else str(of), made_as, histories)


def _is_used(directory: Path) -> bool:
    return directory.is_dir() and any(each.name not in (LOCK, "objectives.yaml") for each in directory.iterdir())
