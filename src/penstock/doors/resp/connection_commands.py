"""Commands about the connection or the server, not about jobs. Most are sent by standard Redis clients."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.access.identity import ANYWHERE, Right
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import InvalidInput, Unauthorized
from penstock.core.time_slices import at_once, in_slices
from penstock.doors.queue_lists import has_jobs, name_steps, slices_of
from penstock.doors.resp import arguments, replies
from penstock.doors.resp.command_table import COMMANDS
from penstock.doors.resp.receive import WORDS, delay_ms_of, new_receive
from penstock.doors.resp.replies import OK
from penstock.doors.topics.subscriber import MessageOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.core.time_slices import Steps
    from penstock.doors.resp.command_table import RespCommand
    from penstock.doors.resp.parser import Command
    from penstock.doors.resp.replies import Value
    from penstock.doors.resp.session import RespSession

    Now = Callable[[RespSession, Command], bytes]
    After = Callable[[RespSession, Command], Awaitable[bytes]]

#: Names of connections and libraries must not have characters that would break a line of CLIENT LIST.
_SPACES: Final = frozenset(map(chr, range(33)))
#: Libraries that treat the reply to SUBSCRIBE as Redis' own, in every mode, and fail when it is a message.
_KEEP_SUBSCRIBE: Final = (b"ioredis", b"node-redis")


# Commands that are answered immediately.


def ping(session: RespSession, command: Command) -> bytes:
    """Answer PING as miniqueue does, except to a library that requires the answer of Redis."""
    if not session.is_stock:
        return b"+pong\r\n"
    return b"+PONG\r\n" if len(command) == 1 else replies.bulk(command[1])


def echo(_session: RespSession, command: Command) -> bytes:
    """Answer ECHO with its argument."""
    return replies.bulk(command[1])


def choose_database(_session: RespSession, command: Command) -> bytes:
    """Answer SELECT: some clients choose database 0 unasked."""
    arguments.whole(command[1], "index", 0, 2**31)
    return OK if command[1] == b"0" else replies.error("ERR DB index is out of range: there is 0. AUTH chooses a namespace.")


def info(session: RespSession, _command: Command) -> bytes:
    """Answer INFO, which clients read when they connect."""
    lines: dict[str, object] = {"redis_version": f"penstock_v{__version__}", "redis_mode": "standalone", "loading": 0}
    if session.identity is not None and session.identity.may(ANYWHERE, Right.LOOK):  # these figures cover all namespaces
        lines |= session.figures()
    return replies.bulk("".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode())


def client(session: RespSession, command: Command) -> bytes:
    """Answer the subcommands of CLIENT."""
    session.is_stock = True
    what, rest = command[1].upper(), command[2:]
    number = session.link.number
    if what == b"SETINFO" and len(rest) == 2:
        if rest[0].upper() not in (b"LIB-NAME", b"LIB-VER"):
            raise InvalidInput(f"Unrecognized option '{arguments.shown(rest[0])}'")
        if rest[0].upper() == b"LIB-NAME":
            session.keeps_subscribe = rest[1].lower().startswith(_KEEP_SUBSCRIBE)
        return OK
    if what == b"SETNAME" and len(rest) == 1:
        session.name = _client_name(rest[0])
        return OK
    if what == b"GETNAME" and not rest:
        return replies.value(session.name or None, session.protocol)
    if what == b"ID" and not rest:
        return replies.value(number, session.protocol)
    if what in (b"NO-EVICT", b"NO-TOUCH") and len(rest) == 1 and rest[0].upper() in (b"ON", b"OFF"):
        return OK
    if (what == b"INFO" and not rest) or what == b"LIST":
        line = (
            f"id={number} addr={session.client} name={session.name} db=0 resp={session.protocol} user={session.namespace}\n"
        )
        return replies.bulk(line.encode())
    raise InvalidInput(
        f"unknown subcommand '{arguments.shown(command[1])}' of CLIENT, or wrong number of arguments. "
        "There are SETINFO, SETNAME, GETNAME, ID, INFO, LIST, NO-EVICT and NO-TOUCH."
    )


def _client_name(word: bytes) -> str:
    if not word:
        return ""
    name = arguments.text(word, "name", limits.resp_client_name_chars_max)
    if _SPACES & set(name):
        raise InvalidInput("Client names cannot contain spaces, newlines or special characters.")
    return name


def describe(session: RespSession, command: Command) -> bytes:
    """Answer COMMAND with the list of commands, which clients use for completion."""
    what, rest = (command[1].upper(), command[2:]) if len(command) > 1 else (b"INFO", [])
    if what == b"COUNT" and not rest:
        return replies.value(len(COMMANDS), session.protocol)
    if what == b"LIST" and not rest:
        return _list(session.protocol)
    if what == b"INFO":
        return _info(session.protocol) if not rest else _info_of(rest, session.protocol)
    if what == b"DOCS":
        return _docs(session.protocol) if not rest else _docs_of(rest, session.protocol)
    raise InvalidInput(f"unknown subcommand '{arguments.shown(what)}' of COMMAND. There are COUNT, DOCS, INFO and LIST.")


# The commands do not change while the server runs, so each of these replies is built once.


@cache
def _list(protocol: int) -> bytes:
    return replies.value([entry.name.lower() for entry in COMMANDS.values()], protocol)


@cache
def _info(protocol: int) -> bytes:
    return _info_of(list(COMMANDS), protocol)


@cache
def _docs(protocol: int) -> bytes:
    return _docs_of(list(COMMANDS), protocol)


def _info_of(names: Sequence[bytes], protocol: int) -> bytes:
    nothing = replies.value(None, protocol)
    found = (COMMANDS.get(name.upper()) for name in names)
    return replies.array(nothing if entry is None else _entry_info(entry, protocol) for entry in found)


def _docs_of(names: Sequence[bytes], protocol: int) -> bytes:
    found = {name.upper(): COMMANDS[name.upper()] for name in names if name.upper() in COMMANDS}
    kind, size = (b"%", len(found)) if protocol >= 3 else (b"*", 2 * len(found))
    return b"%b%d\r\n%b" % (kind, size, b"".join(_entry_docs(entry, protocol) for entry in found.values()))


@cache
def _entry_info(entry: RespCommand, protocol: int) -> bytes:
    # Flags; positions of keys (there are none); ACL categories, tips, key specifications, subcommands.
    return replies.value([entry.name.lower(), entry.arity, [], 0, 0, 0, [], [], [], []], protocol)


@cache
def _entry_docs(entry: RespCommand, protocol: int) -> bytes:
    """Return the name and the description of a command."""
    docs: Value = {"summary": f"{entry.summary}: {entry.syntax}", "since": __version__, "group": entry.group}
    return replies.bulk(entry.name.lower().encode()) + replies.value(docs, protocol)


# Commands that wait until all earlier ones are answered.


async def topics(session: RespSession, _command: Command) -> bytes:
    """Answer the sorted topics of the namespace: as one line, or as a list if the client supports it."""
    share = session.engine.fair_share
    await yield_to_loop(1)  # many clients may request it
    if session.engine.store.queue_count(session.namespace) <= limits.queues_at_once:
        return at_once(_topic_steps(session))
    async with share.large(session.tenant):
        await share.give_way()
        return await in_slices(_topic_steps(session))


def _topic_steps(session: RespSession) -> Steps[bytes]:
    names = yield from name_steps(session.engine.store, session.namespace, has_jobs)
    if session.protocol < 3:
        return replies.simple(f"[{' '.join(names)}]")
    items: list[bytes] = []
    for some in slices_of(names):
        items += [replies.bulk(name.encode()) for name in some]
        yield
    return replies.array(items)


async def receive(session: RespSession, command: Command) -> bytes:
    """Answer RECEIVE with the next message of a topic."""
    asked = new_receive(command)
    if session.link.gone:  # do not wait for a client that has disconnected
        asked = asked._replace(wait_ms=0)
    return await session.received.receive(asked, session.key_of(command[1]), session.identity, session.protocol)


async def settle_message(session: RespSession, command: Command) -> bytes:
    """Settle the received message. Raises InvalidInput if there is none."""
    word = WORDS[command[0].upper()]
    return await session.received.settle(word, delay_ms_of(command) if word is MessageOutcome.DACK else 0)


async def auth(session: RespSession, command: Command) -> bytes:
    """Authenticate a client."""
    return await _show(session, command[-1], command[1] if len(command) == 3 else None) or OK


async def hello(session: RespSession, command: Command) -> bytes:
    """Answer HELLO with a description of the server, in the requested protocol."""
    protocol, place, name = session.protocol, 2, session.name
    if len(command) > 1:
        protocol = arguments.whole(command[1], "Protocol version", -(2**31), 2**31)
        if protocol not in (2, 3):
            return replies.NOPROTO
    shown: tuple[bytes, bytes] | None = None
    while place < len(command):
        option, left = command[place].upper(), len(command) - place - 1
        if option == b"AUTH" and left >= 2:
            shown = (command[place + 1], command[place + 2])
            place += 3
        elif option == b"SETNAME" and left >= 1:
            name = _client_name(command[place + 1])
            place += 2
        else:
            raise InvalidInput(f"Syntax error in HELLO option '{arguments.shown(command[place])}'")
    if shown is not None:
        refused = await _show(session, shown[1], shown[0])
        if refused:
            return refused
    if session.identity is None:
        return replies.NOAUTH_HELLO
    session.protocol, session.name, session.is_stock = protocol, name, True
    about: dict[str, Value] = {
        "server": "penstock",
        "version": __version__,
        "proto": protocol,
        "id": session.link.number,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    return replies.mapping(about, protocol)


async def _show(session: RespSession, token: bytes, user: bytes | None) -> bytes | None:
    """Authenticate with a token. Return the error if it is refused, in Redis' words if there is no other detail."""
    try:
        await session.show(token, user)
    except Unauthorized as error:
        plain = str(error) == str(Unauthorized())
        return replies.error(replies.WRONGPASS if plain else f"WRONGPASS {error}")
    return None


async def reset(session: RespSession, _command: Command) -> bytes:
    """Reset the connection, and release what the client holds."""
    await session.close()
    session.forget()
    return b"+RESET\r\n"


NOW: Final[dict[str, Now]] = {
    "PING": ping,
    "ECHO": echo,
    "SELECT": choose_database,
    "INFO": info,
    "CLIENT": client,
    "COMMAND": describe,
}
AFTER: Final[dict[str, After]] = {
    "RECEIVE": receive,
    **{word.value: settle_message for word in MessageOutcome},
    "TOPICS": topics,
    "AUTH": auth,
    "HELLO": hello,
    "RESET": reset,
}
