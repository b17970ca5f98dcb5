"""What all handlers of the jobs door share: the engine, the namespace of a request, and the contract's error texts."""

from __future__ import annotations

import asyncio
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import (
    InvalidInput,
    JobNotFound,
    JobQuarantined,
    OutcomeUnknown,
    ServerError,
    StaleLease,
    WrongState,
)
from penstock.core.queue import QueueKey
from penstock.doors.http.errors import Refused
from penstock.doors.http.namespace import NAME
from penstock.doors.identity_watch import IdentityWatch
from penstock.doors.jobs.mapping import job_ref, token_value
from penstock.doors.jobs.wire.replies import ItemError
from penstock.engine.jobs.settle import LEASE_GONE, LeaseRef
from penstock.engine.jobs.update import MoveJob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from penstock.core.job import JobRecord, Payload
    from penstock.core.lifecycle import Arrow
    from penstock.core.queue import Queue
    from penstock.doors.http.request import ApiRequest
    from penstock.doors.http.route import Route
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import LeaseCommand
    from penstock.store.contract import Page

T = TypeVar("T")

#: Errors of settling a job for which the contract has texts.
ABOUT_THE_JOB = (*LEASE_GONE, JobQuarantined)
#: Errors that are not about the server. After any other error a retry may help, or the outcome is unknown.
_OF_THE_REQUEST = (*ABOUT_THE_JOB, InvalidInput)


