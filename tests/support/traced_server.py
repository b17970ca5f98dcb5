"""``penstock serve`` that records the files of Penstock which each push to the queue ``traced`` passes, in TRACE_FILE."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cli import main
from penstock.doors.http.app import HttpApp

if TYPE_CHECKING:
    from types import FrameType

SOURCE = f"{Path(penstock.__file__).parent}{os.sep}"
_untraced = HttpApp.__rsgi__


async def traced(self: HttpApp, scope: Any, proto: Any) -> None:
    if scope.path != "/queues/traced/jobs":
        await _untraced(self, scope, proto)
        return
    passed: dict[str, None] = {}

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            passed[frame.f_code.co_filename.removeprefix(SOURCE)] = None

    sys.setprofile(note)
    try:
        await _untraced(self, scope, proto)
    finally:
        sys.setprofile(None)
    with Path(os.environ["TRACE_FILE"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(list(passed)) + "\n")


setattr(HttpApp, "__rsgi__", traced)  # noqa: B010 - the server looks it up by this name

if __name__ == "__main__":
    main()
