"""The client: one object per server, for all doors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.client import _settings
from penstock.client._async.crons import AsyncCrons
from penstock.client._async.events import AsyncEvents
from penstock.client._async.jobs import AsyncJobs
from penstock.client._async.messaging import AsyncMessaging
from penstock.client._async.queues import AsyncQueues
from penstock.client._async.transport import AsyncTransport
from penstock.client._async.webhooks import AsyncWebhooks
from penstock.client._async.workers import AsyncWorkers
from penstock.client._durations import Duration, duration_s
from penstock.masking import without_password

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from penstock.client import _tls


class AsyncClient(AsyncMessaging):
    """A client of one server.

    Messages are its own methods (``publish``, ``consume``, ``ack``, …); jobs are ``jobs`` (``push``, ``pull``, …),
    ``queues``, ``crons``, ``events``, ``webhooks`` and ``workers``. Close it, or use it as a context manager.

    ``url``: ``http://host:6790``. ``api_key`` is sent as ``X-Api-Key``, ``token`` as a bearer token. ``namespace``: the
    namespace of the jobs; ``default``. ``timeout``: how long to wait for an answer, beyond the time for which a call waits
    on purpose; 30 s. ``retry_for``: for how long a call is tried again while the server is busy, or its answers are lost; 30
    s, 0 for no retries. ``connect_timeout``: for how long a call tries to connect before it fails; 5 s, and never longer
    than ``retry_for``. ``ca``: PEM file with the certificate authorities to trust instead of the system's. ``cert``: PEM
    file with the client's certificate and key, or a pair of files; for servers that require one (``tls_client_ca_file``).
    ``verify``: False, or an ``ssl.SSLContext`` instead of both.
    """

    def __init__(
        self,
        url: str = _settings.DEFAULT_URL,
        *,
        api_key: str | None = None,
        token: str | None = None,
        namespace: str | None = None,
        timeout: Duration = 30.0,
        retry_for: Duration = 30.0,
        connect_timeout: Duration = 5.0,
        verify: ssl.SSLContext | bool = True,
        ca: _tls.Path | None = None,
        cert: _tls.Certificate | None = None,
    ) -> None:
        self.settings = _settings.Settings(
            url=url,
            api_key=api_key,
            token=token,
            namespace=namespace,
            timeout=duration_s(timeout, "timeout"),
            retry_for=duration_s(retry_for, "retry_for"),
            connect_timeout=duration_s(connect_timeout, "connect_timeout"),
            verify=verify,
            ca=ca,
            cert=cert,
        )
        self._transport = AsyncTransport(self.settings)
        self.jobs = AsyncJobs(self._transport)
        self.queues = AsyncQueues(self._transport)
        self.crons = AsyncCrons(self._transport)
        self.events = AsyncEvents(self._transport)
        self.webhooks = AsyncWebhooks(self._transport)
        self.workers = AsyncWorkers(self._transport)

    @classmethod
    def from_settings(cls, settings: _settings.Settings) -> Self:
        """Return a client with the settings of another client: ``AsyncClient.from_settings(client.settings)``."""
        return cls(
            settings.url,
            api_key=settings.api_key,
            token=settings.token,
            namespace=settings.namespace,
            timeout=settings.timeout,
            retry_for=settings.retry_for,
            connect_timeout=settings.connect_timeout,
            verify=settings.verify,
            ca=settings.ca,
            cert=settings.cert,
        )

    @classmethod
    def from_env(cls) -> Self:
        """Return a client of the server in PENSTOCK_URL, with the other environment variables of the SDK."""
        return cls.from_settings(_settings.from_environment())

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_password(self.settings.url)!r})"
