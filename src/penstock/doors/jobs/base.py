"""What all handlers of the jobs door share: the engine, whose namespace a request is about, and the contract's refusals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.core import limits
from penstock.core.clock import settle
from penstock.core.errors import (
    InvalidInput,
    JobNotFound,
    JobQuarantined,
    OutcomeUnknown,
    PenstockError,
    StaleLease,
    WrongState,
)
from penstock.core.queue import QueueKey
from penstock.doors.http.errors import Refused
from penstock.doors.http.namespace import NAME
from penstock.doors.jobs.mapping import job_ref, token_value
from penstock.doors.jobs.wire.replies import ItemError
from penstock.doors.wait_permission import Permission
from penstock.engine.jobs.settle import LEASE_GONE, LeaseRef
from penstock.engine.jobs.update import MoveJob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from penstock.core.job import Job, Payload
    from penstock.core.lifecycle import Arrow
    from penstock.core.queue import Queue
    from penstock.doors.http.request import ApiRequest
    from penstock.doors.http.route import Route
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import Settlement
    from penstock.store.contract import Page

T = TypeVar("T")

#: What the contract has words for. Anything else is about the server: trying again may help, or the outcome is unknown.
_OF_THE_JOB = (*LEASE_GONE, JobQuarantined, InvalidInput)


class JobsDoor:
    """The handlers are methods of the classes that build on this, one class per part of the contract."""

    def __init__(self, engine: EngineApi) -> None:
        self.engine = engine
        self.store = engine.store

    @staticmethod
    def namespaced(*routes: Route) -> list[Route]:
        """Return routes that are about one namespace."""
        return [route._replace(namespaced=True) for route in routes]

    def partial(self) -> list[str] | msgspec.UnsetType:
        """Say of a list over all shards which of them could not be asked."""
        return self.store.down() or msgspec.UNSET

    # Who is meant.

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

    async def job(self, req: ApiRequest, text: str) -> tuple[Job, Payload]:
        """Return the job a request is about. Raises JobNotFound."""
        found = await self.store.job_get(self.namespace(req), job_ref(text))
        if found is None:
            raise JobNotFound
        return found

    async def listed(self, page: Page, view: Callable[[Job, Payload], T]) -> list[T]:
        """Return the jobs of a page, each as a view shows it: one page of a namespace at a time while others are active.

        Views are made in slices, so that a long page does not hold the event loop.
        """
        async with self.engine.share.large(page.queue.key.namespace):
            await self.engine.share.give_way()
            found = await self.store.job_page(page._replace(shared=True) if self.engine.share.shared else page)
            views: list[T] = []
            for start in range(0, len(found), limits.view_slice_jobs):
                if start:
                    await settle(1)
                    await self.engine.share.give_way()
                views += [view(job, payload) for job, payload in found[start : start + limits.view_slice_jobs]]
            return views

    # What is done to it.

    async def move(
        self, req: ApiRequest, text: str, arrow: Arrow, refusal: str, value: int = 0, *, token: str | None = None
    ) -> None:
        """Take a job along an arrow; refused in the contract's words."""
        command = MoveJob(self.namespace(req), job_ref(text), arrow, value, token_value(token))
        await in_other_words(self.engine.run(command), refusal)

    async def settle(self, settlement: Settlement, text: str, refusal: str) -> None:
        """Settle a single job; refused in the contract's words."""
        await self.settle_many(settlement, (text,), refusal)

    async def settle_many(self, settlement: Settlement, texts: Sequence[str], refusal: str) -> tuple[int, list[ItemError]]:
        """Settle several jobs; return how many were, and why the others were not. Refused only if none was."""
        outcomes = await self.engine.run(settlement)
        troubles = [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, _OF_THE_JOB)]
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
        """Wait for something, unless the client hangs up: then nobody is told, and nothing goes on waiting.

        Raises Unauthorized if the client's key or token ends meanwhile.
        """
        answer, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(req.disconnected())
        permission = Permission(req, self.engine.clock, answer.cancel)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            permission.check()
            return answer.result() if answer.done() else None
        finally:
            permission.cancel()
            answer.cancel()
            gone.cancel()


def hold(text: str, token: str | None) -> LeaseRef:
    """Return a worker's claim to a job."""
    return LeaseRef(job_ref(text), token_value(token))


def holds(texts: Sequence[str], tokens: Sequence[str | None] | None) -> list[LeaseRef]:
    """Return a worker's claims to several jobs; tokens are matched by position."""
    if tokens is None:
        return [hold(text, None) for text in texts]
    if len(tokens) != len(texts):
        raise InvalidInput("tokens must have as many items as ids")
    return [hold(text, token) for text, token in zip(texts, tokens, strict=True)]


#: Why a job cannot be settled that the contract has words for.
ABOUT_THE_JOB = (*LEASE_GONE, JobQuarantined)


def _raise_ours(outcome: PenstockError | None) -> None:
    """Raise what has nothing to do with the job: its shard is down, or its queue is being moved."""
    if outcome is not None and not isinstance(outcome, (*ABOUT_THE_JOB, InvalidInput)):
        raise outcome


def in_words(outcome: PenstockError, text: str, refusal: str) -> str:
    """Say in the contract's words why a job could not be settled."""
    if isinstance(outcome, StaleLease) and "invalid token" not in refusal:
        return f"Invalid or expired lock token for job {text}"
    if isinstance(outcome, InvalidInput) or not isinstance(
        outcome, _OF_THE_JOB
    ):  # not the job, but how it was named, or kept
        return str(outcome)
    return refusal


async def in_other_words(answer: Awaitable[T], refusal: str) -> T:
    """Await an answer; what is refused because of the job is refused in the contract's words."""
    try:
        return await answer
    except (JobNotFound, WrongState):
        raise Refused(refusal) from None


def check_queue_name(name: str) -> None:
    """Raise InvalidInput for what cannot be the name of a queue."""
    if not name:
        raise InvalidInput("Queue name is required")
    if len(name) > limits.name_chars_max:
        raise InvalidInput(f"Queue name too long (max {limits.name_chars_max} characters)")
    if NAME.match(name) is None:
        raise InvalidInput("Queue name contains invalid characters")
