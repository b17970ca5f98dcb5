"""Messages that came over HTTP/2 without a length.

The server underneath ends the body of a stream that was reset with NO_ERROR like one that has ended, so the message may be cut
off. But the answer to such a stream is taken no more, and that can be told: a write to it fails. So the message is stored as
one that is due later, the answer is begun, and then the message is made ready, or removed. See docs/adr/0015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import JobNotFound, PenstockError, WrongState
from penstock.core.lifecycle import Arrow
from penstock.doors.http.route import PLAIN, Stream
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.update import MoveJob

if TYPE_CHECKING:
    from penstock.core.job import NewJob
    from penstock.core.queue import QueueKey
    from penstock.doors.http.route import StreamTransport
    from penstock.engine.api import EngineApi

log = structlog.get_logger("penstock.topics")

#: So often it is tried to remove a message that was cut off, until it would be handed out.
_TRIES: Final = 5
_TRY_EVERY_MS: Final = limits.SECOND_MS


async def publish_unsure(engine: EngineApi, queue: QueueKey, message: NewJob) -> Stream:
    """Store a message that nobody gets yet, and return an answer that decides about it."""
    later = msgspec.structs.replace(message, delay=limits.unsure_ms)
    (stored,) = await engine.run(Push(queue, [later]))

    async def decide(transport: StreamTransport) -> None:
        try:
            await transport.send_bytes(b"")
        except RuntimeError:
            await _remove(engine, queue, stored.id)
            return
        # Nothing is awaited between the answer and this, so every pull that comes after the answer finds the message.
        try:
            await engine.run(MoveJob(queue.namespace, stored.id, Arrow.PROMOTE))
        except (JobNotFound, WrongState):  # its topic was emptied meanwhile, or its time has come
            pass
        except PenstockError as error:  # it is stored, and comes when it is due
            log.warning("a message is handed out later than it could be", topic=queue.name, reason=str(error))

    return Stream(PLAIN, decide, _nothing, status=201)


async def _remove(engine: EngineApi, queue: QueueKey, job_id: int) -> None:
    for _ in range(_TRIES):
        try:
            await engine.run(MoveJob(queue.namespace, job_id, Arrow.CANCEL))
        except (JobNotFound, WrongState):
            return
        except PenstockError as error:
            log.warning("a message that was cut off cannot be removed yet", topic=queue.name, reason=str(error))
            await pause(engine.clock, _TRY_EVERY_MS)
        else:
            return


def _nothing() -> None:
    """There is nothing to be undone."""
