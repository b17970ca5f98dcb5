"""``PUSHF``: a whole flow in one command, as bunqueue's FlowProducer sends it. All of its jobs are stored, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Raw

from penstock.core import ids, limits
from penstock.core.errors import InvalidInput
from penstock.core.job import Payload
from penstock.core.queue import QueueKey
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.jobs.base import check_queue_name, in_other_words
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import ID
from penstock.doors.jobs.job_handlers import CANNOT_UPDATE, DATA
from penstock.doors.jobs.mapping import job_ref, job_steps, job_view, take_payload
from penstock.doors.jobs.wire import fields, replies, requests
from penstock.engine.jobs.flow_push import PushFlow
from penstock.engine.jobs.push import check_needs
from penstock.engine.jobs.update import EditData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.job import JobRecord, JobSpec
    from penstock.core.time_slices import Steps
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.job_handlers import JobHandlers


class FlowJobBody(requests.RequestModel):
    """One job of a flow. The client chooses its id."""

    id: fields.Key
    queue: str
    input: requests.PushBody


class FlowBody(requests.RequestModel):
    """The jobs of a flow, which depend on each other."""

    jobs: Annotated[list[FlowJobBody], Meta(max_length=limits.bulk_jobs_max)]


class FlowData(replies.Out):
    """The jobs as they are stored, in the given order."""

    jobs: list[replies.JobView]


class FlowReply(replies.Reply, kw_only=True):
    """The stored jobs, in the reply's envelope."""

    data: FlowData


FLOW: Final = BodyReader(FlowBody)
#: A flow with more jobs is a large request.
_FEW_JOBS: Final = 100
#: Fields of a payload in which a FlowProducer stores the parent and the children of a job.
NOTES: Final = frozenset({"__parentId", "__parentQueue", "__childrenIds", "__flowParentId", "__flowParentIds"})


def flow_push_commands(jobs: JobHandlers) -> dict[str, CommandEntry]:
    """Return the commands that handle the fields of a FlowProducer in payloads."""

    async def push_flow(call: CommandCall) -> FlowReply:
        body = await FLOW.take(await call.body())
        is_long = len(body.jobs) > _FEW_JOBS
        if is_long:
            await call.become_large()
        order, new = await in_slices(plan_steps(body.jobs))
        if is_long:
            await jobs.engine.fair_share.give_way()
        items = [(QueueKey(call.session.namespace, job.queue), new[job.id]) for job in order]
        answers = await jobs.engine.run(PushFlow(items)) if items else []
        stored = {job.id: answer for job, (answer,) in zip(order, answers, strict=True)}
        return FlowReply(data=FlowData(await in_slices(_views(body.jobs, stored, new))))

    async def update_data(call: CommandCall, id: str) -> replies.Ok:
        """Replace a payload, but keep the fields that the FlowProducer has stored in it."""
        found = await jobs.store.job_get(call.session.namespace, job_ref(id))
        notes = {} if found is None or b'"__' not in found[1].data else _notes(found[1].data)
        if not notes:
            return await jobs.update_data(call, id)
        given = bytes(DATA.parse(await call.body()).data)
        fields = _fields(given)
        for name in fields:
            if name.startswith("__"):
                raise InvalidInput(f"flow job data key is reserved: {name}")
        data = given.rstrip()[:-1] + (b"," if fields else b"") + msgspec.json.encode(notes)[1:]
        command = EditData(call.session.namespace, job_ref(id), take_payload(Raw(data)))
        await in_other_words(jobs.engine.run(command), CANNOT_UPDATE)
        return replies.Ok()

    return {"PUSHF": CommandEntry(push_flow, FLOW), "Update": CommandEntry(update_data, DATA, ID)}


def _fields(data: bytes) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, Raw])
    except msgspec.DecodeError:
        raise InvalidInput("flow job data must be an object") from None


