"""Groups: jobs of one group run one after the other, and a group that is busy must not hold up the others.

Looking for the next job must not wade through a million jobs of a busy group. So a grouped job that may not run yet is marked
``blocked`` and sits in another part of the index: claims never see it. Per group, exactly as many waiting jobs are unblocked
as the group has free places. Whatever changes a group inside a transaction (a push, an ack, a new priority, a cancel) marks
it as touched, and every touched group is put right once, before the next claim and before the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import apsw

#: Jobs of one group that may be active at once.
GROUP_ACTIVE_MAX: Final = 1

_COUNT_ACTIVE = "select count(*) from jobs where queue = ? and group_id = ? and state = 2"
_BLOCK = "update jobs set blocked = 1 where queue = ? and group_id = ? and state = 0 and blocked = 0"
_UNBLOCK = """
update jobs set blocked = 0 where id in (
  select id from jobs where queue = ? and group_id = ? and state = 0 and blocked = 1
  order by priority desc, position limit ?)
"""


def put_right(db: apsw.Connection, touched: set[tuple[int, str]]) -> None:
    """Unblock the first jobs of each touched group for which there is a free place, and no others."""
    for queue, group in touched:
        active = next(iter(db.execute(_COUNT_ACTIVE, (queue, group))))[0]
        db.execute(_BLOCK, (queue, group))
        if active < GROUP_ACTIVE_MAX:
            db.execute(_UNBLOCK, (queue, group, GROUP_ACTIVE_MAX - active))
    touched.clear()
