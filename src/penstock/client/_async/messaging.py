"""The messages door: publish now or later, consume, acknowledge; namespaces, queues, dead letters, subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client import _clock
from penstock.client import _replies as replies
from penstock.client._durations import Duration, Moment, duration_ms, moment_ms
from penstock.client._names import queue_path
from penstock.client._plain import encode, without_none
from penstock.client._request import IF_SETTLED, IF_TAKEN, ApiCall, body, nothing, path, query

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.client._async.transport import AsyncTransport
    from penstock.client.messages import Health, Message, Namespace, Stats, Subscription, Summary


class AsyncMessaging:
    """The methods of a client for the messages door. ``AsyncClient`` inherits them."""

    _transport: AsyncTransport

    # Producers.

    async def publish(
        self,
        namespace: str,
        queue: str,
        body: bytes,
        *,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        max_retries: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a message and return its id. Namespace and queue are created if they do not exist.

        ``delay`` (seconds or a timedelta) or ``deliver_at`` (an aware datetime, or milliseconds since 1970): the earliest
        time of delivery, up to 90 days ahead. ``max_retries``: deliveries in all before the message is a dead letter; the
        queue's setting.
        """
        fields = _message(body, delay, deliver_at, max_retries, metadata)
        call = ApiCall(
            "POST",
            queue_path("/namespaces/{}/queues/{}/messages", namespace, queue),
            replies.ID,
            encode(fields),
            headers={"idempotency-key": _clock.fresh_name()},  # so that it can be sent again if its answer is lost
        )
        return await self._transport.send(call)

    async def publish_batch(
        self,
        namespace: str,
        queue: str,
        bodies: Iterable[bytes],
        *,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        max_retries: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Publish up to 100 messages and return their ids in order. The options apply to each message."""
        fields = [_message(each, delay, deliver_at, max_retries, metadata) for each in bodies]
        call = ApiCall(
            "POST",
            queue_path("/namespaces/{}/queues/{}/messages/batch", namespace, queue),
            replies.IDS,
            encode(fields),
            headers={"idempotency-key": _clock.fresh_name()},  # so that it can be sent again if its answer is lost
        )
        return await self._transport.send(call)

    # Consumers.

    async def consume(
        self,
        namespace: str,
        queue: str,
        n: int = 1,
        *,
        visibility_timeout: Duration | None = None,
        wait: Duration | None = None,
    ) -> list[Message]:
        """Claim up to ``n`` (1 to 100) messages; an empty list if none is ready.

        ``visibility_timeout``: how long the lease lasts; the queue's setting, 30 s. ``wait``: for how long to wait for the
        first message; no wait.
        """
        wait_ms = None if wait is None else duration_ms(wait, "wait")
        visibility = None if visibility_timeout is None else duration_ms(visibility_timeout, "visibility_timeout")
        call = ApiCall(
            "GET",
            queue_path("/namespaces/{}/queues/{}/messages", namespace, queue),
            replies.MESSAGES,
            params=query(n=n, visibility_timeout_ms=visibility, wait_ms=wait_ms),
            wait_ms=wait_ms or 0,
            if_unknown=IF_TAKEN,
        )
        return await self._transport.send(call)

    async def ack(self, receipt_handle: str | Message) -> None:
        """Acknowledge a message, given its receipt handle or itself: it is never delivered again. Raises LeaseLost."""
        where = path("/messages/{}", _receipt(receipt_handle))
        await self._transport.send(ApiCall("DELETE", where, nothing, already=(410,), if_unknown=IF_SETTLED))

    async def nack(self, receipt_handle: str | Message) -> None:
        """Return a message: it goes to the end of its queue, or to the dead letters. Raises LeaseLost."""
        where = path("/messages/{}/nack", _receipt(receipt_handle))
        await self._transport.send(ApiCall("POST", where, nothing, already=(410,), if_unknown=IF_SETTLED))

    async def purge(self, namespace: str, queue: str) -> int:
        """Remove all messages that are ready or in flight; return how many. Scheduled messages stay. Raises NotFound."""
        where = queue_path("/namespaces/{}/queues/{}/messages", namespace, queue)
        return await self._transport.send(ApiCall("DELETE", where, replies.PURGED))

    # Dead letters.

    async def drain_dlq(self, namespace: str, queue: str, limit: int = 10) -> list[Message]:
        """Claim up to ``limit`` dead letters. They are leased like consumed messages: ack those that are processed."""
        where = queue_path("/namespaces/{}/queues/{}/dlq", namespace, queue)
        return await self._transport.send(
            ApiCall("GET", where, replies.MESSAGES, params=query(limit=limit), if_unknown=IF_TAKEN)
        )

    async def replay_dlq(self, namespace: str, queue: str, limit: int = 100) -> int:
        """Move up to ``limit`` dead letters back to their queue, with attempts counted from the start; return how many."""
        where = queue_path("/namespaces/{}/queues/{}/dlq/replay", namespace, queue)
        call = ApiCall("POST", where, replies.REPLAYED, params=query(limit=limit), repeatable=False)
        return await self._transport.send(call)

    # Subscriptions.

    async def subscribe(self, namespace: str, queue: str, url: str, secret: str | None = None) -> str:
        """Let the server push messages to a URL, signed with ``secret``; return the subscription's id."""
        where = queue_path("/namespaces/{}/queues/{}/subscriptions", namespace, queue)
        call = ApiCall("POST", where, replies.ID, body(url=url, secret=secret), repeatable=False)
        return await self._transport.send(call)

    async def subscriptions(self, namespace: str, queue: str) -> list[Subscription]:
        """Return the subscriptions of a queue, oldest first."""
        where = queue_path("/namespaces/{}/queues/{}/subscriptions", namespace, queue)
        return await self._transport.send(ApiCall("GET", where, replies.SUBSCRIPTIONS))

    async def unsubscribe(self, subscription_id: str) -> None:
        """End a subscription. Raises NotFound."""
        call = ApiCall("DELETE", path("/subscriptions/{}", subscription_id), nothing, already=(404,))
        await self._transport.send(call)

    # Namespaces and queues.

    async def create_namespace(self, name: str) -> None:
        """Create a namespace. Raises Conflict if it exists."""
        await self._transport.send(ApiCall("POST", "/namespaces", nothing, body(name=name), already=(409,)))

    async def list_namespaces(self) -> list[Namespace]:
        """Return all namespaces, by name."""
        return await self._transport.send(ApiCall("GET", "/namespaces", replies.NAMESPACES))

    async def delete_namespace(self, name: str) -> None:
        """Delete a namespace. Raises NotFound."""
        await self._transport.send(ApiCall("DELETE", path("/namespaces/{}", name), nothing, already=(404,)))

    async def create_queue(
        self,
        namespace: str,
        queue: str,
        *,
        visibility_timeout: Duration | None = None,
        max_messages: int | None = None,
        max_retries: int | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """Create a queue with its own settings; the others are the server's. Raises Conflict if it exists."""
        fields = body(
            visibility_timeout_ms=None
            if visibility_timeout is None
            else duration_ms(visibility_timeout, "visibility_timeout"),
            max_messages=max_messages,
            max_retries=max_retries,
            max_batch_size=max_batch_size,
        )
        where = queue_path("/namespaces/{}/queues/{}", namespace, queue)
        await self._transport.send(ApiCall("POST", where, nothing, fields, already=(409,)))

    async def list_queues(self, namespace: str) -> list[str]:
        """Return the queues of a namespace, as ``namespace/queue``."""
        return await self._transport.send(ApiCall("GET", path("/namespaces/{}/queues", namespace), replies.QUEUES))

    async def delete_queue(self, namespace: str, queue: str) -> None:
        """Delete a queue with all its messages. Raises NotFound."""
        where = queue_path("/namespaces/{}/queues/{}", namespace, queue)
        await self._transport.send(ApiCall("DELETE", where, nothing, already=(404,)))

    # The server.

    async def health(self) -> Health:
        """Return the health of the server."""
        return await self._transport.send(ApiCall("GET", "/health", replies.HEALTH))

    async def stats(self, page: int = 1, limit: int = 200) -> Stats:
        """Return the number of messages in the queues, a page (of up to 200 queues) at a time."""
        return await self._transport.send(ApiCall("GET", "/api/stats", replies.STATS, params=query(page=page, limit=limit)))

    async def stats_summary(self) -> Summary:
        """Return a summary of the server in five numbers."""
        return await self._transport.send(ApiCall("GET", "/api/stats/summary", replies.SUMMARY))


def _receipt(receipt_handle: str | Message) -> str:
    return receipt_handle if isinstance(receipt_handle, str) else receipt_handle.receipt_handle


def _message(
    content: bytes,
    delay: Duration | None,
    deliver_at: Moment | None,
    max_retries: int | None,
    metadata: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the fields of a message for a request: its body as base64."""
    if not isinstance(content, bytes | bytearray | memoryview):
        raise TypeError(f"The body of a message must be bytes, not {type(content).__name__}")
    if delay is not None and deliver_at is not None:
        raise TypeError("Give delay or deliver_at, not both")
    if delay is not None:
        deliver_at = _clock.now_ms() + duration_ms(delay, "delay")
    elif deliver_at is not None:
        deliver_at = moment_ms(deliver_at, "deliver_at")
    fields = {
        "body": bytes(content),
        "deliver_at": deliver_at,
        "max_retries": max_retries,
        "metadata": None if metadata is None else dict(metadata),
    }
    return without_none(fields)
