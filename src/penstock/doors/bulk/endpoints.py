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
    """Builds all bulk handlers, which share one BulkService."""

    def __init__(self, config: Config, engine: EngineApi) -> None:
        self.service = BulkService(config, engine)
        self.snapshots = SnapshotHandlers(engine, self.service, config.bulk_snapshot_ms)
        self._journal = JournalHandlers(engine, self.service, config.bulk_journal_rows)

    def routes(self) -> list[Route]:
        """Return all routes under ``/bulk``."""
        return [*self._journal.routes(), *self.snapshots.routes()]

    async def close(self) -> None:
        """Stop the work in progress, and remove all files."""
        self.snapshots.close()
        await self.service.close()
