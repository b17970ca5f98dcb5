"""Which jobs a listing returns, and how jobs are counted by state.

Waiting jobs are counted in two ways. HTTP follows the document: ``waiting`` is every ready job, and ``prioritized`` and
``paused`` count some of them again. Commands answer as bunqueue's server does, whose clients add the counts up: a job is
``paused`` if its queue is, else ``prioritized`` if its priority is above 0, else ``waiting``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import InvalidInput
from penstock.core.lifecycle import STORED_STATES, State
from penstock.doors.jobs.mapping import STATES_BY_NAME
from penstock.doors.jobs.wire.replies import CountsView

if TYPE_CHECKING:
    from penstock.core.queue import StateCounts

_ALIASES: Final = {"wait": "waiting", "dead": "failed"}
_HIGH, _LOW = True, False
_BOTH: Final = frozenset((_HIGH, _LOW))
_NONE: Final[frozenset[bool]] = frozenset()


class Chosen(NamedTuple):
    """Which jobs to list. ``prioritized``: as in ``Page``."""

    states: tuple[State, ...]
    prioritized: bool | None = None


def choose(text: str | None, *, paused: bool, apart: bool) -> Chosen:
    """Read a state, or several separated by commas. Raises InvalidInput for an unknown state.

    ``paused``: whether the queue is paused. ``apart``: each waiting job has exactly one state, as in commands.
    """
    if not text or text == "all":
        return Chosen(STORED_STATES)
    ways = {
        "waiting": _LOW_ONLY if apart else _BOTH,
        "prioritized": frozenset((_HIGH,)),
        "paused": _BOTH if paused else _NONE,
    }
    if apart and paused:
        ways["waiting"] = ways["prioritized"] = _NONE
    names = dict.fromkeys(_ALIASES.get(name.strip(), name.strip()) for name in text.split(","))
    if not all(name in STATES_BY_NAME or name in ways for name in names):
        raise InvalidInput(f"state must be one of: {', '.join([*STATES_BY_NAME, 'prioritized', 'paused'])}")
    waiting = frozenset(part for name in names for part in ways.get(name, _NONE))
    others = [STATES_BY_NAME[name] for name in names if name not in ways]
    states = (*([State.WAITING] if waiting else []), *others)
    return Chosen(states, None if waiting == _BOTH or not waiting else _HIGH in waiting)


_LOW_ONLY: Final = frozenset((_LOW,))


def counts_view(counts: StateCounts, prioritized: int, *, paused: bool) -> CountsView:
    """Count as the document requires. ``prioritized``: how many of the waiting jobs have a priority above 0."""
    return CountsView(
        counts.waiting,
        counts.active,
        counts.delayed,
        counts.completed,
        counts.dead,
        counts.waiting_children,
        prioritized,
        counts.waiting if paused else 0,
    )


def make_exclusive(view: CountsView, *, paused: bool) -> CountsView:
    """Convert the counts of HTTP to those of commands, where each job is counted once."""
    view.waiting -= view.waiting if paused else view.prioritized
    view.prioritized = 0 if paused else view.prioritized
    return view
