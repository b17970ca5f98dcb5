"""``penstock serve`` that counts, at each SIGUSR1, the texts in its memory that begin with COUNTED, and writes who has them.

The counts go to the file named by COUNTS_FILE: pairs of what holds the text and how often, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from penstock.cli import main

PREFIX = os.environ["COUNTED"]
COUNTS = Path(os.environ["COUNTS_FILE"])
_LEAVES = (int, float, bool, type(None), type, ModuleType, FunctionType)


def _holds(found: object) -> bool:
    if isinstance(found, str):
        return PREFIX in found
    return isinstance(found, bytes) and PREFIX.encode() in found


def count_texts() -> dict[str, int]:
    """Count the texts by who holds them, also those in objects that the garbage collector does not follow."""
    gc.collect()
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    tracked = gc.get_objects()
    followed = {id(each) for each in tracked}
    todo: list[Any] = list(tracked)
    paths: list[str] = [type(each).__qualname__ for each in tracked]
    while todo:
        owner, path = todo.pop(), paths.pop()
        if id(owner) in seen or owner is tracked or isinstance(owner, FrameType):
            continue
        seen.add(id(owner))
        for each in gc.get_referents(owner):
            if isinstance(each, str | bytes):
                if _holds(each) and id(each) not in seen:
                    seen.add(id(each))
                    counts[f"{path}: {_owners(owner)}"] += 1
            elif id(each) not in followed and not isinstance(each, _LEAVES):
                todo.append(each)
                paths.append(f"{path} > {type(each).__qualname__}")
    return dict(counts)


def _owners(held: object) -> str:
    """Say who holds what holds a text, for people to read."""
    names = []
    for _ in range(3):
        above = [each for each in gc.get_referrers(held) if not isinstance(each, FrameType | list)]
        if not above:
            break
        below, held = held, above[0]
        attribute = next((name for name, value in _attributes(held) if value is below), "")
        names.append(f"{type(held).__qualname__}.{attribute}")
    return " < ".join(names)


def _attributes(owner: object) -> list[tuple[str, object]]:
    slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(owner, "__dict__", {}).items(), *((name, getattr(owner, name, None)) for name in slots)]


def tell(_signal: int, _frame: FrameType | None) -> None:
    part = COUNTS.with_suffix(".part")
    part.write_text(json.dumps(count_texts()), encoding="utf-8")
    part.rename(COUNTS)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    main()
