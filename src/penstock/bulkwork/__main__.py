"""``python -m penstock.bulkwork``: a bulk process. It does what its server asks for, and ends when that is gone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final

from penstock.bulkwork.frames import LENGTH_BYTES, Outcome, Task, decode_task, frame
from penstock.bulkwork.tasks import TASKS
from penstock.core.errors import JournalGone, PenstockError

#: How much less urgent than the server what takes long is. The rest is as urgent as the request that waits for it.
NICE: Final = 10
LONG: Final = frozenset({"snapshot", "journal"})


def main() -> None:
    """Do one task after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells it to everybody; the server says when it is over
    gc.disable()  # rows are many objects without cycles; between tasks there is time
    gc.freeze()  # modules stay, and need no looking through every time
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed belongs into the log, not among the answers
    while (task := _next(sys.stdin.buffer)) is not None:
        answers.write(frame(_in_background(task) if task.name in LONG else _outcome(task)))
        answers.flush()
        gc.collect()


def _next(source: BinaryIO) -> Task | None:
    length = source.read(LENGTH_BYTES)
    return decode_task(source.read(int.from_bytes(length))) if length else None


def _in_background(task: Task) -> Outcome:
    """Do a task in a thread of its own: whoever has become less urgent cannot become as urgent as before again."""
    with ThreadPoolExecutor(1, initializer=_be_patient) as thread:
        return thread.submit(_outcome, task).result()


def _be_patient() -> None:
    if sys.platform == "linux":  # elsewhere it would be the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _outcome(task: Task) -> Outcome:
    do = TASKS.get(task.name)
    try:
        assert do is not None, task.name
        return Outcome(asyncio.run(do(**task.given)))
    except JournalGone as error:
        return Outcome(code=error.code, text=str(error), first=error.first)
    except PenstockError as error:
        return Outcome(code=error.code, text=str(error))
    except Exception:  # noqa: BLE001 - whatever went wrong, the server gets an answer
        traceback.print_exc()
        return Outcome(code="internal", text="A bulk read failed; the log says why.")


if __name__ == "__main__":
    main()
