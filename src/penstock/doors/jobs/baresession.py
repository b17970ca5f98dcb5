"""The least a WebSocket needs of a session: Ping and Auth. It stands in until the command table is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.access.tokens import TokenGate
    from penstock.core.clock import Clock


class BareSession:
    """Answers Ping and Auth, and nothing else."""

    def __init__(self, gate: TokenGate, clock: Clock, *, authenticated: bool) -> None:
        self._gate = gate
        self._clock = clock
        self._authenticated = authenticated

    async def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its reply."""
        return self._reply(message) | ({"reqId": message["reqId"]} if "reqId" in message else {})

    async def close(self) -> None:
        """Nothing is held."""

    def _reply(self, message: Mapping[str, Any]) -> dict[str, Any]:
        command, token = message["cmd"], message.get("token")
        if command == "Auth":
            if not isinstance(token, str) or not self._gate.admits(token):
                return {"ok": False, "error": "Invalid token"}
            self._authenticated = True
            return {"ok": True}
        if not self._authenticated:
            return {"ok": False, "error": "Not authenticated"}
        if command == "Ping":
            return {"ok": True, "data": {"pong": True, "time": self._clock.now_ms()}}
        return {"ok": False, "error": f"Unknown command: {command}"}
