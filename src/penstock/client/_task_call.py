"""The call of a task as the payload of a job, with what the task says about its jobs."""

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
    """A task, as far as a cron has to know it."""

    @property
    def queue(self) -> str:
        """Where its jobs go."""

    @property
    def data(self) -> Any:
        """Makes the payload of a job that calls it."""