def _notes(data: bytes) -> dict[str, Raw]:
    """Return the FlowProducer's fields of a payload: they link it to other jobs."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Raw])
    except msgspec.DecodeError:
        return {}
    return {name: value for name, value in fields.items() if name in NOTES}


def plan_steps(jobs: Sequence[FlowJobBody]) -> Steps[tuple[list[FlowJobBody], dict[str, JobSpec]]]:
    """Check a flow, in steps. Raises InvalidInput.

    Return its jobs in an order in which each comes after those that it depends on, and the new jobs by their ids.
    """
    by_id: dict[str, FlowJobBody] = {}
    new: dict[str, JobSpec] = {}
    for job in jobs:
        if job.id in by_id:
            raise InvalidInput(f"duplicate flow job id: {job.id}")
        _check_job(job)
        by_id[job.id] = job
        try:
            new[job.id] = yield from job_steps(job.input)
        except InvalidInput as error:
            raise type(error)(f"flow job {job.id}: {error}") from None
        yield
    check_needs(new.values())  # first, because it bounds the next steps
    needed_by: dict[str, list[FlowJobBody]] = {}
    missing: dict[str, int] = {}  # how many jobs that a job depends on are not in the order yet
    order: list[FlowJobBody] = []
    for job in jobs:
        _check_links(job, by_id)
        needs = job.input.depends_on or ()
        for each in needs:
            needed_by.setdefault(each, []).append(job)
        if needs:
            missing[job.id] = len(needs)
        else:
            order.append(job)
        yield
    for job in order:  # grows meanwhile
        for other in needed_by.get(job.id, ()):
            missing[other.id] -= 1
            if not missing[other.id]:
                order.append(other)
        yield
    if len(order) < len(jobs):
        raise InvalidInput("flow contains a dependency cycle")
    return order, new


def _views(
    jobs: Sequence[FlowJobBody], stored: Mapping[str, JobRecord], new: Mapping[str, JobSpec]
) -> Steps[list[replies.JobView]]:
    views: list[replies.JobView] = []
    for job in jobs:
        spec = new[job.id]
        views.append(job_view(stored[job.id], Payload(spec.data, spec.options), job.queue))
        yield
    return views


def _check_job(job: FlowJobBody) -> None:
    given = job.input
    if ":" in job.id:
        raise InvalidInput("flow job id cannot contain a colon")
    if ids.from_uuid(job.id) is not None:
        raise InvalidInput(f"Flow job {job.id} already exists")  # or it existed: Penstock has assigned this id
    try:
        check_queue_name(job.queue)
    except InvalidInput:
        raise InvalidInput(f"invalid flow queue: {job.queue[: limits.name_chars_max]}") from None
    if (given.job_id or given.custom_id or job.id) != job.id:
        raise InvalidInput(f"custom id does not match planned id: {job.id}")
    given.job_id, given.custom_id = job.id, None
    if bytes(given.data)[:1] != b"{":
        raise InvalidInput("flow job data must be an object")
    if given.repeat is not None:
        raise InvalidInput("repeat is not supported inside an atomic flow")
    if given.unique_key is not None or given.dedup is not None:
        raise InvalidInput("deduplication is not supported inside an atomic flow")
    if given.debounce_id is not None or given.debounce_ttl is not None:
        raise InvalidInput("debounce is not supported inside an atomic flow")
    policies = (
        given.fail_parent_on_failure,
        given.remove_dependency_on_failure,
        given.continue_parent_on_failure,
        given.ignore_dependency_on_failure,
    )
    if sum(policies) > 1:
        raise InvalidInput("flow failure policies are mutually exclusive")
    if any(policies) and given.parent_id is None:
        raise InvalidInput("a flow failure policy requires a parent")


def _check_links(job: FlowJobBody, by_id: dict[str, FlowJobBody]) -> None:
    """Refuse a job whose dependencies, children or parent are not in the flow, or do not link back to it."""
    given = job.input
    needed, children = set(given.depends_on or ()), set(given.children_ids or ())
    _check_apart(given.depends_on, needed, f"duplicate dependency in flow job: {job.id}")
    _check_apart(given.children_ids, children, f"duplicate child in flow job: {job.id}")
    for each in needed:
        if each not in by_id:
            raise InvalidInput(f"flow dependency not found: {each}")
        if each == job.id:
            raise InvalidInput(f"flow job cannot depend on itself: {job.id}")
    for each in children:
        if each not in needed:
            raise InvalidInput(f"flow child is missing from dependencies: {each}")
        if by_id[each].input.parent_id != job.id:
            raise InvalidInput(f"flow child {each} does not point back to parent {job.id}")
    if given.parent_id is not None:
        parent = by_id.get(given.parent_id)
        if parent is None:
            raise InvalidInput(f"flow parent not found: {given.parent_id}")
        if job.id not in (parent.input.children_ids or ()):
            raise InvalidInput(f"flow parent {given.parent_id} does not own child {job.id}")


def _check_apart(given: list[str] | None, found: set[str], error: str) -> None:
    if given is not None and len(given) != len(found):
        raise InvalidInput(error)
