"""Names that are given once per namespace, although its queues live on several shards.

Each name has a home, see ``sharding.home_of``. There it is written down which shard may have a job of that name. On that shard
itself a name is given once anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.dependencies import Afar


class Reservation(NamedTuple):
    """The one shard on which a job may be made under a name."""

    namespace: str
    name: str
    shard: int
    ticket: int  #: what a push shows that goes by this reservation. Fresh each time the name is given to another shard
    at: int  #: wall clock of the home shard, ms: when it was given, or renewed by another push on the same shard

    @property
    def key(self) -> tuple[str, str]:
        """What it is about."""
        return self.namespace, self.name


class Permit(NamedTuple):
    """What a push has found out on other shards, and how long it may go by that."""

    clock: Clock
    until_ms: int  #: by the steady reading of that clock
    tickets: tuple[int, ...] = ()  #: of the names that it gives
    afar: dict[int | str, Afar] = {}  # noqa: RUF012 - never changed; jobs of other shards that it needs, by how it names them

    @property
    def is_over(self) -> bool:
        """Tell whether it has taken too long."""
        return self.clock.steady_ms() > self.until_ms
