"""The commands about crons. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.doors.jobs import crons as c
from penstock.doors.jobs.command_call import Entry

if TYPE_CHECKING:
    from penstock.doors.jobs.crons import CronHandlers

NAME: Final = {"id": "name"}


def cron_commands(crons: CronHandlers) -> dict[str, Entry]:
    """Return the commands about crons."""
    return {
        "Cron": Entry(crons.save, c.CRON),
        "CronGet": Entry(crons.get, None, NAME),
        "CronList": Entry(crons.list_crons),
        "CronDelete": Entry(crons.delete, None, NAME),
    }
