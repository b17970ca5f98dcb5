"""The count of time that leases go by, over restarts of the server, by a clock that no one can set. See ADR 14.

While the machine is not started anew, its own count since the start tells exactly how much time has passed, also while no
server was running. Otherwise nothing reliable tells it: then the time since the last mark does not count, and leases get that
much longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from penstock.core.clock import Continued

if TYPE_CHECKING:
    import apsw

    from penstock.core.clock import Clock

log = structlog.get_logger("penstock.store")

_SAVE = "insert or replace into lease_clock (one, boot, ahead, mark) values (1, ?, ?, ?)"


def resume(db: apsw.Connection, clock: Clock) -> Clock:
    """Return a clock whose steady reading goes on from what the file has, and write down how it does."""
    boot = clock.boot()
    found = next(iter(db.execute("select boot, ahead, mark from lease_clock")), None)
    if found is not None and boot.identity and found[0] == boot.identity:
        steady = boot.age_ms + found[1]
    else:
        if found is None:
            steady = clock.steady_ms()
        else:
            steady = found[2]
            log.info("the machine was started anew: for leases, the time since the server last ran does not count")
        db.execute(_SAVE, (boot.identity, steady - boot.age_ms, steady))
    return Continued(clock, steady - clock.steady_ms())


def save_mark(db: apsw.Connection, steady_ms: int) -> None:
    """Write down how much time has been counted: after a new start of the machine it goes on from there."""
    db.execute("update lease_clock set mark = ?", (steady_ms,))
