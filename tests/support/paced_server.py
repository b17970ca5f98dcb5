"""``penstock serve`` whose rate limit goes by a clock that a test sets: the milliseconds in the file named by PACE_FILE."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.access import rate_limit
from penstock.cli import main
from penstock.core.clock import ManualClock


class FileClock(ManualClock):
    def steady_ms(self) -> int:
        return int(Path(os.environ["PACE_FILE"]).read_text(encoding="utf-8"))


class PacedWindow(rate_limit.SlidingWindow):
    def __init__(self, _clock: object, **limits: Any) -> None:
        super().__init__(FileClock(), **limits)


setattr(rate_limit, "SlidingWindow", PacedWindow)  # noqa: B010 - before the server is imported, which looks it up by this name

if __name__ == "__main__":
    main()
