"""``penstock serve`` that records what each push to the queue ``traced`` passes, in TRACE_FILE, as one line of JSON.

``run``: the files of Penstock of which a function was called in the thread of the event loop. ``path``: the files on the stack
at three moments: when the command is submitted (``submit``), when its rows are written (``write``), and when the log is synced
(``sync``, in a thread).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

import penstock
from penstock.cli import main
from penstock.doors.http.app import HttpApp
from penstock.engine.batcher import Batcher
from penstock.store.sqlite.wal_sync import LogSync

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SOURCE = f"{Path(penstock.__file__).parent}{os.sep}"
#: Files on the stack at each moment of the current push, the outermost first; None: no push is in progress.
moments: dict[str, dict[str, None]] | None = None

_untraced = HttpApp.__rsgi__
_submit = Batcher.submit
_sync = LogSync.sync


def note_stack(moment: str, *called: Callable[..., Any]) -> None:
    """Record the files on the stack of the caller, and those of the functions that it calls now.

    Without ``cli/``, which runs the event loop.
    """
    if moments is None:
        return
    files = [each.__code__.co_filename for each in called]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    names = [file.removeprefix(SOURCE) for file in reversed(files) if file.startswith(SOURCE)]
    moments.setdefault(moment, {}).update(dict.fromkeys(name for name in names if not name.startswith("cli/")))


def submit(self: Batcher, command: Any) -> Any:
    note_stack("submit", _submit)
    return _submit(self, command)


def sync(self: LogSync, *args: Any) -> Any:
    note_stack("sync", _sync)
    return _sync(self, *args)


def executed(_cursor: apsw.Cursor, statement: str, _bindings: Any) -> bool:
    if statement.lstrip().lower().startswith(("insert into jobs", "insert into journal")):
        note_stack("write")
    return True


def opened(db: apsw.Connection) -> None:
    db.exec_trace = executed


async def traced(self: HttpApp, scope: Any, proto: Any) -> None:
    global moments  # noqa: PLW0603 - one push at a time is traced
    if scope.path != "/queues/traced/jobs":
        await _untraced(self, scope, proto)
        return
    run: dict[str, None] = {}
    moments = {}

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            run[frame.f_code.co_filename.removeprefix(SOURCE)] = None

    sys.setprofile(note)
    try:
        await _untraced(self, scope, proto)
    finally:
        sys.setprofile(None)
    path = {moment: list(files) for moment, files in moments.items()}
    moments = None
    with Path(os.environ["TRACE_FILE"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"run": list(run), "path": path}) + "\n")


# The server looks these up by their names.
setattr(HttpApp, "__rsgi__", traced)  # noqa: B010
setattr(Batcher, "submit", submit)  # noqa: B010
setattr(LogSync, "sync", sync)  # noqa: B010
apsw.connection_hooks.append(opened)

if __name__ == "__main__":
    main()
