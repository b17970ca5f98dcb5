"""The plan file of a restore in progress: the files prepared beside the store, and the remaining steps.

A store with this file in its directory may be the old one, the restored one, or none, and other shards may differ. So it is
not opened. The remaining steps only rename files, so an interrupted restore can always be completed.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.errors import RestoreUnfinished
from penstock.store.data_directory import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

PLAN_NAME: Final = "penstock.restore"


class RestorePlan(msgspec.Struct, frozen=True):
    """The steps of a restore in one directory. The restored file is prepared beside the store, or already in place."""

    restore: str  #: the same in the directories of all shards
    shard: int
    shards: int
    replaced: str  #: name of the directory for the previous store; empty if there was none
    identity: str  #: of the restored store; empty if its schema has none
    journal_next: int


def write(directory: Path, plan: RestorePlan) -> None:
    """Write a plan into a directory, durably. Raises OSError."""
    fresh = directory / f"{PLAN_NAME}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.encode(plan))
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(directory / PLAN_NAME)
    sync_directory(directory)


def read(directory: Path) -> RestorePlan | None:
    """Return the plan of a directory; None if no restore is in progress there.

    Raises OSError, RestoreUnfinished (unreadable).
    """
    try:
        text = (directory / PLAN_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=RestorePlan)
    except msgspec.DecodeError as error:
        raise RestoreUnfinished(
            f"{directory / PLAN_NAME} cannot be read ({error}). Restore a backup into an empty directory."
        ) from None


def remove(directory: Path) -> None:
    """Remove the plan of a directory, durably. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        (directory / PLAN_NAME).unlink()
    sync_directory(directory)


def check_none(directory: Path) -> None:
    """Raise RestoreUnfinished if a restore is in progress in a directory."""
    if (plan := read(directory)) is not None:
        raise unfinished(directory, plan)


def unfinished(directory: Path, plan: RestorePlan) -> RestoreUnfinished:
    """Return the error for a directory whose restore was interrupted."""
    of = f" (shard {plan.shard} of {plan.shards})" if plan.shards > 1 else ""
    where = "--data DIR" if plan.shards == 1 else "with the --store options of all shards, in their order"
    return RestoreUnfinished(
        f"A restore into {directory}{of} was interrupted. Complete it with: penstock restore --continue {where}. "
        "It needs no backup; everything is prepared."
    )
