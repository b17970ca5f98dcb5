"""Opens the shards that the configuration names, and makes one engine of them for the doors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import StorageFailed
from penstock.core.sharding import Layout
from penstock.engine.engine import Engine
from penstock.engine.fast.buffer import EnqueueBuffer
from penstock.engine.fast.path import FastPath
from penstock.engine.feed import Feed
from penstock.engine.fleet import Fleet, ShardFeed
from penstock.engine.keeper import Retention
from penstock.engine.stats import Stats
from penstock.engine.workers import Workers
from penstock.store.postgres import PostgresStore
from penstock.store.redis import Buffers, ReadyLists, RedisLink
from penstock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.engine.fleet import AnyEngine
    from penstock.store.contract import Store


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
                shards.append(
                    await SqliteStore.open(directory, clock, accept_loss=loss, ballast_bytes=ballast, layout=layout)
                )
            else:
                shards.append(await PostgresStore.open(url, clock, layout=layout, may_be_down=len(urls) > 1))
    except BaseException:
        await close_shards(shards)
        raise
    if not any(shard.status().writable for shard in shards):
        await close_shards(shards)
        raise StorageFailed("None of the shards can be reached. Check the addresses given by --store.")
    return shards


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
        feed = Feed()
        workers = Workers(shards[0].clock, feed, **worker_times)
        return Engine(shards[0], shards[0].clock, feed=feed, workers=workers, **options)
    whole, stats, positions = Feed(), Stats(), [shard.journal_next - 1 for shard in shards]
    workers = Workers(clock, whole, **worker_times)
    engines = [
        Engine(shard, shard.clock, feed=ShardFeed(whole, positions, number), stats=stats, workers=workers, **options)
        for number, shard in enumerate(shards)
    ]
    return Fleet(engines, whole, stats, workers, clock)


async def speed_up(config: Config, engine: AnyEngine, clock: Clock) -> RedisLink | None:
    """Give engines the fast path over Redis, if there is to be one and their stores can have it; return the way to Redis."""
    if not config.redis:
        return None
    link = RedisLink(config.redis, clock)
    for each in engine.engines:
        store = each.store
        if isinstance(store, PostgresStore):
            identity = partial(getattr, store, "identity")
            each.use(FastPath(each, ReadyLists(link, identity), hot_jobs=config.redis_hot_jobs))
            buffer = EnqueueBuffer(each, config.data / f"wal-{store.shard}", identity, Buffers(link, identity))
            each.buffer_with(buffer)
            await buffer.open()
    return link


async def close_shards(shards: list[Store], link: RedisLink | None = None) -> None:
    """Let go of everything that was opened here."""
    for shard in shards:
        await shard.close()
    if link is not None:
        await link.close()
