"""``penstock serve`` that takes its time to start: it is not ready before the file named by START_FILE exists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import main
from penstock.server import listeners
from tests.support.receiver import until

if TYPE_CHECKING:
    import ssl

    from penstock.config import Config, Listener
    from penstock.doors.net.listener import ConnectionListener

real_start = listeners.start


async def start(
    name: str, opened: ConnectionListener[Any], listener: Listener | None, config: Config, tls: ssl.SSLContext | None
) -> bool:
    await until(Path(os.environ["START_FILE"]).exists)
    return await real_start(name, opened, listener, config, tls)


listeners.start = start

if __name__ == "__main__":
    main()
