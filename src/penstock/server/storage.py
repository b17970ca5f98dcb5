"""Opens the shards that the configuration names, and makes one engine of them for the doors.

A server on a file starts without what databases and Redis need: their modules are imported where they are wanted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.core.durability import Durability
from penstock.core.errors import StorageFailed, StoreIncompatible
from penstock.core.sharding import Layout, check_together
from penstock.engine.engine import Engine
from penstock.engine.event_feed import EventFeed
from penstock.engine.fair_share import FairShare
from penstock.engine.maintenance.retention import Retention
from penstock.engine.sharding.engine import ShardedEngine, ShardFeed
from penstock.engine.stats import EngineStats
from penstock.engine.worker_registry import WorkerRegistry
from penstock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.engine.sharding.engine import AnyEngine
    from penstock.store.contract import Store
    from penstock.store.redis import RedisLink

log = structlog.get_logger("penstock")

#: How often stores are asked who they are when some say what the others do not.
_LOOKS: Final = 3


async def open_shards(config: Config, clock: Clock) -> list[Store]:
    """Open the store, or all shards. One that is down is no obstacle, as long as another is there."""
    urls = config.stores or (f"sqlite:{config.data}",)
    shards: list[Store] = []
    try:
        for number, url in enumerate(urls):
            layout = Layout(number, len(urls))
            if url.startswith("sqlite:"):
                loss, ballast = config.accept_loss, config.ballast_bytes
                directory = Path(url.removeprefix("sqlite:").removeprefix("//"))
                early = config.durability is not Durability.ALWAYS
                shards.append(
                    await SqliteStore.open(
                        directory,
                        clock,
                        accept_loss=loss,
                        upgrade_copy=config.upgrade_copy,
                        tells_early=early,
                        ballast_bytes=ballast,
                        layout=layout,
                    )
                )
            else:
                from penstock.store.postgres import PostgresStore  # noqa: PLC0415, see above

                patience, several = config.database_answer_ms, len(urls) > 1
                shards.append(await PostgresStore.open(url, clock, layout=layout, answer_ms=patience, may_be_down=several))
        await agree(shards)
    except BaseException:
        await close_shards(shards)
        raise
    if not any(shard.status().writable or shard.status().full for shard in shards):
        await close_shards(shards)
        raise StorageFailed("None of the shards can be reached. Check the addresses given by --store.")
    return shards


async def agree(shards: list[Store]) -> None:
    """Compare what the stores say of themselves, and tell the new ones: all are new, or some were added to old ones."""
    if len(shards) == 1:
        return
    for _ in range(_LOOKS):
        newest = check_together([shard.layout for shard in shards])
        needed = 0 if newest is None else newest.needed
        missing = [shard for shard in shards[:needed] if shard.layout is None and shard.status().writable]
        if not missing:
            break
        for shard in missing:  # another server that starts may be about to say it
            await shard.layout_look()
    else:
        raise StoreIncompatible(
            f"Store {missing[0].shard} (counting from 0) is empty, but the others say that it is one of {needed} shards. Give "
            "the same stores in the same order as before; nothing was changed."
        )
    for number, shard in enumerate(shards):
        if shard.layout is None:
            await shard.layout_begin(Layout(number, len(shards)) if newest is None else newest._replace(shard=number))


def make_engine(config: Config, shards: list[Store], clock: Clock) -> AnyEngine:
    """Make one engine, or a fleet of them."""
    options: dict[str, Any] = {
        "durability": config.durability,
        "sync_interval_ms": config.sync_interval_ms,
        "retention": Retention(
            config.completed_max, config.completed_age_ms, config.journal_bytes_max, config.journal_age_ms
        ),
    }
    worker_times = {"timeout_ms": config.worker_timeout_ms, "overload_ms": config.worker_overload_threshold_ms}
    if len(shards) == 1:
        feed = EventFeed()
        workers = WorkerRegistry(shards[0].clock, feed, **worker_times)
        return Engine(shards[0], shards[0].clock, feed=feed, workers=workers, **options)
    whole, stats, positions = EventFeed(), EngineStats(), [shard.journal_next - 1 for shard in shards]
    workers = WorkerRegistry(clock, whole, **worker_times)
    options["share"] = FairShare(clock)
    engines = [
        Engine(
            shard,
            shard.clock,
            feed=ShardFeed(whole, positions, number),
            stats=stats,
            workers=workers,
            **options,
        )
        for number, shard in enumerate(shards)
    ]
    return ShardedEngine(engines, whole, stats, workers, clock)


async def speed_up(config: Config, engine: AnyEngine, clock: Clock) -> list[RedisLink]:
    """Give engines the fast path over Redis, if there is to be one and their stores can have it; return the ways to Redis.

    Without Redis, what an earlier start with one has left in the log of the enqueue buffer is stored.
    """
    if not config.redis:
        await _store_logs(config, engine)
        return []
    from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer  # noqa: PLC0415, see above
    from penstock.engine.prefetch.ready_cache import ReadyCache  # noqa: PLC0415
    from penstock.store.postgres import PostgresStore  # noqa: PLC0415
    from penstock.store.redis import BufferCopies, ReadyLists, RedisLink  # noqa: PLC0415

    if not any(isinstance(each.store, PostgresStore) for each in engine.engines):
        log.warning(
            "redis is not used: it is a fast path for databases (--store postgresql://…), and these stores are files"
        )
        return []
    links = [RedisLink(url, clock) for url in config.redis]
    for each in engine.engines:
        store = each.store
        if isinstance(store, PostgresStore):
            link = links[store.shard % len(links)]
            identity = partial(getattr, store, "identity")
            each.use(ReadyCache(each, ReadyLists(link, identity), hot_jobs=config.redis_hot_jobs))
            buffer = EnqueueBuffer(
                each, _log_of(config, store), identity, BufferCopies(link, identity), accept_loss=config.accept_loss
            )
            buffer.route = engine.of
            each.buffer_with(buffer)
            await buffer.open()
    return links


def _log_of(config: Config, store: Store) -> Path:
    """Return the directory of the log of a store's enqueue buffer."""
    return (config.wal_dir or config.data) / f"wal-{store.shard}"


async def _store_logs(config: Config, engine: AnyEngine) -> None:
    """Have what was answered and is in logs only stored in the databases: those pushes are on disk, but not in their queues."""
    left = [each for each in engine.engines if _log_of(config, each.store).is_dir()]
    if not left:
        return
    from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer  # noqa: PLC0415, see above
    from penstock.store.postgres import PostgresStore  # noqa: PLC0415

    for each in left:
        store = each.store
        if isinstance(store, PostgresStore):
            identity = partial(getattr, store, "identity")
            buffer = EnqueueBuffer(each, _log_of(config, store), identity, None, accept_loss=config.accept_loss)
            buffer.route = engine.of
            each.buffer_with(buffer)
            await buffer.open()
            if buffer.jobs:
                log.warning(
                    "pushes to buffered queues were answered and are only in the log: they are stored now. Without --redis "
                    "new ones are stored directly",
                    directory=str(_log_of(config, store)),
                    jobs=buffer.jobs,
                )


async def close_shards(shards: list[Store], links: Sequence[RedisLink] = ()) -> None:
    """Let go of everything that was opened here."""
    for shard in shards:
        await shard.close()
    for link in links:
        await link.close()
