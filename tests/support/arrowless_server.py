"""``penstock serve`` on a machine without pyarrow."""

from __future__ import annotations

import importlib.util

from penstock.cli import main

real_find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "pyarrow" else real_find_spec(name, package)

if __name__ == "__main__":
    main()
