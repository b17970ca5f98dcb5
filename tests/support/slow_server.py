"""``penstock serve`` that takes its time to start: it is not ready before the file named by START_FILE exists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import listeners
from penstock.cli import main
from tests.support.receiver import until

if TYPE_CHECKING:
    import ssl

    from penstock.config import Config
    from penstock.doors.jobs.tcp import TcpListener

real_start_tcp = listeners.start_tcp


async def start_tcp(tcp: TcpListener, config: Config, tls: ssl.SSLContext | None) -> bool:
    await until(Path(os.environ["START_FILE"]).exists)
    return await real_start_tcp(tcp, config, tls)


listeners.start_tcp = start_tcp

if __name__ == "__main__":
    main()
