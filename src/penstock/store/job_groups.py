"""Code for job groups that the stores share.

The groups that a transaction has changed, and how many of their jobs may be claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.group_limits import NOT_LIMITED, ROOM_DEFAULT, GroupLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.group_limits import GroupDefaults, Room
    from penstock.core.queue import QueueSettings

#: Number of the queue, and name of the group.
Group = tuple[int, str]

#: The columns of a group's limits, in the order of the fields.
FIELDS: Final = ", ".join(GroupLimits.__struct_fields__)


class JobGroupChanges:
    """The groups that one transaction changes. ``settings`` returns the settings of a queue."""

    def __init__(self, settings: Callable[[int], QueueSettings]) -> None:
        self._settings = settings
        self._touched: set[Group] = set()
        self._claimed: dict[Group, int] = {}

    @property
    def touched(self) -> bool:
        """Whether groups were touched since the last update."""
        return bool(self._touched)

    def touch(self, queue: int, group: str) -> None:
        """Record that a job of a group was written, or the limits of the group."""
        self._touched.add((queue, group))

    def claimed(self, queue: int, group: str) -> None:
        """Record that a job of a group was claimed. ``touch`` must be called, too."""
        if self._settings(queue).limits_groups:
            self._claimed[queue, group] = self._claimed.get((queue, group), 0) + 1

    def _row(self, group: Group, limits: GroupLimits) -> tuple[Any, ...]:
        """Return the row of a group: its key, its limits, and the moment from which more of its jobs may be claimed."""
        reopens_at = limits.reopens_at(self._settings(group[0]).group_defaults)
        return (*group, *(getattr(limits, name) for name in GroupLimits.__struct_fields__), reopens_at)


def limits_after(
    stored: GroupLimits | None, steady_ms: int, claimed: int, defaults: GroupDefaults | None
) -> tuple[GroupLimits | None, Room]:
    """Apply time and ``claimed`` more jobs to the limits of a group, None if the group has no limits.

    Returns the limits to be written, None if they equal the stored ones; and how many jobs of the group may be claimed now.
    """
    if stored is None and defaults is None:
        return None, ROOM_DEFAULT
    before = stored or NOT_LIMITED
    after = before.at(steady_ms, claimed, defaults)
    return None if after is before else after, after.room(defaults)
