"""Handlers of consumer groups: claim many jobs as an epoch, read them in splits, acknowledge them together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.access.identity import ANYWHERE, Right
from penstock.core import limits
from penstock.core.bulk_records import slice_name
from penstock.core.errors import InvalidInput
from penstock.core.queue import QueueKey
from penstock.doors.bulk.service import BulkDoor, BulkService, check_history
from penstock.doors.bulk.stages import TAG, check_name
from penstock.doors.bulk.wire import ARROW, ROWS_HEADER
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply, LeasesLostReply
from penstock.doors.http.route import File, Route
from penstock.doors.identity_watch import IdentityWatch
from penstock.doors.jobs.base import check_queue_name
from penstock.engine.bulk.consumer_groups import GroupClaim

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.core.bulk_records import Epoch
    from penstock.doors.http.request import Request
    from penstock.engine.api import EngineApi
    from penstock.engine.bulk.consumer_groups import ConsumerGroups

EpochNumber = Annotated[int, Meta(ge=1, le=limits.epoch_max)]
Lease = Annotated[int, Meta(ge=1, le=limits.lease_ms_max)]


class EpochClaimBody(msgspec.Struct):
    """A request to claim an epoch. ``max``: the most jobs. ``wait_ms``: the longest wait for the first job."""

    epoch: EpochNumber
    queues: Annotated[list[str], Meta(max_length=limits.group_queues_max)]
    max: Annotated[int, Meta(ge=1, le=limits.epoch_jobs_max)]
    lease_ms: Lease = 5 * limits.MINUTE_MS
    wait_ms: Annotated[int, Meta(ge=0, le=limits.claim_wait_ms_max)] = 0
    #: By shard number: the history of the earlier epochs, from the reply to their claims.
    histories: dict[str, str] = {}


class EpochReadQuery(msgspec.Struct):
    """Query of a read: the epoch, and ``split`` of ``splits``, counted from 0. ``lost``: what to do about lost leases."""

    epoch: EpochNumber
    split: Annotated[int, Meta(ge=0, le=limits.epoch_jobs_max)] = 0
    splits: Annotated[int, Meta(ge=1, le=limits.epoch_jobs_max)] = 1
    lost: Literal["fail", "skip"] = "fail"


class EpochAckBody(msgspec.Struct):
    """A request to acknowledge all epochs up to one. ``lost``: what to do about lost leases; ``fail`` changes nothing."""

    epoch: EpochNumber
    lost: Literal["fail", "skip"] = "skip"


class GroupHeartbeatBody(msgspec.Struct):
    """A heartbeat: the new length of the leases from now, in ms."""

    lease_ms: Lease = 5 * limits.MINUTE_MS


class EpochClaimReply(msgspec.Struct):
    """A claimed epoch, and the best number of splits to read it."""

    epoch: int
    rows: int
    splits: int
    histories: dict[str, str]  #: by shard, of all available shards; send it with the next claim


class EpochAckReply(msgspec.Struct):
    """The number of acknowledged jobs, and of jobs whose leases the group had lost."""

    acked: int
    lost: int


class GroupReleaseReply(msgspec.Struct):
    """The number of released jobs."""

    released: int


class GroupHeartbeatReply(msgspec.Struct):
    """The epochs of a group, and the number of their jobs whose leases were lost."""

    epochs: list[int]
    lost: int


class GroupReply(msgspec.Struct):
    """A consumer group. ``lag``: waiting jobs in its queues. ``last_seen``: wall clock, ms."""

    namespace: str
    group: str
    queues: list[str]
    epochs: list[int]
    in_flight: int
    lag: int
    last_seen: int


CLAIM: Final = BodyReader(EpochClaimBody)
READ: Final = BodyReader(EpochReadQuery)
ACK: Final = BodyReader(EpochAckBody)
HEARTBEAT: Final = BodyReader(GroupHeartbeatBody)


class GroupHandlers(BulkDoor):
    """One method per route."""

    def __init__(self, engine: EngineApi, groups: ConsumerGroups, service: BulkService) -> None:
        super().__init__(engine, service)
        self._groups = groups

    async def claim(self, req: Request, group: str) -> EpochClaimReply:
        namespace = self._consumer(req, group)
        body = await CLAIM.read(req)
        if not body.queues:
            raise InvalidInput("queues must name at least one queue")
        queues = list(dict.fromkeys(body.queues))
        for queue in queues:
            if self.engine.store.queue_find(QueueKey(namespace, queue)) is None:
                check_queue_name(queue)
        histories = self._check_histories(body.histories)
        wish = GroupClaim(queues, body.max, body.lease_ms, body.wait_ms)
        epoch = await self._while_allowed(req, self._groups.claim(namespace, group, body.epoch, wish))
        rows = epoch.rows
        return EpochClaimReply(body.epoch, rows, -(-rows // limits.epoch_rows_of_split), histories)

    async def read(self, req: Request, group: str) -> File:
        namespace = self._consumer(req, group)
        query = READ.parse_query(req)
        if query.split >= query.splits:
            raise InvalidInput("split must be below splits: it is counted from 0")
        wanted = await self._groups.read(namespace, group, query.epoch, query.split, query.splits)
        made = await self.service.answer(
            "epoch",
            sources=[each.store.source for each in self.engine.engines],
            namespace=namespace,
            entry=slice_name(group, query.epoch),
            wanted=[(each.ref.shard, each.ref.number, *each[1:]) for each in wanted],
            skip_lost=query.lost == "skip",
        )
        if made["missing"]:
            await self._groups.examine(made["missing"])
        if "path" not in made:
            raise await self._groups.lost(namespace, group, query.epoch)
        return File(made["path"], ARROW, made["bytes"], ((ROWS_HEADER, str(made["rows"])),))

    async def ack(self, req: Request, group: str) -> EpochAckReply:
        namespace = self._consumer(req, group)
        body = await ACK.read(req)
        return EpochAckReply(*await self._groups.ack(namespace, group, body.epoch, only_whole=body.lost == "fail"))

    async def release(self, req: Request, group: str) -> GroupReleaseReply:
        return GroupReleaseReply(await self._groups.release(self._consumer(req, group), group))

    async def heartbeat(self, req: Request, group: str) -> GroupHeartbeatReply:
        namespace = self._consumer(req, group)
        body = await HEARTBEAT.read_optional(req)
        return GroupHeartbeatReply(*await self._groups.heartbeat(namespace, group, body.lease_ms))

    async def statuses(self, req: Request) -> list[GroupReply]:
        namespace = None if req.header("x-namespace") == ANYWHERE else req.namespace()
        return [GroupReply(*each) for each in await self._groups.statuses(namespace)]

    async def _while_allowed(self, req: Request, claiming: Coroutine[Any, Any, Epoch]) -> Epoch:
        """Claim an epoch. Raises Unauthorized if the client's key or token expires during the wait."""
        answer = asyncio.ensure_future(claiming)
        watch = IdentityWatch(req, self.engine.clock, answer.cancel)
        try:
            return await answer
        except asyncio.CancelledError:
            watch.check()
            raise
        finally:
            watch.cancel()

    def _check_histories(self, expected: dict[str, str]) -> dict[str, str]:
        """Compare the histories of shards with those that a group has sent, and return them. Raises HistoryReplaced.

        Shards that do not exist any more, or were not reached yet, are left out.
        """
        found = {}
        for number, engine in enumerate(self.engine.engines):
            if engine.store.history.identity:
                check_history(number, engine.store, expected.get(str(number), ""))
                found[str(number)] = str(engine.store.history)
        return found

    @staticmethod
    def _consumer(req: Request, group: str) -> str:
        """Return the namespace of a request. A consumer needs the rights to claim and to settle."""
        namespace = req.namespace()
        check_name("group", group)
        req.allow(namespace, Right.TAKE)
        req.allow(namespace, Right.SETTLE)
        return namespace

    def routes(self) -> list[Route]:
        """Return the routes of consumer groups."""
        path = "/bulk/groups/{group}"
        routes = [
            Route(
                "GET", "/bulk/groups", self.statuses, "Consumer groups and their lag", TAG, listed=GroupReply, anywhere=True
            ),
            Route(
                "POST",
                f"{path}/claim",
                self.claim,
                "Claim jobs as an epoch",
                TAG,
                EpochClaimReply,
                CLAIM,
                body_required=True,
                also=((409, ErrorReply),),
            ),
            Route(
                "GET",
                f"{path}/read",
                self.read,
                "Read jobs of an epoch",
                TAG,
                query=READ,
                media=ARROW,
                also=((409, LeasesLostReply), (501, ErrorReply)),
            ),
            Route(
                "POST",
                f"{path}/ack",
                self.ack,
                "Acknowledge all epochs up to one",
                TAG,
                EpochAckReply,
                ACK,
                body_required=True,
                also=((409, LeasesLostReply),),
            ),
            Route("POST", f"{path}/release", self.release, "Release all jobs of a group", TAG, GroupReleaseReply),
            Route("POST", f"{path}/heartbeat", self.heartbeat, "Renew all leases", TAG, GroupHeartbeatReply, HEARTBEAT),
        ]
        return [route._replace(namespaced=True) for route in routes]
