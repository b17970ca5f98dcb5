"""The yardstick: an empty handler on Granian and Falcon, which reads nothing, stores nothing and answers a constant."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import falcon.asgi
import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server


class Empty:
    async def on_post(self, _req: Any, resp: Any) -> None:
        resp.data = b'{"ok":true}'


async def main(port: int) -> None:
    app: falcon.asgi.App[Any, Any] = falcon.asgi.App()
    app.add_route("/empty", Empty())
    server = Server(app, address="127.0.0.1", port=port, interface=Interfaces.ASGINL, backlog=1024, log_enabled=False)
    await server.serve()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
