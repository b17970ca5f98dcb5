"""Names (``jobId``) that are unique in a namespace, although its queues are on several shards.

Each name has a home shard, see ``sharding.home_of``. The home shard records which shard may have a job with that name.
Within one shard, names are unique in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.dependencies import RemoteJob


class Reservation(NamedTuple):
    """The one shard on which a job with a name may be created."""

    namespace: str
    name: str
    shard: int
    ticket: int  #: identifies this reservation in a push. New each time the name is given to another shard
    at: int  #: wall clock of the home shard, ms: when it was given, or renewed by another push on the same shard

    @property
    def key(self) -> tuple[str, str]:
        """The namespace and the name."""
        return self.namespace, self.name


class Permit(NamedTuple):
    """The results of a push's checks on other shards, and how long they are valid."""

    clock: Clock
    until_ms: int  #: on the steady reading of that clock
    tickets: tuple[int, ...] = ()  #: tickets of the names in the push
    remote: dict[int | str, RemoteJob] = {}  # noqa: RUF012 - never changed; jobs of other shards that it needs, by how it names them

    @property
    def is_over(self) -> bool:
        """Whether the results are no longer valid."""
        return self.clock.steady_ms() > self.until_ms
