"""The commands about workers. docs/tcp.md explains them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.doors.jobs import workers as w
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import ID

if TYPE_CHECKING:
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.workers import WorkerHandlers


def worker_commands(workers: WorkerHandlers) -> dict[str, CommandEntry]:
    """Return the commands about workers. A worker goes when the connection that registered it does."""

    async def register(call: CommandCall) -> Any:
        reply = await workers.register(call.request)
        worker = workers.workers.find(call.session.namespace, reply.data.worker_id)
        if worker is not None:
            call.session.at_end[worker.id] = partial(workers.workers.withdraw, worker)
        return reply

    async def unregister(call: CommandCall, id: str) -> Any:
        call.session.at_end.pop(id, None)
        return await workers.unregister(call.request, id)

    async def heartbeat(call: CommandCall, id: str) -> Any:
        w.heartbeat(workers.workers, call.session.namespace, id, w.HEARTBEAT.parse(await call.body()))
        return w.WorkerHeardReply()

    return {
        "RegisterWorker": CommandEntry(register, w.REGISTER),
        "Heartbeat": CommandEntry(heartbeat, w.HEARTBEAT, ID),
        "UnregisterWorker": CommandEntry(unregister, None, {"id": "workerId"}),
        "ListWorkers": CommandEntry(workers.list_workers),
    }
