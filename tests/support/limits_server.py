"""``penstock serve`` with limits of its own, for deadlines too long for a test: LIMITS has their names and values as JSON."""

from __future__ import annotations

import json
import os

from penstock.core import limits

for name, value in json.loads(os.environ["LIMITS"]).items():
    setattr(limits, name, value)

if __name__ == "__main__":
    from penstock.cli import main

    main()
