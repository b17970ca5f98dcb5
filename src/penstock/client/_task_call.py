"""The call of a task as the payload of a job, with the options of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.client.options import JobOptions


class TaskCall(dict[str, Any]):
    """The payload of a job that calls a task: a dictionary. ``options``: those of the task, for crons that call it."""

    def __init__(self, task: str, args: dict[str, Any], options: JobOptions) -> None:
        super().__init__(task=task, args=args)
        self.options = options


class CalledTask(Protocol):
    """The part of a task that a cron needs."""

    @property
    def queue(self) -> str:
        """The queue of its jobs."""

    @property
    def data(self) -> Any:
        """Return the payload of a job that calls it."""
