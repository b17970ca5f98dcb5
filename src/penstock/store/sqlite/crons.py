"""Crons in SQLite: statements, and rows as they are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from penstock.core.cron import Cron, CronKey, CronPlan

if TYPE_CHECKING:
    import apsw

_FROM = (
    "select c.number, n.name, c.name, c.plan, c.next_run, c.executions"
    " from crons c join namespaces n on n.number = c.namespace"
)

FIND = f"{_FROM} where n.name = ? and c.name = ?"
LIST = f"{_FROM} where n.name = ? order by c.name"
DUE = f"{_FROM} where c.next_run <= ? order by c.next_run, c.number limit ?"
NEXT = "select min(next_run) from crons where next_run > ?"
INSERT = "insert into crons (namespace, name, plan, next_run, executions) values (?, ?, ?, ?, ?)"
# A tick that was read is what a write expects: if somebody else has moved it, nothing is written.
UPDATE = "update crons set plan = ?, next_run = ?, executions = ? where number = ? and next_run = ?"
DELETE = "delete from crons where number = ? and next_run = ?"
INSERT_DATA = "insert or replace into cron_data (number, data) values (?, ?)"
SELECT_DATA = "select data from cron_data where number = ?"
DELETE_DATA = "delete from cron_data where number = ?"

log = structlog.get_logger("penstock.store")

encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(CronPlan).decode


def read(db: apsw.Connection, statement: str, parameters: tuple[Any, ...]) -> list[Cron]:
    """Read crons. A damaged one is left out: it must not keep the others from their ticks."""
    found = []
    for number, namespace, name, plan, next_run, executions in db.execute(statement, parameters):
        try:
            found.append(Cron(number, CronKey(namespace, name), _decode_plan(plan), next_run, executions))
        except msgspec.DecodeError as error:
            log.error("a cron is damaged and does not run; delete it and add it again", cron=name, error=str(error))
    return found
