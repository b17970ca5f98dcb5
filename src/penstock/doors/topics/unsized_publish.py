"""Messages that arrive over HTTP/2 without a length.

The HTTP server below ends the body of a stream that was reset with NO_ERROR like a complete body, so the message may be
incomplete. But the client of such a stream no longer accepts the answer, so a write to it fails. For this reason the message
is stored with a due time in the future, and the answer is started. Then the message is made ready, or removed. See
docs/adr/0015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import JobNotFound, ServerError, WrongState
from penstock.core.lifecycle import Arrow
from penstock.doors.http.route import PLAIN, Stream
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.update import MoveJob

if TYPE_CHECKING:
    from penstock.core.job import JobSpec
    from penstock.core.queue import QueueKey
    from penstock.doors.http.route import StreamTransport
    from penstock.engine.api import EngineApi

log = structlog.get_logger("penstock.topics")

#: Attempts to remove an incomplete message before it becomes due.
_TRIES: Final = 5
_TRY_EVERY_MS: Final = limits.SECOND_MS


async def publish_unsure(engine: EngineApi, queue: QueueKey, message: JobSpec) -> Stream:
    """Store a message that is not ready yet, and return an answer that decides about it."""
    later = msgspec.structs.replace(message, delay=limits.unsure_ms)
    (stored,) = await engine.run(Push(queue, [later]))

    async def decide(transport: StreamTransport) -> None:
        try:
            await transport.send_bytes(b"")
        except RuntimeError:
            await _remove(engine, queue, stored.id)
            return
        # There is no await between the answer and this call, so every pull after the answer finds the message.
        try:
            await engine.run(MoveJob(queue.namespace, stored.id, Arrow.PROMOTE))
        except (JobNotFound, WrongState):  # its topic was emptied in the meantime, or the message became due
            pass
        except ServerError as error:  # it is stored, and is delivered when it is due
            log.warning("a message is delivered later than possible", topic=queue.name, reason=str(error))

    return Stream(PLAIN, decide, _nothing, status=201)


async def _remove(engine: EngineApi, queue: QueueKey, job_id: int) -> None:
    for _ in range(_TRIES):
        try:
            await engine.run(MoveJob(queue.namespace, job_id, Arrow.CANCEL))
        except (JobNotFound, WrongState):
            return
        except ServerError as error:
            log.warning("a message that was cut off cannot be removed yet", topic=queue.name, reason=str(error))
            await pause(engine.clock, _TRY_EVERY_MS)
        else:
            return


def _nothing() -> None:
    """Do nothing: there is nothing to undo."""
