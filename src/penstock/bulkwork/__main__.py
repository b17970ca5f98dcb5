"""``python -m penstock.bulkwork``: a bulk process. It executes the tasks of its server, and ends when the server has ended."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final

from penstock.bulkwork.protocol import LENGTH_BYTES, MEMORY_VARIABLE, BulkTask, TaskOutcome, decode_task, frame
from penstock.bulkwork.tasks import TASKS
from penstock.core import limits
from penstock.core.errors import BulkMemory, JournalGone, ServerError
from penstock.masking import masked

#: The nice value of long tasks. Short tasks have the priority of the request that waits for them.
NICE: Final = 10
LONG: Final = frozenset({"snapshot", "journal"})


def main() -> None:
    """Execute tasks, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the server ends this one
    gc.disable()  # rows are many objects without cycles; it runs between tasks
    gc.freeze()  # modules stay, so they need not be checked every time
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text goes to the log, not between the answers
    _limit_memory()
    done = 0
    while (task := _next(sys.stdin.buffer)) is not None:
        outcome = _in_background(task) if task.name in LONG else _outcome(task)
        done += 1
        outcome.is_last = done >= limits.bulk_process_tasks or _most_bytes() > limits.bulk_process_bytes
        answers.write(frame(outcome))
        answers.flush()
        if outcome.is_last:
            return
        gc.collect()


def _limit_memory() -> None:
    """Limit the memory that the system gives to this process, so that one task cannot use up the rest of the machine.

    Only private, writable memory counts (RLIMIT_DATA): mapped files do not.
    """
    given = os.environ.get(MEMORY_VARIABLE, "")
    if given.isdigit() and int(given) and sys.platform == "linux":  # elsewhere the limit does not count mapped memory
        resource.setrlimit(resource.RLIMIT_DATA, (int(given), int(given)))


def _most_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, where ru_maxrss starts with the memory of the server at the start of this process
        lines = status.read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _next(source: BinaryIO) -> BulkTask | None:
    length = source.read(LENGTH_BYTES)
    return decode_task(source.read(int.from_bytes(length))) if length else None


def _in_background(task: BulkTask) -> TaskOutcome:
    """Execute a task in its own thread, because a thread that has lowered its priority cannot raise it again."""
    with ThreadPoolExecutor(1, initializer=_be_patient) as thread:
        return thread.submit(_outcome, task).result()


def _be_patient() -> None:
    if sys.platform == "linux":  # elsewhere it would affect the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _outcome(task: BulkTask) -> TaskOutcome:
    do = TASKS.get(task.name)
    try:
        assert do is not None, task.name
        return TaskOutcome(asyncio.run(do(**task.given)))
    except JournalGone as error:
        return TaskOutcome(code=error.code, text=str(error), first=error.first)
    except ServerError as error:
        return TaskOutcome(code=error.code, text=str(error))
    except MemoryError:
        return TaskOutcome(code=BulkMemory.code, text=str(BulkMemory()))
    except Exception:  # noqa: BLE001 - the server gets an answer for every error
        sys.stderr.write(masked(traceback.format_exc()))
        return TaskOutcome(code="internal", text="A bulk read failed. The server's log has the reason.")


if __name__ == "__main__":
    main()