class JobsDoor:
    """Base of the handler classes. Each part of the contract has one subclass, whose methods are the handlers."""

    def __init__(self, engine: EngineApi) -> None:
        self.engine = engine
        self.store = engine.store

    @staticmethod
    def namespaced(*routes: Route) -> list[Route]:
        """Return routes that are about one namespace."""
        return [route._replace(namespaced=True) for route in routes]

    def bound(self, table: Iterable[Route]) -> list[Route]:
        """Return the routes of a table of this class, about one namespace, with this object's methods as handlers."""
        return self.namespaced(*(route._replace(handler=MethodType(route.handler, self)) for route in table))

    def partial(self) -> list[str] | msgspec.UnsetType:
        """Return the shards that did not answer, for a list over all shards."""
        return self.store.down() or msgspec.UNSET

    # The subject of a request.

    def namespace(self, req: ApiRequest) -> str:
        """Return the namespace a request is about: the header X-Namespace, or the default one."""
        return req.namespace()

    def queue_key(self, req: ApiRequest, name: str) -> QueueKey:
        """Return the queue a request is about. A queue that exists has a valid name."""
        key = QueueKey(req.namespace(), name)
        if self.store.queue_find(key) is None:
            check_queue_name(name)
        return key

    def queue(self, req: ApiRequest, name: str) -> Queue | None:
        """Return the queue a request is about, if it exists."""
        return self.store.queue_find(self.queue_key(req, name))

    async def job(self, req: ApiRequest, text: str) -> tuple[JobRecord, Payload]:
        """Return the job a request is about. Raises JobNotFound."""
        found = await self.store.job_get(self.namespace(req), job_ref(text))
        if found is None:
            raise JobNotFound
        return found

    async def listed(self, page: Page, view: Callable[[JobRecord, Payload], T]) -> list[T]:
        """Return the jobs of a page as views: one page of a namespace at a time while other namespaces are active.

        Views are made in slices, so that a long page does not block the event loop.
        """
        async with self.engine.fair_share.large(page.queue.key.namespace):
            await self.engine.fair_share.give_way()
            found = await self.store.job_page(page._replace(shared=True) if self.engine.fair_share.shared else page)
            views: list[T] = []
            for start in range(0, len(found), limits.view_slice_jobs):
                if start:
                    await yield_to_loop(1)
                    await self.engine.fair_share.give_way()
                views += [view(job, payload) for job, payload in found[start : start + limits.view_slice_jobs]]
            return views

    async def counted(self, queue: Queue, count: Callable[[Queue], Awaitable[T]]) -> T:
        """Count over many jobs of a queue: one count of a namespace at a time while other namespaces are active."""
        async with self.engine.fair_share.large(queue.key.namespace):
            await self.engine.fair_share.give_way()
            return await count(queue)

    # Commands.

    async def move(
        self, req: ApiRequest, text: str, arrow: Arrow, refusal: str, value: int = 0, *, token: str | None = None
    ) -> None:
        """Apply a transition to a job. A refusal has the contract's text."""
        command = MoveJob(self.namespace(req), job_ref(text), arrow, value, token_value(token))
        await in_other_words(self.engine.run(command), refusal)

    async def settle(self, command: LeaseCommand, text: str, refusal: str) -> None:
        """Settle a single job. A refusal has the contract's text."""
        await self.settle_many(command, (text,), refusal)

    async def settle_many(self, command: LeaseCommand, texts: Sequence[str], refusal: str) -> tuple[int, list[ItemError]]:
        """Settle several jobs. Return how many were settled, and why the others were not.

        Raises only if none was settled.
        """
        outcomes = await self.engine.run(command)
        troubles = [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, _OF_THE_REQUEST)]
        if troubles and None not in outcomes:
            raise next((each for each in troubles if isinstance(each, OutcomeUnknown)), troubles[0])
        errors = [
            ItemError(text, in_words(outcome, text, refusal))
            for text, outcome in zip(texts, outcomes, strict=True)
            if outcome is not None
        ]
        if errors and len(errors) == len(outcomes):
            for outcome in outcomes:
                _raise_ours(outcome)
            raise Refused(errors[0].error)
        return len(outcomes) - len(errors), errors

    async def unless_gone(self, req: ApiRequest, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Wait for an answer, unless the client disconnects: then cancel the wait and return None.

        Raises Unauthorized if the client's key or token ends meanwhile.
        """
        answer, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(req.disconnected())
        watch = IdentityWatch(req, self.engine.clock, answer.cancel)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            watch.check()
            return answer.result() if answer.done() else None
        finally:
            watch.cancel()
            answer.cancel()
            gone.cancel()


def hold(text: str, token: str | None) -> LeaseRef:
    """Return the lease that a worker names for a job."""
    return LeaseRef(job_ref(text), token_value(token))


def holds(texts: Sequence[str], tokens: Sequence[str | None] | None) -> list[LeaseRef]:
    """Return the leases that a worker names for several jobs; tokens are matched by position."""
    if tokens is None:
        return [hold(text, None) for text in texts]
    if len(tokens) != len(texts):
        raise InvalidInput("tokens must have as many items as ids")
    return [hold(text, token) for text, token in zip(texts, tokens, strict=True)]


def _raise_ours(outcome: ServerError | None) -> None:
    """Raise an error that is not about the job: its shard is down, or its queue is being moved."""
    if outcome is not None and not isinstance(outcome, _OF_THE_REQUEST):
        raise outcome


def in_words(outcome: ServerError, text: str, refusal: str) -> str:
    """Return the contract's text for why a job could not be settled."""
    if isinstance(outcome, StaleLease) and "invalid token" not in refusal:
        return f"Invalid or expired lock token for job {text}"
    if not isinstance(outcome, ABOUT_THE_JOB):  # the error is about the way the job was named, or about storage
        return str(outcome)
    return refusal


async def in_other_words(answer: Awaitable[T], refusal: str) -> T:
    """Await an answer. If the command is refused because of the job, raise Refused with the contract's text."""
    try:
        return await answer
    except (JobNotFound, WrongState):
        raise Refused(refusal) from None


def check_queue_name(name: str) -> None:
    """Raise InvalidInput if a name is not valid for a queue."""
    if not name:
        raise InvalidInput("Queue name is required")
    if len(name) > limits.name_chars_max:
        raise InvalidInput(f"Queue name too long (max {limits.name_chars_max} characters)")
    if NAME.match(name) is None:
        raise InvalidInput("Queue name contains invalid characters")
