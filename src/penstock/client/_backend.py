"""The destination of enqueued tasks: a server, or, in tests, a list."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from penstock.client._async.client import AsyncClient
from penstock.client._sync.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from penstock.client._durations import Duration
    from penstock.client._settings import Settings
    from penstock.client.models import Job, Waited
    from penstock.client.options import NewJob


class JobCalls(Protocol):
    """The calls about single jobs that handles use."""

    def state(self, job_id: str) -> str:
        """Return the state of a job."""

    def get(self, job_id: str) -> Job:
        """Return a job. Raises NotFound."""

    def cancel(self, job_id: str) -> None:
        """Remove a job."""

    def wait(self, job_id: str, timeout: Duration = ...) -> Waited:
        """Wait for the end of a job."""


class AsyncJobCalls(Protocol):
    """The same for coroutines."""

    async def state(self, job_id: str) -> str:
        """Return the state of a job."""

    async def get(self, job_id: str) -> Job:
        """Return a job. Raises NotFound."""

    async def cancel(self, job_id: str) -> None:
        """Remove a job."""

    async def wait(self, job_id: str, timeout: Duration = ...) -> Waited:  # noqa: ASYNC109
        """Wait for the end of a job."""


class JobsClient(Protocol):
    """The part of a client that handles use."""

    @property
    def jobs(self) -> JobCalls:
        """The calls about single jobs."""


class AsyncJobsClient(Protocol):
    """The same for coroutines."""

    @property
    def jobs(self) -> AsyncJobCalls:
        """The calls about single jobs."""


class Backend(Protocol):
    """Receives jobs. ``client`` and ``async_client`` give access to the jobs' states and results."""

    @property
    def client(self) -> JobsClient:
        """The server, for functions."""

    @property
    def async_client(self) -> AsyncJobsClient:
        """The server, for coroutines."""

    def push(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """Push jobs and return their ids."""

    async def apush(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """The same for coroutines."""


class _LoopClient:
    """A client that is closed with the event loop in which it is used, if it was not closed before.

    A loop that ends closes the asynchronous generators that were started in it (``asyncio.run`` does so). One of them
    therefore keeps the client.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.keeper = self._keep()
        with contextlib.suppress(StopIteration):
            self.keeper.__anext__().__await__().send(None)  # runs up to its yield, which waits for nothing

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.client.aclose()


class ServerBackend:
    """Pushes jobs to a server. Clients are created at first use: one for functions, one for each loop of coroutines."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client: Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}

    @property
    def client(self) -> Client:
        """The server, for functions."""
        if self._client is None:
            self._client = Client.from_settings(self.settings)
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The server, for coroutines of the running loop: a connection belongs to the loop in which it was made."""
        loop = asyncio.get_running_loop()
        kept = self._async_clients.get(loop)
        if kept is None:
            self._forget_closed_loops()
            kept = self._async_clients[loop] = _LoopClient(AsyncClient.from_settings(self.settings))
        return kept.client

    def push(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """Push jobs and return their ids."""
        return self.client.jobs.push_many(queue, jobs)

    async def apush(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """The same for coroutines."""
        return await self.async_client.jobs.push_many(queue, jobs)

    def close(self) -> None:
        """Close the client for functions."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def aclose(self) -> None:
        """Close the clients for functions and for coroutines of this loop."""
        self.close()
        self._forget_closed_loops()
        kept = self._async_clients.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.keeper.aclose()

    def _forget_closed_loops(self) -> None:
        for loop in [each for each in list(self._async_clients) if each.is_closed()]:
            self._async_clients.pop(loop, None)
