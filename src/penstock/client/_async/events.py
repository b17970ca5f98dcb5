"""Live events of the jobs door: changes of jobs and queues, as they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from penstock.client._clock import pause
from penstock.client._names import queue_path
from penstock.client._request import ApiCall, nothing
from penstock.client._retry import FIRST_PAUSE_S, Attempts
from penstock.client._sse import SseReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.client._async.transport import AsyncTransport
    from penstock.client.models import Event

#: The server sends an event or a comment every 30 s. After this time without any, in seconds, the client reconnects.
SILENCE_S = 90.0


class AsyncEvents:
    """Events. An attribute of the client: ``client.events``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def follow(self, queue: str | None = None, *, after: str | None = None) -> AsyncIterator[Event]:
        """Yield events without end: of one queue, or of all queues of the namespace.

        ``after``: the ``id`` of the last event already received, or ``"0"`` for all events that are kept; new events only,
        unless given. After a lost connection, it connects again and continues after the last event with an id.
        """
        where = "/events" if queue is None else queue_path("/events/queues/{}", queue)
        call = ApiCall("GET", where, nothing)
        settings = self._transport.settings
        timeout = httpx2.Timeout(settings.timeout, read=SILENCE_S)
        attempts = Attempts(call, settings.retry_for)
        while True:
            headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": after})
            wait: float | None = FIRST_PAUSE_S
            try:
                async with self._transport.http.stream(
                    "GET", where, params={"format": "typed", "ids": "marked"}, headers=headers, timeout=timeout
                ) as response:
                    if response.is_success:
                        attempts = Attempts(call, settings.retry_for)
                        reader = SseReader()
                        async for line in response.aiter_lines():
                            event = reader.feed(line)
                            if event is not None:
                                after = event.id or after
                                yield event
                    else:
                        await response.aread()
                        wait = attempts.after_refusal(response)
            except httpx2.TransportError as error:
                wait = attempts.after_no_answer(error)
            await pause(wait or 0.0)
