"""Opens the shards that the configuration names, and makes one engine of them for the doors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import StorageFailed
from penstock.core.sharding import Layout
from penstock.engine.engine import Engine
from penstock.engine.fast.path import FastPath
from penstock.engine.feed import Feed
from penstock.engine.fleet import Fleet, ShardFeed
from penstock.engine.keeper import Retention
from penstock.engine.stats import Stats
from penstock.engine.workers import Workers
from penstock.store.postgres import PostgresStore
from penstock.store.redis import ReadyLists, RedisLink
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
        await _close(shards)
        raise
    if not any(shard.status().writable for shard in shards):
        await _close(shards)
        raise StorageFailed("None of the shards can be reached. Check the addresses given by --store.")
    return shards


async def _close(shards: list[Store]) -> None:
    for shard in shards:
        await shard.close()


def make_link(config: Config, clock: Clock) -> RedisLink | None:
    """Return the way to Redis, if there is to be one."""
    return RedisLink(config.redis, clock) if config.redis else None


def make_engine(config: Config, shards: list[Store], clock: Clock, link: RedisLink | None = None) -> AnyEngine:
    """Make one engine, or a fleet of them. ``link``: where ready lists are kept; None if there are none."""
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
        engine = Engine(shards[0], shards[0].clock, feed=feed, workers=workers, **options)
        _speed_up([engine], link, config)
        return engine
    whole, stats, positions = Feed(), Stats(), [shard.journal_next - 1 for shard in shards]
    workers = Workers(clock, whole, **worker_times)
    engines = [
        Engine(shard, shard.clock, feed=ShardFeed(whole, positions, number), stats=stats, workers=workers, **options)
        for number, shard in enumerate(shards)
    ]
    _speed_up(engines, link, config)
    return Fleet(engines, whole, stats, workers, clock)


def _speed_up(engines: list[Engine], link: RedisLink | None, config: Config) -> None:
    """Give engines a fast path, if there is one and their stores can have it."""
    for engine in engines:
        store = engine.store
        if link is not None and isinstance(store, PostgresStore):
            lists = ReadyLists(link, lambda store=store: store.identity)  # type: ignore[misc]
            engine.use(FastPath(engine, lists, hot_jobs=config.redis_hot_jobs))
