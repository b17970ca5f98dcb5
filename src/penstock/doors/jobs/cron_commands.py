"""The commands about crons. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.doors.jobs import crons as c
from penstock.doors.jobs.command_call import CommandEntry

if TYPE_CHECKING:
    from penstock.doors.jobs.crons import CronHandlers

NAME: Final = {"id": "name"}


def cron_commands(crons: CronHandlers) -> dict[str, CommandEntry]:
    """Return the commands about crons."""
    return {
        "Cron": CommandEntry(crons.save, c.CRON),
        "CronGet": CommandEntry(crons.get, None, NAME),
        "CronList": CommandEntry(crons.list_crons),
        "CronDelete": CommandEntry(crons.delete, None, NAME),
    }
