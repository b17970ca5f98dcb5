"""Crons in PostgreSQL: statements, and rows as they are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.cron import Cron, CronKey, CronPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpg import Record

_FROM = (
    "select c.number, n.name, c.name, c.plan, c.next_run, c.executions"
    " from crons c join namespaces n on n.number = c.namespace"
)
FIND: Final = f"{_FROM} where n.name = $1 and c.name = $2"
LOAD: Final = (
    f"{_FROM} join unnest($1::text[], $2::text[]) as u (namespace, name) on n.name = u.namespace and c.name = u.name"
    " order by c.number for update of c"
)
LIST: Final = f'{_FROM} where n.name = $1 order by c.name collate "C"'
# A cron that another server is firing right now is left to it.
DUE: Final = f"{_FROM} where c.next_run <= $1 order by c.next_run, c.number limit $2 for update of c skip locked"
NEXT: Final = "select min(next_run) from crons where next_run > $1"
INSERT: Final = (
    "insert into crons (namespace, name, plan, next_run, executions, data) values ($1, $2, $3, $4, $5, $6) returning number"
)
# A tick that was read is what a write expects: if somebody else has moved it, nothing is written.
UPDATE: Final = (
    "update crons c set plan = u.plan, next_run = u.next_run, executions = u.executions"
    " from unnest($1::int[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[])"
    " as u (number, tick, plan, next_run, executions) where c.number = u.number and c.next_run = u.tick"
)
DELETE: Final = (
    "delete from crons c using unnest($1::int[], $2::bigint[]) as u (number, tick)"
    " where c.number = u.number and c.next_run = u.tick"
)
SELECT_DATA: Final = """
select number, data from (
  select c.number, c.data, u.place, sum(length(c.data)) over (order by u.place) - length(c.data) as ahead
  from unnest($1::int[]) with ordinality as u (number, place) join crons c on c.number = u.number) as line
where ahead < $2 order by place
"""

encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(CronPlan).decode


def read(rows: Iterable[Record]) -> list[Cron]:
    """Make crons from rows."""
    return [
        Cron(number, CronKey(namespace, name), _decode_plan(plan), next_run, executions)
        for number, namespace, name, plan, next_run, executions in rows
    ]
