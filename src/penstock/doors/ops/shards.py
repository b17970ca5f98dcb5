"""Handlers for operators of several shards: their state, and rebalancing over another number of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import RebalanceRefused
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.route import Route
from penstock.doors.ops.replies import OpsReply

if TYPE_CHECKING:
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi
    from penstock.engine.sharding.rebalancer import Overview, Rebalancer


class ShardReply(OpsReply):
    """One shard. ``shards``, ``epoch`` and ``target`` are its own values; null if it was never reached."""

    shard: int
    up: bool
    shards: int | None
    epoch: int | None
    target: int | None
    spare: bool  #: it has no queues, and may be removed
    queues: int
    misplaced: int  #: queues that must be moved away from it
    moved: int  #: queues that the current rebalance has moved away from it


class ShardsReply(OpsReply):
    """All shards, and the progress of a rebalance."""

    ok: bool
    rebalancing: bool
    target: int | None  #: the number of shards after the rebalance
    left: int  #: queues that must still be moved
    moving: list[str]  #: queues that are not available now, because they are being moved
    waiting: str | None  #: what the rebalance waits for, if this server moves the queues
    shards: list[ShardReply]


class RebalanceBody(msgspec.Struct):
    """The new number of shards; default: all that the servers are configured with."""

    to: int | None = None


_BODY = BodyReader(RebalanceBody)


class ShardHandlers:
    """One method per route."""

    def __init__(self, engine: EngineApi, rebalancer: Rebalancer | None) -> None:
        self._engine = engine
        self._rebalancer = rebalancer  #: None with one store

    async def status(self, _req: Request) -> ShardsReply:
        engine = self._engine
        if self._rebalancer is not None:
            return _reply(self._rebalancer.overview())
        layout = engine.engines[0].store.layout
        alone = ShardReply(
            shard=0,
            up=engine.store.status().writable,
            shards=None if layout is None else layout.shards,
            epoch=None if layout is None else layout.epoch,
            target=None,
            spare=False,
            queues=engine.store.queue_count(),
            misplaced=0,
            moved=0,
        )
        return ShardsReply(ok=True, rebalancing=False, target=None, left=0, moving=[], waiting=None, shards=[alone])

    async def rebalance(self, req: Request) -> ShardsReply:
        body = await _BODY.read_optional(req)
        if self._rebalancer is None:
            raise RebalanceRefused("There is only one store. Restart all servers with more stores, one --store for each.")
        return _reply(await self._rebalancer.begin(body.to))

    def routes(self) -> list[Route]:
        """Return the routes for operators."""
        tag = "Monitoring"
        return [
            Route("GET", "/shards", self.status, "Shards, and the progress of a rebalance", tag, ShardsReply),
            Route(
                "POST",
                "/shards/rebalance",
                self.rebalance,
                "Spread the queues over another number of shards",
                tag,
                ShardsReply,
                body=_BODY,
                also=((409, ErrorReply),),
            ),
        ]


def _reply(overview: Overview) -> ShardsReply:
    shards = [ShardReply(**msgspec.structs.asdict(view)) for view in overview.shards]
    return ShardsReply(
        ok=True,
        rebalancing=overview.rebalancing,
        target=overview.target,
        left=overview.left,
        moving=overview.moving,
        waiting=overview.waiting,
        shards=shards,
    )
