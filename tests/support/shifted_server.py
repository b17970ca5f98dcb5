"""``penstock serve`` on a machine whose wall clock was set: it is as many milliseconds ahead as SHIFT_MS says."""

from __future__ import annotations

import os
import time

SHIFT_NS = int(os.environ["SHIFT_MS"]) * 1_000_000
true_ns = time.time_ns


def shifted_ns() -> int:
    return true_ns() + SHIFT_NS


time.time_ns = shifted_ns
time.time = lambda: shifted_ns() / 1e9

from penstock.cli import main  # noqa: E402 - from here on, time is what it says

if __name__ == "__main__":
    main()
