"""One client's sequence of commands, over TCP or WebSocket.

A session records whether its client has sent a token, and which jobs the client holds. They are released when it disconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.access.identity import ANYWHERE, Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, RateLimited, ServerError, Unauthorized
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.core.time_slices import in_slices
from penstock.doors.jobs import json_to_msgpack
from penstock.doors.jobs.command_call import CommandCall
from penstock.doors.jobs.mapping import job_ref, token_value
from penstock.doors.jobs.tcp_frames import LongReply
from penstock.doors.jobs.wire import replies
from penstock.doors.json_parts import LongKind, is_long, long_fields, part_steps, without_items
from penstock.engine.jobs.settle import LeaseRef, release_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.access.authenticator import Authenticator
    from penstock.access.identity import Identity
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.time_slices import Steps
    from penstock.doors.jobs.command_call import CommandEntry, CommandTable
    from penstock.doors.jobs.queue_events import QueueEvents

log = structlog.get_logger("penstock.commands")

_encode: Final = msgspec.json.Encoder().encode
#: The error with which a connection is closed after ``limits.stranger_commands_max``.
STRANGER_COMMANDS: Final = "Not authenticated. Too many commands without a token: connect again, and send Auth first."


def _admit_all(_namespace: str) -> None:
    pass


class JobsSession:
    """Answers commands with the entries of a table.

    ``authenticator`` checks the tokens; ``identity`` is the identity of the client (None: it has not shown a token yet).
    ``rate_limit`` limits how many commands may come from the address ``client`` (None: no limit). ``admit`` counts the
    connection for a namespace, when its client authenticates. It raises TooMany if the namespace has used its share.
    """

    def __init__(
        self,
        table: CommandTable,
        authenticator: Authenticator,
        *,
        identity: Identity | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        rate_limit: SlidingWindow | None = None,
        client: str = "",
        admit: Callable[[str], None] = _admit_all,
    ) -> None:
        self.namespace = namespace
        self.gone = asyncio.Event()  #: set when the client has disconnected, so that waits for it end
        self._table = table
        self._fair_share = table.engine.fair_share
        self._rate_limit = rate_limit
        self.client = client
        self.authenticator = authenticator
        self._admit = admit
        self.identity = authenticator.open_identity if authenticator.is_open else identity
        self._token_checked = asyncio.Event()  #: set unless a token is being checked
        self._token_checked.set()
        self._awaiting_token = 0  #: commands that wait for the check of a token
        self._held: dict[int | str, int | None] = {}
        self.at_end: dict[str, Callable[[], object]] = {}  #: called when the client has disconnected; by name
        self.events: QueueEvents | None = None  #: sends events to the client, if its connection supports that
        self._under_way = 0
        self._logs_commands = log.is_enabled_for(logging.DEBUG)
        self._idle = asyncio.Event()
        self._idle.set()

    async def handle(self, message: object) -> dict[str, Any]:
        """Answer one command with values that MessagePack can encode. Never raises: an error is a reply, too.

        Several commands may be in progress.
        """
        reply = await self._reply(message)
        plain: dict[str, Any]
        if type(reply) is not bytes:
            plain = await in_slices(_plain_steps(reply))
        elif json_to_msgpack.is_large(reply):
            plain = await in_slices(json_to_msgpack.plain_steps(reply))
        else:
            plain = json_to_msgpack.plain(reply)
        plain.update(_request_id(message))
        return plain

    async def handle_text(self, message: object) -> bytes:
        """Answer one command as ``handle`` does, with JSON that contains payloads and results as the stored bytes."""
        reply = await self._reply(message)
        text = reply if type(reply) is bytes else b"".join(await in_slices(part_steps(reply)))
        request_id = _request_id(message)
        return text[:-1] + b"," + _encode(request_id)[1:] if request_id else text

    def refuse(self, error: ServerError, message: object = None) -> dict[str, Any]:
        """Answer an invalid command. It counts against the rate limit like a command."""
        try:
            self.check_pace()
        except RateLimited as too_many:
            error = too_many
        return refusal(error) | _request_id(message)

    async def _reply(self, message: object) -> Any:
        """Return the reply as JSON or, if it is long, as a struct."""
        self._under_way += 1
        self._idle.clear()
        try:
            if not self._table.share.try_begin():
                await self._table.share.turn()
            return await self._answer(message)
        except ServerError as error:
            await self._give_way()
            return _encode(refusal(error))
        except Exception as error:  # whatever fails, the client gets an answer
            log.error("a command failed unexpectedly", exc_info=error)
            return _encode(refusal(ServerError("Internal server error")))
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def mark_disconnected(self) -> None:
        """Record that the client has disconnected: all waits for it end."""
        self.gone.set()

    async def close(self) -> None:
        """Finish the commands in progress, and release the jobs that the client pulled and has not settled.

        They are ready again at once, unchanged, and no attempt is counted. Jobs that were pulled with ``detach`` stay
        leased.
        """
        self.mark_disconnected()
        await self._idle.wait()
        for undo in list(self.at_end.values()):
            undo()
        self.at_end.clear()
        held, self._held = self._held, {}
        await release_left(self._table.engine, self.namespace, [LeaseRef(ref, token) for ref, token in held.items()])

    @property
    def authenticated(self) -> bool:
        """Whether the client has authenticated."""
        return self.identity is not None

    @property
    def tenant(self) -> str:
        """The namespace whose share of the event loop the commands use: never one in which the client has no rights."""
        return "" if self.identity is None else self.identity.tenant(self.namespace)

    async def show_token(self, token: str, namespace: str | None = None) -> None:
        """Authenticate the client with a token, and choose the namespace of its commands. Raises Unauthorized."""
        self._token_checked.clear()
        try:
            identity = await self.authenticator.identify(token)
        except Unauthorized as error:
            raise Unauthorized("Invalid token" if str(error) == str(Unauthorized()) else str(error)) from None
        finally:
            self._token_checked.set()
        if namespace is not None:
            identity.check_any(namespace)
        if namespace is not None and namespace != self.namespace:
            if (
                self._held or self.at_end or self._under_way - self._awaiting_token > 1
            ):  # these stay in the namespace in which they were made
                raise InvalidInput("Choose the namespace before the first command on this connection")
        else:
            namespace = self.namespace
        self._admit(identity.tenant(namespace))
        self.namespace = namespace
        self.identity = identity

    def check(self, right: Right, everywhere: bool = False) -> None:
        """Raise Unauthorized or Forbidden unless the client has a right now."""
        if not self.authenticator.is_open:
            self.authenticator.check(self.identity, ANYWHERE if everywhere else self.namespace, right)

    def check_pace(self) -> None:
        """Count a command. Raises RateLimited if the client's address sends too many."""
        if self._rate_limit is not None:
            self._rate_limit.check(self.client)

    async def _answer(self, message: object) -> Any:
        self.check_pace()
        if not isinstance(message, Mapping):
            raise InvalidInput("Invalid command")
        shown = message.get("cmd")
        name = shown if isinstance(shown, str) else ""
        entry = self._table.get(name)
        if not self.authenticator.is_open and (entry is None or not entry.public):
            self._awaiting_token += 1
            try:
                await self._token_checked.wait()  # commands after an Auth may depend on it
            finally:
                self._awaiting_token -= 1
        # The line comes first, so that refused commands wait in it, too.
        if (entry is None or not entry.public or self.identity is not None) and (
            place := self._fair_share.begin(self.tenant)
        ) is not None:
            await place
        self._check_entry(entry, message, name)
        assert entry is not None
        if self._logs_commands:
            log.debug("command", name=name[: limits.command_name_chars_max], of=message.get("queue"), client=self.client)
        if self._fair_share.shared and not entry.public:
            self._fair_share.enter(self.tenant)
            turn = self._table.share.ends_at
            try:
                reply = await self._run(entry, message)
            finally:
                self._fair_share.leave()
            if self._table.share.ends_at == turn:  # it has waited for nothing
                await self._give_way()
        else:
            reply = await self._run(entry, message)
        self._keep_track(entry, message, reply)
        return reply if is_long(reply) else _encode(reply)

    def _check_entry(self, entry: CommandEntry | None, message: Mapping[str, Any], name: str) -> None:
        """Raise the error of a command that the client may not use, or that does not exist."""
        if not self.authenticator.is_open and (entry is None or not entry.public):
            self.check(*((Right.NONE, False) if entry is None else (entry.right, entry.is_for_all(message))))
        if entry is None:
            raise InvalidInput(f"Unknown command: {name[: limits.command_name_chars_max]}" if name else "Invalid command")

    async def _give_way(self) -> None:
        """Let small requests of other namespaces go first, after a command that was answered at once.

        Many of these keep the event loop busy, and the threads of the stores hardly get the interpreter's lock. A command that
        came alone does not wait.
        """
        if self._fair_share.shared and self._under_way > 1:
            await self._fair_share.give_way(self.tenant)

    async def take_turn(self) -> None:
        """Wait for the turn of a command that is answered without ``handle``, because it is invalid."""
        if not self._table.share.try_begin():
            await self._table.share.turn()
        if (place := self._fair_share.begin(self.tenant)) is not None:
            await place
        if self._fair_share.shared:
            await self._fair_share.give_way(self.tenant)

    async def _run(self, entry: CommandEntry, message: Mapping[str, Any]) -> Any:
        call = CommandCall(self, message, self._fair_share)
        try:
            return await entry(call)
        finally:
            call.free()

    def _keep_track(self, entry: CommandEntry, message: Mapping[str, Any], reply: object) -> None:
        """Record which jobs the client holds. If there are very many, the oldest are dropped: their leases expire."""
        if entry.takes and message.get("detach") is not True:
            for job, token in _taken(reply):
                self._held[job_ref(job.id)] = token_value(token)
            while len(self._held) > limits.connection_jobs_max:
                del self._held[next(iter(self._held))]
        elif entry.settles:
            refused = {each.id for each in reply.errors} if isinstance(reply, replies.BatchReply) else ()
            for text in message["ids"] if isinstance(reply, replies.BatchReply) else (message["id"],):
                if text not in refused:
                    self._held.pop(job_ref(text), None)


