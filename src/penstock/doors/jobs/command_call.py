"""A command as the handlers of the jobs door receive it, and the table of all commands.

HTTP, TCP and WebSocket differ in how a request arrives, not in its meaning. A ``CommandCall`` has the same interface as an
HTTP request, so that one handler, with one set of limits and error texts, serves HTTP, TCP and WebSocket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.doors.net.loop_share import LoopShare
from penstock.doors.permissions import command_right

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Concatenate

    from penstock.access.identity import Identity
    from penstock.doors.http.body import BodyReader
    from penstock.doors.jobs.session import JobsSession
    from penstock.engine.api import EngineApi
    from penstock.engine.fair_share import FairShare

    #: Takes a call and its parameters. A handler for HTTP requests only, which needs more than a call has, is none.
    CommandHandler = Callable[Concatenate["CommandCall", ...], Awaitable[Any]]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_check_syntax: Final = msgspec.json.Decoder(msgspec.Raw).decode


class TextMessage(Mapping[str, Any]):
    """A command that arrived as JSON. Its text is kept, so that payloads are stored byte for byte, as over HTTP.

    Raises InvalidInput for invalid JSON, or JSON that is not an object.
    """

    __slots__ = ("_fields", "text")

    def __init__(self, text: str | bytes) -> None:
        try:
            self.text = text.encode() if isinstance(text, str) else text
            if not self.text.isascii():
                self.text.decode()
            self._fields = _decode_fields(self.text)
        except msgspec.ValidationError:
            raise InvalidInput("Invalid command" if _is_json(self.text) else _NO_JSON) from None
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise InvalidInput(_NO_JSON) from None

    def __getitem__(self, name: str) -> Any:
        raw = self._fields[name]
        try:
            try:
                return _decode(raw)
            except msgspec.DecodeError:  # a number too large for a float, which JSON may have
                return json.loads(bytes(raw), parse_int=float)
        except RecursionError:  # nested deeper than any field that commands read
            return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


_NO_JSON: Final = "Invalid JSON"


def _is_json(text: bytes) -> bool:
    try:
        _check_syntax(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


class CommandCall:
    """One command of a session. Its fields are what a request has in its path, query and body.

    ``fair_share`` lets large commands continue. ``free`` follows when the command is answered, in the same task.
    """

    __slots__ = ("_fair_share", "_large_of", "message", "session")
    warns = False  #: clients send additional fields in each command, and a reply has no headers

    def __init__(self, session: JobsSession, message: Mapping[str, Any], fair_share: FairShare) -> None:
        self.session = session
        self.message = message
        self._fair_share = fair_share
        self._large_of: str | None = None  #: the namespace whose large requests include this command

    def header(self, name: str, default: str | None = None) -> str | None:
        """Return a field as a header: the namespace, and nothing else."""
        return self.session.namespace if name == "x-namespace" else default

    def namespace(self) -> str:
        """Return the namespace of the session."""
        return self.session.namespace

    def warn(self, text: str) -> None:
        """Do nothing: a reply has no headers."""

    async def body(self) -> bytes:
        """Return the fields as JSON."""
        if type(self.message) is TextMessage:
            body = self.message.text
        else:
            try:
                body = _encode(self.message)
            except (TypeError, ValueError, OverflowError, RecursionError):
                raise InvalidInput("Invalid command format") from None
        if len(body) > limits.small_body_bytes:
            await self.become_large()
        return body

    async def become_large(self) -> None:
        if self._large_of is None and not self._fair_share.is_large:
            namespace = self.session.tenant
            await self._fair_share.begin_large(namespace)
            self._large_of = namespace
            await self._fair_share.give_way()

    def free(self) -> None:
        """Let the next large request of the namespace continue."""
        if self._large_of is not None:
            self._fair_share.end_large(self._large_of)
            self._large_of = None

    def query(self) -> dict[str, str]:
        """Return the fields as the parameters of a query string; a list is written with commas."""
        return {name: _text(value) for name, value in self.message.items() if value is not None}

    @property
    def identity(self) -> Identity | None:
        """The identity of the client."""
        return self.session.identity

    def allow(self, namespace: str, right: Right) -> None:
        """Raise Forbidden unless the client has a right in a namespace."""
        self.session.authenticator.check(self.session.identity, namespace, right)

    async def disconnected(self) -> None:
        """Return when the client has disconnected."""
        await self.session.gone.wait()

    def field(self, name: str) -> str:
        """Return a field that names a queue or a job. A missing field is empty; the handler raises the error for it."""
        value = self.message.get(name)
        if value is None and name != "queue":
            raise InvalidInput(f"{name} is required")
        if not isinstance(value, str | None):
            raise InvalidInput(f"{name} must be a string")
        return value or ""


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class CommandEntry(NamedTuple):
    """One command. ``handler`` takes the call and its parameters, as the handler of a route does."""

    handler: CommandHandler
    shape: BodyReader[Any] | None = None  #: its optional and required fields, in addition to ``params``
    params: Mapping[str, str] = {}  #: the field for each parameter of the handler
    public: bool = False  #: may be used before the client has shown a token
    takes: bool = False  #: leases jobs to the client; they are released when it disconnects
    settles: bool = False  #: ends the client's leases of the jobs of the command
    right: Right = Right.ADMIN  #: the right it needs; the table fills it in
    everywhere: bool = False  #: it needs the right for the whole server, not for the session's namespace
    narrows: bool = False  #: with a ``queue`` it is about that queue only, and needs its right in the session's namespace

    def is_for_all(self, message: Mapping[str, Any]) -> bool:
        """Return whether a command is about the whole server."""
        return self.everywhere and not (self.narrows and message.get("queue") is not None)

    def fields(self) -> list[str]:
        """Return the names of all fields that the command accepts."""
        shape = [] if self.shape is None else [each.encode_name for each in msgspec.structs.fields(self.shape.shape)]
        return [*self.params.values(), *shape]

    async def __call__(self, call: CommandCall) -> Any:
        """Answer a call."""
        return await self.handler(call, **{name: call.field(field) for name, field in self.params.items()})


class CommandTable:
    """All commands by name. Adding one is adding an entry to a group."""

    def __init__(self, engine: EngineApi, *groups: Mapping[str, CommandEntry]) -> None:
        self.engine = engine
        self._entries: dict[str, CommandEntry] = {}
        for group in groups:
            assert not self._entries.keys() & group.keys(), "a command is defined twice"
            for name, entry in group.items():
                right, everywhere = command_right(name)
                self._entries[name] = entry._replace(right=right, everywhere=everywhere)

    @cached_property
    def share(self) -> LoopShare:
        """The share of the event loop for the commands of all sessions."""
        return LoopShare(self.engine.clock)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> CommandEntry:
        return self._entries[name]

    def get(self, name: str) -> CommandEntry | None:
        """Return a command; None if no command has that name."""
        return self._entries.get(name)
