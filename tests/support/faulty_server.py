"""``penstock serve`` on a disk that breaks on demand: while the file named by FAULT_FILE exists, every fdatasync fails."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.cli import main

fault = Path(os.environ["FAULT_FILE"])
real_fdatasync = os.fdatasync


def fdatasync(fd: int) -> None:
    if fault.exists():
        raise OSError(5, "Input/output error")
    real_fdatasync(fd)


# The store takes its fdatasync as a default argument, bound when its module is imported.
import penstock.store.sqlite.store as store_module  # noqa: E402

store_module.SqliteStore.open.__func__.__kwdefaults__["fdatasync"] = fdatasync  # type: ignore[attr-defined]

if __name__ == "__main__":
    main()
