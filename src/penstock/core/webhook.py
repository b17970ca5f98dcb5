"""What a webhook is: where to send what, and how far it has got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What can be subscribed to, by its short name. ``job.completed`` and ``job:completed`` mean the same as ``completed``.
KINDS: Final[dict[str, EventKind]] = {
    "pushed": EventKind.JOB_PUSHED,
    "started": EventKind.JOB_ACTIVE,
    "completed": EventKind.JOB_COMPLETED,
    "failed": EventKind.JOB_FAILED,
    "progress": EventKind.JOB_PROGRESS,
    "stalled": EventKind.JOB_STALLED,
}
#: How a delivery calls its event.
EVENT_NAMES: Final[dict[int, str]] = {kind.value: f"job.{name}" for name, kind in KINDS.items()}
_SPELLINGS: Final = {f"{prefix}{name}": kind for name, kind in KINDS.items() for prefix in ("", "job.", "job:")}


class WebhookRecord(msgspec.Struct, frozen=True):
    """One registration. Replaced as a whole, never changed in place."""

    id: int
    namespace: str
    url: str
    events: tuple[str, ...]  #: as they were spelled by whoever registered it
    queue: str | None  #: None = all queues of the namespace
    secret: str | None  #: what deliveries are signed with
    created_at: int  #: wall clock, ms
    cursor: int  #: number of the first event of the journal it has not dealt with
    enabled: bool = True
    successes: int = 0  #: events delivered
    failures: int = 0  #: events given up after the last attempt
    last_triggered: int | None = None  #: wall clock of the end of the latest delivery, good or bad

    @property
    def kinds(self) -> frozenset[int]:
        """The numbers of the kinds of events it wants."""
        return frozenset(_SPELLINGS[name].value for name in self.events)


class DeliveryProgress(msgspec.Struct):
    """What a webhook has done since it was last written down."""

    cursor: int
    successes: int = 0
    failures: int = 0
    last_triggered: int | None = None


def check_events(names: Sequence[str]) -> tuple[str, ...]:
    """Return the events of a registration, each once. Raises InvalidInput for none, too many, or one that does not exist."""
    if not names:
        raise InvalidInput("Webhook events are required")
    if len(names) > limits.webhook_events_max:
        raise InvalidInput(f"Too many webhook events (max {limits.webhook_events_max})")
    for name in names:
        if name not in _SPELLINGS:
            shown = name[: limits.name_chars_max]
            raise InvalidInput(f"Unknown webhook event: {shown}. There are: {', '.join(KINDS)}, each also as job.name")
    return tuple(dict.fromkeys(names))
