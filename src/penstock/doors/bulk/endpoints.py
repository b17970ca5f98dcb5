"""All bulk endpoints of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.doors.bulk.journal import JournalHandlers
from penstock.doors.bulk.service import BulkService
from penstock.doors.bulk.snapshots import SnapshotHandlers

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.doors.http.route import Route
    from penstock.engine.api import EngineApi


class BulkEndpoints:
    """Puts them together: they share an office."""

    def __init__(self, config: Config, engine: EngineApi) -> None:
        self.office = BulkService(config, engine)
        self.snapshots = SnapshotHandlers(engine, self.office, config.bulk_snapshot_ms)
        self._journal = JournalHandlers(engine, self.office, config.bulk_journal_rows)

    def routes(self) -> list[Route]:
        """Return everything under ``/bulk``."""
        return [*self._journal.routes(), *self.snapshots.routes()]

    async def close(self) -> None:
        """End what is under way, and leave no files behind."""
        self.snapshots.close()
        await self.office.close()
