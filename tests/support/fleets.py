"""Several SQLite shards as one engine, in the event loop of a test and by a clock that it moves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.core.clock import yield_to_loop
from penstock.core.durability import Durability
from penstock.core.sharding import Layout
from penstock.engine.engine import Engine
from penstock.engine.event_feed import EventFeed
from penstock.engine.sharding.engine import ShardedEngine, ShardFeed
from penstock.engine.stats import EngineStats
from penstock.engine.worker_registry import WorkerRegistry
from penstock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock


@asynccontextmanager
async def fleet_on(
    directory: Path, clock: ManualClock, count: int = 3, *, start: bool = True
) -> AsyncIterator[ShardedEngine]:
    """A fleet on shards in a directory. Used on the same directory again, it goes on where the last one ended."""
    stores = [
        await SqliteStore.open(
            directory / f"shard{number}", clock, ballast_bytes=0, read_inline=True, layout=Layout(number, count)
        )
        for number in range(count)
    ]
    feed, stats = EventFeed(), EngineStats()
    workers = WorkerRegistry(clock, feed, timeout_ms=30_000, overload_ms=30_000)
    positions = [store.journal_next - 1 for store in stores]
    engines = [
        Engine(
            store,
            clock,
            durability=Durability.NEVER,
            feed=ShardFeed(feed, positions, number),
            stats=stats,
            workers=workers,
        )
        for number, store in enumerate(stores)
    ]
    fleet = ShardedEngine(engines, feed, stats, workers, clock)
    if start:
        fleet.start()
    yield fleet
    await fleet.close()
    for store in stores:
        await store.close()


class Settled:
    """A fleet that answers when what follows from a command on other shards has happened, too."""

    def __init__(self, fleet: ShardedEngine) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def run(self, command: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._run(command))

    async def _run(self, command: Any) -> Any:
        try:
            return await self._fleet.run(command)
        finally:
            await yield_to_loop(100)