def refusal(error: ServerError) -> dict[str, Any]:
    """Return the reply for an error. ``code`` is the value of the header ``penstock-error`` over HTTP."""
    return {"ok": False, "error": str(error), "code": error.code}


def _taken(reply: object) -> Iterable[tuple[replies.JobView, str]]:
    """Return the jobs that a reply delivers, with their tokens."""
    if isinstance(reply, replies.PulledBatchReply):
        return zip(reply.jobs, reply.tokens, strict=True)
    return ((reply.job, reply.token),) if isinstance(reply, replies.PulledReply) else ()


def _request_id(message: object) -> dict[str, Any]:
    """Return the request id that a reply repeats from its command, so that the client can match replies to commands."""
    value = message.get("reqId") if isinstance(message, Mapping) else None
    return {"reqId": value} if isinstance(value, str | int | float) else {}


def _plain_steps(reply: Any) -> Steps[dict[str, Any]]:
    """Convert a long reply to plain values, in steps."""
    plain = LongReply(json_to_msgpack.plain(_encode(without_items(reply))))
    for field in long_fields(type(reply)):
        target = (plain[field.inside] if field.inside else plain)[field.spelled]
        items = field.of(reply)
        if field.kind is LongKind.STRUCTS:
            for item in items:
                target.append((yield from json_to_msgpack.plain_steps(_encode(item))))
                yield
            continue
        if field.kind is LongKind.TEXTS:
            for start in range(0, len(items), limits.count_rest_rows):
                target += items[start : start + limits.count_rest_rows]
                yield
            continue
        for number, (key, value) in enumerate(items.items()):
            if field.kind is LongKind.NUMBERS:
                target[str(key)] = value
            else:
                target[key] = yield from json_to_msgpack.value_steps(bytes(value))
            if field.kind is LongKind.VALUES or not number % limits.count_rest_rows:
                yield
    return plain
