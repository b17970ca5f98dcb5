"""Data that one shard keeps for the others: relays of ends, and names that are unique in a whole namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.dependencies import JobEnd, Relay
    from penstock.core.reservations import Reservation


class ShardingTransaction(Protocol):
    """Relays (``relay_``), reservations of names (``name_``, see ``core/reservations.py``) and their tickets."""

    async def relay_ask(self, jobs: Sequence[int], shard: int, *, alive: bool) -> None:
        """Record that a shard needs the ends of jobs. Repeating it is allowed.

        ``alive``: the jobs have not ended, so an earlier end of theirs is not relayed any more: it is not the awaited one.
        """

    async def relay_asked(self, jobs: Sequence[int], shard: int) -> dict[int, int | None]:
        """Return which of some jobs a shard has requested, and how often their ends were relayed to it; None: no end yet."""

    async def relay_end(self, ends: Sequence[tuple[JobEnd, int]]) -> None:
        """Relay the ends of jobs to all shards that requested them; they replace any earlier ends.

        Each with the id of a job that does not need it any more, or 0.
        """

    async def relay_shards(self) -> set[int]:
        """Return the shards to which ends must be relayed now."""

    async def relay_due(self, shard: int, limit: int) -> list[Relay]:
        """Read up to ``limit`` ends to relay to a shard now. Fewer when they reach ``flow_bytes_batch_max``."""

    async def relay_again(self, relays: Sequence[tuple[Relay, int]]) -> None:
        """Record that ends were relayed, and must be relayed again at a wall-clock time.

        An end that was replaced, or must not be relayed any more, is not changed.
        """

    async def relay_done(self, relays: Sequence[Relay], *, keep: bool) -> None:
        """Delete ends that were relayed. ``keep``: the requests stay, because there may be another end.

        An end that was replaced, or requested again meanwhile, is not changed.
        """

    async def relay_forget(self, jobs: Sequence[int]) -> None:
        """Delete the requests for jobs that will not end any more. Ends that are still to be relayed stay."""

    async def name_load(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reservation]:
        """Read reservations by namespace and name, and lock them for this transaction. Unknown ones are left out."""

    async def name_save(self, reservations: Sequence[tuple[Reservation, int]]) -> None:
        """Write reservations, each with the ticket it was read with, 0 for a new one.

        Raises RowChanged if the ticket has changed.
        """

    async def name_page(self, after: tuple[str, str], limit: int) -> list[Reservation]:
        """Read up to ``limit`` reservations after a namespace and name, in order."""

    async def name_remove(self, reservations: Sequence[Reservation]) -> None:
        """Delete reservations. One that was made again or renewed meanwhile is not changed."""

    async def ticket_hold(self, tickets: Sequence[int]) -> set[int]:
        """Return which tickets were withdrawn. No more are withdrawn until the transaction ends."""

    async def ticket_withdraw(self, tickets: Sequence[int]) -> None:
        """Withdraw tickets. The changes of other transactions that used them are committed and visible, or will be refused."""

    async def ticket_trim(self, before_ms: int, limit: int) -> None:
        """Delete up to ``limit`` tickets that were withdrawn before a wall-clock time."""
