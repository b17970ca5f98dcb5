"""Handlers about crons, and what other doors need for crons with the same texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.cron import CronJobTemplate, CronKey, CronPlan
from penstock.core.errors import CronNotFound, InvalidInput
from penstock.core.job import JobFlag
from penstock.core.schedule import parse
from penstock.doors.http.body import BodyReader
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import JobsDoor, check_queue_name
from penstock.doors.jobs.mapping import base_delay, dedup_of, encoded_rules, take_payload
from penstock.doors.jobs.wire import replies, requests
from penstock.engine.queues.crons import RemoveCron, SaveCron

if TYPE_CHECKING:
    from penstock.core.cron import CronRecord
    from penstock.doors.http.request import ApiRequest
    from penstock.engine.api import EngineApi

CRON = BodyReader(requests.CronBody)


def save_command(namespace: str, body: requests.CronBody) -> SaveCron:
    """Turn a body into the engine's command that saves a cron. Raises InvalidInput with the contract's text."""
    check_queue_name(body.queue)
    data = take_payload(body.data)
    if (body.schedule is None) == (body.repeat_every is None):
        raise InvalidInput("Cron job must have either schedule or repeatEvery")
    if body.dedup is not None and body.unique_key is None and not body.prevent_overlap:
        raise InvalidInput("dedup needs a uniqueKey, or preventOverlap")
    plan = CronPlan(
        body.queue,
        parse(body.schedule, body.repeat_every, body.timezone),
        body.priority,
        body.max_limit,
        body.unique_key,
        body.prevent_overlap,
        body.skip_missed_on_restart,
        body.skip_if_no_worker,
        None if body.dedup is None else dedup_of(body.dedup),
        _job_options(body.job_options or requests.CronJobBody(), body.job_name),
    )
    size_limit = None if body.job_options is None else body.job_options.size_limit
    if size_limit is not None and len(data) > size_limit:
        raise InvalidInput(f"Job data too large: {len(data)} bytes, and its sizeLimit is {size_limit}")
    size = len(msgspec.msgpack.encode(plan))
    if size > limits.cron_plan_bytes_max:  # all plans of a namespace are read for a listing
        raise InvalidInput(
            f"The options of the cron have {size} bytes, at most {limits.cron_plan_bytes_max} are accepted. Use fewer or "
            "shorter tags and keys."
        )
    return SaveCron(CronKey(namespace, body.name), plan, data, immediately=body.immediately)


def _job_options(body: requests.CronJobBody, name: str | None) -> CronJobTemplate:
    return CronJobTemplate(
        body.max_attempts or 3,
        base_delay(body.backoff),
        body.timeout or None,
        body.delay,
        _flags(body),
        encoded_rules(body),
        body.ttl or None,
        body.group_id,
        tuple(body.tags or ()),
        name,
    )


def _flags(body: requests.CronJobBody) -> int:
    chosen = (
        (body.remove_on_complete, JobFlag.REMOVE_ON_COMPLETE),
        (body.remove_on_fail, JobFlag.REMOVE_ON_FAIL),
        (body.lifo, JobFlag.LIFO),
        (body.durable, JobFlag.DURABLE),
    )
    return sum(flag for wanted, flag in chosen if wanted)


async def find_cron(engine: EngineApi, key: CronKey) -> CronRecord:
    """Return a cron. Raises CronNotFound."""
    found = await engine.store.cron_get(key)
    if found is None:
        raise CronNotFound
    return found


def _schedule_fields(cron: CronRecord) -> tuple[str, str, str | None, int | None, int, str, str | msgspec.UnsetType]:
    """Return the first fields of both views of a cron, in order."""
    schedule = cron.plan.schedule
    name = cron.plan.job.name or msgspec.UNSET
    return cron.key.name, cron.plan.queue, schedule.expression, schedule.every_ms, cron.next_run, schedule.timezone, name


def cron_view(cron: CronRecord) -> replies.CronView:
    """Return the view of a cron: when it runs."""
    return replies.CronView(*_schedule_fields(cron))


def counted_cron_view(cron: CronRecord) -> replies.CountedCronView:
    """Return the view of a cron, with how often it has run."""
    return replies.CountedCronView(*_schedule_fields(cron), executions=cron.executions, max_limit=cron.plan.max_limit)


class CronHandlers(JobsDoor):
    """One method per route."""

    async def list_crons(self, req: ApiRequest) -> replies.CronsReply:
        crons = [counted_cron_view(cron) for cron in await self.store.cron_list(self.namespace(req))]
        return replies.CronsReply(crons=crons, partial=self.partial())

    async def save(self, req: ApiRequest) -> replies.SavedCronReply:
        command = save_command(self.namespace(req), await CRON.read(req))
        return replies.SavedCronReply(cron=cron_view(await self.engine.run(command)))

    async def get(self, req: ApiRequest, id: str) -> replies.CronReply:
        return replies.CronReply(cron=counted_cron_view(await find_cron(self.engine, CronKey(self.namespace(req), id))))

    async def delete(self, req: ApiRequest, id: str) -> replies.Ok:
        await self.engine.run(RemoveCron(CronKey(self.namespace(req), id)))
        return replies.Ok()

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract. A name may contain slashes, like an id."""
        tag = "Crons"
        return self.namespaced(
            Route("GET", "/crons", self.list_crons, "List crons", tag, replies.CronsReply),
            Route("POST", "/crons", self.save, "Add cron", tag, replies.SavedCronReply, body=CRON, body_required=True),
            Route("GET", "/crons/{id}", self.get, "Get cron", tag, replies.CronReply),
            Route("DELETE", "/crons/{id}", self.delete, "Delete cron", tag, replies.Ok),
        )
