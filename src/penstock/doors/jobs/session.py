"""One client's conversation in commands, over whatever carries it: TCP or WebSocket.

A session knows whether its client has shown a token, and which jobs the client holds: they go back when it hangs up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.core import limits
from penstock.core.errors import InvalidInput, PenstockError, Unauthorized
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.doors.jobs.call import Call
from penstock.doors.jobs.views import job_ref, token_value
from penstock.engine.settle import Hold, Release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.access.rate_limit import SlidingWindow
    from penstock.access.tokens import TokenGate
    from penstock.doors.jobs.call import CommandTable, Entry

log = structlog.get_logger("penstock.commands")

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Session:
    """Answers commands with the entries of a table.

    ``gate`` knows the tokens; ``authenticated``: the client needs to show none, because it has already, or nobody has to.
    ``window`` limits how many commands may come from the address ``client`` (None: no limit).
    """

    def __init__(
        self,
        table: CommandTable,
        gate: TokenGate,
        *,
        authenticated: bool,
        namespace: str = DEFAULT_NAMESPACE,
        window: SlidingWindow | None = None,
        client: str = "",
    ) -> None:
        self.namespace = namespace
        self.gone = asyncio.Event()  #: set when the client has hung up: nobody needs to wait for anything any more
        self._table = table
        self._gate = gate
        self._window = window
        self._client = client
        self.authenticated = authenticated or gate.is_open
        self._held: dict[int | str, int | None] = {}
        self.at_end: dict[str, Callable[[], object]] = {}  #: what to undo when the client is gone, by a name of its own
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def handle(self, message: object) -> dict[str, Any]:
        """Answer one command. Never raises: what goes wrong is an answer too. Several may be under way at once."""
        self._under_way += 1
        self._idle.clear()
        try:
            reply = await self._answer(message)
        except PenstockError as error:
            reply = {"ok": False, "error": str(error)}
        except Exception as error:  # whatever went wrong, the client gets an answer
            log.error("a command failed unexpectedly", exc_info=error)
            reply = {"ok": False, "error": "Internal server error"}
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        request_id = message.get("reqId") if isinstance(message, Mapping) else None
        if isinstance(request_id, str | int | float):
            reply["reqId"] = request_id
        return reply

    def hang_up(self) -> None:
        """The client is gone: whatever waits on its behalf stops waiting."""
        self.gone.set()

    async def close(self) -> None:
        """Finish what is under way, and give the jobs back that the client pulled and has not settled.

        They are ready again at once, untouched, and no attempt is counted. Those pulled with ``detach`` stay leased.
        """
        self.hang_up()
        await self._idle.wait()
        for undo in self.at_end.values():
            undo()
        self.at_end.clear()
        held, self._held = self._held, {}
        if held:
            holds = [Hold(ref, token) for ref, token in held.items()]
            with contextlib.suppress(PenstockError):  # if they cannot be released now, their leases will run out
                await self._table.engine.run(Release(self.namespace, holds))

    def show_token(self, token: str) -> None:
        """Let the client in if its token is good. Raises Unauthorized."""
        if not self._gate.admits(token):
            raise Unauthorized("Invalid token")
        self.authenticated = True

    def check_pace(self) -> None:
        """Count a command. Raises RateLimited if the client's address asks too often."""
        if self._window is not None:
            self._window.check(self._client)

    async def _answer(self, message: object) -> dict[str, Any]:
        self.check_pace()
        if not isinstance(message, Mapping):
            raise InvalidInput("Invalid command")
        name = message.get("cmd")
        if not isinstance(name, str) or not name:
            raise InvalidInput("Invalid command")
        entry = self._table.get(name)
        if not self.authenticated and (entry is None or not entry.public):
            raise Unauthorized("Not authenticated")
        if entry is None:
            raise InvalidInput(f"Unknown command: {name[: limits.command_name_chars_max]}")
        reply = _plain(await entry(Call(self, message)))
        self._keep_track(entry, message, reply)
        return reply

    def _keep_track(self, entry: Entry, message: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Remember which jobs the client holds. Of very many, the oldest are forgotten: their leases will run out."""
        if entry.takes and message.get("detach") is not True:
            for job, token in _taken(reply):
                self._held[job_ref(job["id"])] = token_value(token)
            while len(self._held) > limits.connection_jobs_max:
                del self._held[next(iter(self._held))]
        elif entry.settles:
            for text in message["ids"] if "ids" in message else (message["id"],):
                self._held.pop(job_ref(text), None)


def _taken(reply: Mapping[str, Any]) -> Iterable[tuple[Mapping[str, Any], str]]:
    """Return the jobs a reply hands out, with their tokens."""
    if "jobs" in reply:
        return zip(reply["jobs"], reply["tokens"], strict=True)
    return () if reply["job"] is None else ((reply["job"], reply["token"]),)


def _plain(reply: Any) -> dict[str, Any]:
    """Turn a handler's answer, which holds payloads as the JSON they are stored as, into plain values."""
    text = _encode(reply)
    try:
        return _decode(text)
    except msgspec.MsgspecError:  # a number too large for a float, which HTTP hands on as it is
        plain: dict[str, Any] = json.loads(text)
        return plain
