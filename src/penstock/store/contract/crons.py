"""Crons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.cron import CronKey, CronRecord


class CronTransaction(Protocol):
    """Crons in batches, inside of a transaction."""

    async def cron_load(self, keys: Iterable[CronKey]) -> list[CronRecord]:
        """Read crons and lock them for this transaction. Unknown ones are left out."""

    async def cron_due(self, now_ms: int, limit: int) -> list[CronRecord]:
        """Read crons whose tick is due, earliest first."""

    async def cron_insert(self, crons: Sequence[tuple[CronRecord, bytes]]) -> None:
        """Write new crons with the data of their jobs, and number them. Their namespaces exist, their names are free.

        Raises TooMany beyond ``crons_max``.
        """

    async def cron_tally(self, namespace: str) -> tuple[int, int]:
        """Return the number of all crons, and the number of a namespace's crons."""

    async def cron_save(self, crons: Sequence[tuple[CronRecord, int]]) -> None:
        """Write crons back, each with the tick it was read with. Raises RowChanged if a tick has changed."""

    async def cron_remove(self, crons: Sequence[tuple[CronRecord, int]]) -> None:
        """Delete crons with all their data, guarded like ``cron_save``."""

    async def cron_data_save(self, cron: CronRecord, data: bytes) -> None:
        """Replace the data of a cron's jobs."""

    async def cron_data_load(self, crons: Sequence[CronRecord]) -> dict[int, bytes]:
        """Read the data of the jobs of some crons, by the number of the cron.

        Fewer when they reach ``claim_batch_bytes_max``; the horizon then has the rest as due now.
        """


class CronReads(Protocol):
    """Crons, outside of transactions."""

    async def cron_get(self, key: CronKey) -> CronRecord | None:
        """Read one cron."""

    async def cron_list(self, namespace: str) -> list[CronRecord]:
        """Read all crons of a namespace, by name."""

    def cron_count(self) -> int:
        """Return the number of crons of all namespaces."""
