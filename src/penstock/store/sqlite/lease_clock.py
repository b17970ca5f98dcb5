"""The clock of leases, over restarts of the server. It cannot be set. See ADR 14.

Until the machine restarts, its count since the start is the exact time that has passed, also while no server was running.
After a restart of the machine there is no reliable source: the time since the last mark does not count, and leases last
longer by that time.
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
    """Return a clock whose steady reading continues from the stored one, and store the mark for the next start."""
    boot = clock.boot()
    found = next(iter(db.execute("select boot, ahead, mark from lease_clock")), None)
    if found is not None and boot.identity and found[0] == boot.identity:
        steady = boot.age_ms + found[1]
    else:
        if found is None:
            steady = clock.steady_ms()
        else:
            steady = found[2]
            log.info("the machine was restarted: for leases, the time since the server last ran does not count")
        db.execute(_SAVE, (boot.identity, steady - boot.age_ms, steady))
    return Continued(clock, steady - clock.steady_ms())


def save_mark(db: apsw.Connection, steady_ms: int) -> None:
    """Store the current count: after a restart of the machine the clock continues from it."""
    db.execute("update lease_clock set mark = ?", (steady_ms,))
