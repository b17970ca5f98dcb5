"""Open the shards of the configuration, and build one engine of them for the doors.

The modules for databases and Redis are imported only when they are needed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from penstock.core.durability import Durability
from penstock.core.errors import StorageFailed, StoreIncompatible
from penstock.core.retention import Retention
from penstock.core.sharding import Layout, check_together
from penstock.engine.engine import Engine
from penstock.engine.event_feed import EventFeed
from penstock.engine.fair_share import FairShare
from penstock.engine.sharding.engine import ShardedEngine, ShardFeed
from penstock.engine.stats import EngineStats
from penstock.engine.worker_registry import WorkerRegistry
from penstock.server.auth import quotas_of
from penstock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer
    from penstock.engine.prefetch.ready_cache import ReadyCache
    from penstock.store.contract import Store
    from penstock.store.redis import RedisLink

log = structlog.get_logger("penstock")

#: How often stores are read again if some of them have their number and others do not.
_LOOKS: Final = 3


async def open_shards(config: Config, clock: Clock) -> list[Store]:
    """Open the store, or all shards. A shard that is down is not an error, as long as another one is available."""
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
    """Compare the shard numbers that the stores have, and write those of new stores: all are new, or some were added."""
    if len(shards) == 1:
        return
    for _ in range(_LOOKS):
        newest = check_together([shard.layout for shard in shards])
        needed = 0 if newest is None else newest.needed
        missing = [shard for shard in shards[:needed] if shard.layout is None and shard.status().writable]
        if not missing:
            break
        for shard in missing:  # another server that starts may be about to write it
            await shard.layout_refresh()
    else:
        raise StoreIncompatible(
            f"Store {missing[0].shard} (counting from 0) is empty, but the others have a record of {needed} shards. Set "
            "the same stores in the same order as before. Nothing was changed."
        )
    for number, shard in enumerate(shards):
        if shard.layout is None:
            await shard.layout_begin(Layout(number, len(shards)) if newest is None else newest._replace(shard=number))


async def open_engine(config: Config, shards: list[Store], clock: Clock) -> tuple[Engine | ShardedEngine, list[RedisLink]]:
    """Build the engine of a server, with all stages of the submit chain; return it and its connections to Redis."""
    redis_links = _redis_links(config, shards, clock)
    engine = _make_engine(config, shards, clock, redis_links)
    for each in engine.engines:
        if each.buffer is not None:
            await each.buffer.open()
            if each.buffer.jobs and not redis_links:
                log.warning(
                    "pushes to buffered queues were answered and are only in the log: they are stored now. Without --redis "
                    "new ones are stored directly",
                    directory=str(_log_of(config, each.store)),
                    jobs=each.buffer.jobs,
                )
    return engine, redis_links


def _make_engine(
    config: Config, shards: list[Store], clock: Clock, redis_links: Sequence[RedisLink]
) -> Engine | ShardedEngine:
    """Build one engine, or one for each shard and a ShardedEngine for all."""
    several = len(shards) > 1
    clock = clock if several else shards[0].clock
    quotas = quotas_of(dict(config.namespace_quotas), shards, clock)
    feed, stats = EventFeed(), EngineStats()
    workers = WorkerRegistry(
        clock, feed, timeout_ms=config.worker_timeout_ms, overload_ms=config.worker_overload_threshold_ms
    )
    fair_share = FairShare(clock)
    retention = Retention(config.completed_max, config.completed_age_ms, config.journal_bytes_max, config.journal_age_ms)
    positions = [shard.journal_next - 1 for shard in shards]
    engines = [
        Engine(
            shard,
            shard.clock,
            durability=config.durability,
            sync_interval_ms=config.sync_interval_ms,
            retention=retention,
            feed=ShardFeed(feed, positions, number) if several else feed,
            stats=stats,
            workers=workers,
            fair_share=fair_share,
            quotas=quotas,
            counts_pushes=not several,
            ready_cache=_ready_cache_of(config, shard, redis_links),
            buffer=_buffer_of(config, shard, redis_links),
        )
        for number, shard in enumerate(shards)
    ]
    return ShardedEngine(engines, feed, stats, workers, clock, quotas=quotas) if several else engines[0]


def _redis_links(config: Config, shards: list[Store], clock: Clock) -> list[RedisLink]:
    """Return connections to the Redis servers of the configuration, if there are stores that can use them."""
    if not config.redis:
        return []
    from penstock.store.redis import RedisLink  # noqa: PLC0415, see above

    if not any(shard.capabilities.is_shared for shard in shards):
        log.warning(
            "redis is not used: it is a fast path for databases (--store postgresql://…), and these stores are files"
        )
        return []
    return [RedisLink(url, clock) for url in config.redis]


def _ready_cache_of(config: Config, store: Store, redis_links: Sequence[RedisLink]) -> Callable[[Engine], ReadyCache] | None:
    """Return a factory of the ready lists of an engine; None: it has none, because there is no Redis for its store."""
    if not redis_links or not store.capabilities.is_shared:
        return None
    from penstock.engine.prefetch.ready_cache import ReadyCache  # noqa: PLC0415, see above
    from penstock.store.redis import RedisReadyLists  # noqa: PLC0415

    lists = RedisReadyLists(redis_links[store.shard % len(redis_links)], partial(getattr, store, "identity"))
    return lambda engine: ReadyCache(engine, lists, hot_jobs=config.redis_hot_jobs)


def _buffer_of(config: Config, store: Store, redis_links: Sequence[RedisLink]) -> Callable[[Engine], EnqueueBuffer] | None:
    """Return a factory of the enqueue buffer of an engine; None: it has none.

    Without Redis, there is a buffer only to store the pushes that an earlier start with Redis has left in its log: they were
    answered, and are not in their queues yet.
    """
    directory = _log_of(config, store)
    if not store.capabilities.is_shared or not (redis_links or directory.is_dir()):
        return None
    from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer  # noqa: PLC0415, see above

    identity = partial(getattr, store, "identity")
    copies: BufferCopies | None = None
    if redis_links:
        from penstock.store.redis import BufferCopies  # noqa: PLC0415

        copies = BufferCopies(redis_links[store.shard % len(redis_links)], identity)
    return lambda engine: EnqueueBuffer(engine, directory, identity, copies, accept_loss=config.accept_loss)


def _log_of(config: Config, store: Store) -> Path:
    """Return the directory of the log of a store's enqueue buffer."""
    return (config.wal_dir or config.data) / f"wal-{store.shard}"


async def close_shards(shards: list[Store], redis_links: Sequence[RedisLink] = ()) -> None:
    """Close everything that this module opened."""
    for shard in shards:
        await shard.close()
    for link in redis_links:
        await link.close()
