"""``penstock serve`` with names of its own: looking up what ends in ``.slow.test`` never ends, ``.test`` is 127.0.0.1.

Each look-up of a slow name adds a line to the file named by LOOKUPS_FILE.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

from penstock.cli import main

real_getaddrinfo = socket.getaddrinfo
never = threading.Event()


def getaddrinfo(host: Any, *args: Any, **more: Any) -> Any:
    if str(host).endswith(".slow.test"):
        with Path(os.environ["LOOKUPS_FILE"]).open("a", encoding="ascii") as lookups:
            lookups.write(f"{host}\n")
        never.wait()
    return real_getaddrinfo("127.0.0.1" if str(host).endswith(".test") else host, *args, **more)


socket.getaddrinfo = getaddrinfo

if __name__ == "__main__":
    main()
