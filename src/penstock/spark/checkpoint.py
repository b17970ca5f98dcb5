"""Spark's checkpoint of a query: its id, and which of its batches are completed. Read only, local or remote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from penstock.spark.options import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator


class Checkpoint:
    """The directory ``checkpointLocation`` of a query."""

    def __init__(self, location: str) -> None:
        self._location = location
        try:
            if "://" in location or location.startswith("file:"):
                # Spark writes file:/tmp/x where Arrow expects file:///tmp/x.
                uri = location if "://" in location else location.replace("file:", "file://", 1)
                self._files, path = pafs.FileSystem.from_uri(uri)
            else:
                self._files, path = pafs.LocalFileSystem(), location
        except Exception as error:
            raise OptionInvalid(
                f"Option checkpointLocation: {location} cannot be read from Python ({error}). Say writerId=… for a sink, a name"
                " that no other query has and that changes with the checkpoint; leave it out for a source."
            ) from error
        self._root = path.rstrip("/")

    def query_id(self) -> str:
        """Return the id of the query, which stays the same as long as its checkpoint exists. Raises OptionInvalid."""
        try:
            return str(json.loads(self._text("metadata"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OptionInvalid(
                f"Option checkpointLocation: {self._location} has no id of the query that can be read here ({error})."
                " Say writerId=…, a name that no other query has and that changes with the checkpoint."
            ) from error

    def done(self, group: str) -> int | None:
        """Return the last epoch of a group in a batch that Spark has logged as completed; None if there is none."""
        return self._epoch(group, self._last("commits"))

    def planned(self, group: str) -> bool:
        """Return whether a batch with an epoch of this group was ever logged."""
        return self._epoch(group, self._last("offsets")) is not None

    def _epoch(self, group: str, batch: int | None) -> int | None:
        if batch is None:
            return None
        for line in self._text(f"offsets/{batch}").splitlines():
            found = [each["epoch"] for each in _offsets(line) if each.get("group") == group]
            if found:
                return int(max(found))
        return None

    def _last(self, log: str) -> int | None:
        chosen = pafs.FileSelector(f"{self._root}/{log}", allow_not_found=True)
        names = [each.base_name for each in self._files.get_file_info(chosen)]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _text(self, name: str) -> str:
        with self._files.open_input_file(f"{self._root}/{name}") as file:
            content: bytes = file.read()
        return content.decode()


def _offsets(line: str) -> Iterator[dict[str, Any]]:
    """Yield the offsets of lease streams in a line of the log, at any depth: the nesting depends on Spark's version."""
    try:
        value = json.loads(line)
    except ValueError:
        return
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "epoch" in value and "group" in value:
                yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and value.startswith("{"):
            yield from _offsets(value)
