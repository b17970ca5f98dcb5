"""What one shard keeps for the others: relays of ends, and names that are unique in a whole namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.dependencies import JobEnd, Relay
    from penstock.core.reservations import Reservation


class ShardingTransaction(Protocol):
    """Relays (``relay_``), reservations of names (``name_``, see ``core/reservations.py``) and their tickets."""

    async def relay_ask(self, jobs: Sequence[int], shard: int, *, alive: bool) -> None:
        """Note that a shard has asked just now to be told how jobs end. Asking again is fine.

        ``alive``: they live, so how they ended before is not told any more: who asks now must not take it for the end to come.
        """

    async def relay_asked(self, jobs: Sequence[int], shard: int) -> dict[int, int | None]:
        """Return for which of some jobs a shard has asked, and how often it was told of their ends; None: no end yet."""

    async def relay_end(self, ends: Sequence[tuple[JobEnd, int]]) -> None:
        """Have the ends of jobs told to all shards that have asked, instead of any earlier end of theirs.

        Each with the id of a job that does not need it any more, or 0.
        """

    async def relay_shards(self) -> set[int]:
        """Return the shards that are to be told something now."""

    async def relay_due(self, shard: int, limit: int) -> list[Relay]:
        """Read up to ``limit`` ends that a shard is to be told now. Fewer when they reach ``flow_bytes_batch_max``."""

    async def relay_again(self, relays: Sequence[tuple[Relay, int]]) -> None:
        """Note that ends were told, and are to be told again at a wall-clock time.

        One that was replaced, or is not to be told any more, is left alone.
        """

    async def relay_done(self, relays: Sequence[Relay], *, keep: bool) -> None:
        """Forget ends that were told; ``keep`` what was asked for, because there may be another one.

        One that was replaced, or asked for again meanwhile, is left alone.
        """

    async def relay_forget(self, jobs: Sequence[int]) -> None:
        """Forget who has asked about jobs that will not end any more. Ends that wait for being told still are."""

    async def name_load(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reservation]:
        """Read reservations by namespace and name, and hold them for this transaction. Unknown ones are left out."""

    async def name_save(self, reservations: Sequence[tuple[Reservation, int]]) -> None:
        """Write reservations, each with the ticket it was read with, 0 for a new one. Raises RowChanged if it is not so."""

    async def name_page(self, after: tuple[str, str], limit: int) -> list[Reservation]:
        """Read up to ``limit`` reservations behind a namespace and name, in order."""

    async def name_remove(self, reservations: Sequence[Reservation]) -> None:
        """Forget reservations. One that was given anew or renewed meanwhile is left alone."""

    async def ticket_hold(self, tickets: Sequence[int]) -> set[int]:
        """Return which tickets were withdrawn. Until the end of the transaction none is."""

    async def ticket_withdraw(self, tickets: Sequence[int]) -> None:
        """Withdraw tickets. What others did by them is committed and seen, or will not happen."""

    async def ticket_trim(self, before_ms: int, limit: int) -> None:
        """Forget up to ``limit`` tickets that were withdrawn before a wall-clock time."""
