"""Webhooks: where each one sends which events, and its position in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The event kinds of subscriptions, by short name. ``job.completed`` and ``job:completed`` mean the same as ``completed``.
KINDS: Final[dict[str, EventKind]] = {
    "pushed": EventKind.JOB_PUSHED,
    "started": EventKind.JOB_ACTIVE,
    "completed": EventKind.JOB_COMPLETED,
    "failed": EventKind.JOB_FAILED,
    "progress": EventKind.JOB_PROGRESS,
    "stalled": EventKind.JOB_STALLED,
}
#: The names of events in deliveries.
EVENT_NAMES: Final[dict[int, str]] = {kind.value: f"job.{name}" for name, kind in KINDS.items()}
_SPELLINGS: Final = {f"{prefix}{name}": kind for name, kind in KINDS.items() for prefix in ("", "job.", "job:")}


class WebhookRecord(msgspec.Struct, frozen=True):
    """A registration. Replaced as a whole, never changed in place."""

    id: int
    namespace: str
    url: str
    events: tuple[str, ...]  #: as the client spelled them
    queue: str | None  #: None: all queues of the namespace
    secret: str | None  #: the key that signs deliveries
    created_at: int  #: wall clock, ms
    cursor: int  #: number of the first event of the journal that is not processed yet
    enabled: bool = True
    successes: int = 0  #: events delivered
    failures: int = 0  #: events that were not delivered after the last attempt
    last_triggered: int | None = None  #: wall clock of the end of the latest delivery, successful or not

    @property
    def kinds(self) -> frozenset[int]:
        """Numbers of the event kinds that it subscribes to."""
        return frozenset(_SPELLINGS[name].value for name in self.events)


class DeliveryProgress(msgspec.Struct):
    """The deliveries of a webhook since its last save."""

    cursor: int
    successes: int = 0
    failures: int = 0
    last_triggered: int | None = None


def check_events(names: Sequence[str]) -> tuple[str, ...]:
    """Return the events of a registration, each once. Raises InvalidInput for none, too many, or an unknown one."""
    if not names:
        raise InvalidInput("Webhook events are required")
    if len(names) > limits.webhook_events_max:
        raise InvalidInput(f"Too many webhook events (max {limits.webhook_events_max})")
    for name in names:
        if name not in _SPELLINGS:
            shown = name[: limits.name_chars_max]
            raise InvalidInput(f"Unknown webhook event: {shown}. There are: {', '.join(KINDS)}, each also as job.name")
    return tuple(dict.fromkeys(names))
