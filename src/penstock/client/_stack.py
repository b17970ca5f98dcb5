"""Stack traces for dead letters and logs: the last frames, without those of Penstock itself."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.client._sanitize import STACK_CHARS_MAX, sendable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

#: Lines of a stack that a job keeps by default; a test compares it with the server's.
STACK_LINES: Final = 10
#: Frames that are read, from the last one on.
FRAMES_MAX: Final = 200
#: Characters of a line that are kept.
LINE_CHARS_MAX: Final = 1_000
_OURS: Final = str(Path(__file__).parent)
_THREADING: Final = str(Path(sys.modules["threading"].__file__ or ""))
#: Marks below a line that show the relevant part of it. They cost a line for each frame.
_MARKS: Final = re.compile(r"[\s|]*[\^~]+\s*\Z")


def stack_of(error: BaseException) -> list[str]:
    """Return the stack of an exception, line by line, as Python prints it. Of its text, only the first line."""
    found = traceback.TracebackException.from_exception(error, limit=-FRAMES_MAX)
    _leave_out_ours(found, set())
    lines: list[str] = []
    for part in found.format():
        if part.startswith((" ", "Traceback", "\n")):
            lines += part.rstrip("\n").split("\n")
        else:  # the exception itself, whose text may have a million lines
            lines.append(part.split("\n", 1)[0])
    return list(_tidy(lines))


def stack_of_frame(frame: FrameType) -> list[str]:
    """Return the current stack of a thread."""
    found = traceback.StackSummary.extract(reversed(list(traceback.walk_stack(frame))[:FRAMES_MAX]))
    found[:] = [each for each in found if not _is_ours(each.filename)]
    lines = "".join(found.format()).split("\n")
    return ["Where its thread is (most recent call last):", *_tidy(lines)]


def last_lines(stack: Sequence[str], lines_max: int) -> list[str]:
    """Return the last lines of a stack, as many as the server keeps, and the first line, which is the header."""
    if len(stack) <= lines_max and sum(map(len, stack)) <= STACK_CHARS_MAX:
        return list(stack)
    if lines_max < 2:
        return list(stack[-lines_max:]) if lines_max else []
    kept = list(stack[-(lines_max - 1) :])
    while len(stack[0]) + sum(map(len, kept)) > STACK_CHARS_MAX:
        del kept[0]
    while len(kept) > 1 and kept[0].startswith("    "):  # the source line of a frame that is cut off
        del kept[0]
    return [stack[0], *kept]


def _leave_out_ours(found: traceback.TracebackException, seen: set[int]) -> None:
    if id(found) in seen:
        return
    seen.add(id(found))
    found.stack[:] = [each for each in found.stack if not _is_ours(each.filename)]
    for other in (found.__cause__, found.__context__, *(found.exceptions or ())):
        if other is not None:
            _leave_out_ours(other, seen)


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS) or filename == _THREADING


def _tidy(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() and _MARKS.match(line) is None:
            yield sendable(line, LINE_CHARS_MAX)
