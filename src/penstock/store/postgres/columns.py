"""Queries that read a shard in bulk without a cursor: whole columns, for a driver that supports Arrow.

Only numbers and names of this project are put into these texts. No module is imported that needs a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.queue import MoveStep
from penstock.store.bulk_reader import HEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The number of the shard.
SHARD: Final = "select shard from penstock.layout"
#: The history of its journal, as text: see core/history.py.
HISTORY: Final = "select identity::text || ':' || history_epoch from penstock.catalog"
#: Its queues: number, namespace, name.
QUEUES: Final = (
    "select q.number, n.name, q.name from penstock.queues q join penstock.namespaces n on n.number = q.namespace"  # noqa: S608
    f" where not q.removed and q.standing <= {MoveStep.LEAVING.value}"
)


def chosen(
    queues: Sequence[int], states: Sequence[int], created_from: int | None = None, created_to: int | None = None
) -> str:
    """Return the condition for jobs of some queues and states, created from a wall-clock time on and before another (ms)."""
    parts = [f"j.queue in ({_listed(queues)})", f"j.state in ({_listed(states)})"]
    if created_from is not None:
        parts.append(f"j.created_at >= {created_from:d}")
    if created_to is not None:
        parts.append(f"j.created_at < {created_to:d}")
    return " and ".join(parts)


def marks(condition: str, every: int) -> str:
    """Return the query for the id of every n-th job (``every``), in order of ids, beginning with the first."""
    return (
        "select id from (select j.id, row_number() over (order by j.id) n from penstock.jobs j"  # noqa: S608
        f" where {condition}) numbered where (n - 1) % {every:d} = 0 order by id"
    )


def jobs(condition: str, start: int, end: int, *, payload: bool) -> str:
    """Return the query for jobs with ids from ``start`` to before ``end``.

    Their heads (``HEAD``), then options, payload, result.
    """
    bodies = "p.options, p.data, r.data" if payload else "null::bytea, null::bytea, null::bytea"
    joins = " left join penstock.payloads p on p.id = j.id left join penstock.results r on r.id = j.id" if payload else ""
    heads = ", ".join(f"j.{name}" for name in HEAD)
    return (
        f"select {heads}, {bodies} from penstock.jobs j{joins}"  # noqa: S608
        f" where j.id >= {start:d} and j.id < {end:d} and {condition}"
    )


def journal(start: int, end: int) -> str:
    """Return the query for blocks with events from one number to before another: number of the first event, time, body."""
    return (
        f"select seq, at, body from penstock.journal where count > 0 and seq < {end:d}"  # noqa: S608
        f" and seq >= coalesce((select max(seq) from penstock.journal where count > 0 and seq <= {start:d}), 0) order by seq"
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{each:d}" for each in numbers) or "null"
