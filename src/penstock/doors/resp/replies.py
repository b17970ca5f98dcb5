"""Encodes replies of the Redis protocol: RESP2, and RESP3 for types that RESP2 does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Forbidden, InvalidInput, ProtocolError, ServerError, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    #: The values in descriptions of the server and its commands.
    Value = bytes | str | int | None | list["Value"] | dict[str, "Value"]

OK: Final = b"+OK\r\n"
#: Limit of an error line, so that it does not repeat a payload.
_ERROR_CHARS_MAX: Final = 512


def simple(text: str) -> bytes:
    """Encode a short text without line breaks."""
    return b"+" + text.encode() + b"\r\n"


def bulk(data: bytes) -> bytes:
    """Encode bytes as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def array(items: Iterable[bytes]) -> bytes:
    """Encode an array of encoded items."""
    spelled = list(items)
    return b"*%d\r\n%b" % (len(spelled), b"".join(spelled))


def mapping(pairs: Mapping[str, Value], protocol: int) -> bytes:
    """Encode a map. RESP2 has no map, so there it is an array."""
    kind, size = (b"%", len(pairs)) if protocol >= 3 else (b"*", 2 * len(pairs))
    spelled = b"".join(bulk(name.encode()) + value(each, protocol) for name, each in pairs.items())
    return b"%b%d\r\n%b" % (kind, size, spelled)


def value(item: Value, protocol: int) -> bytes:
    """Encode a value of any type."""
    if item is None:
        return b"_\r\n" if protocol >= 3 else b"$-1\r\n"
    if isinstance(item, int):
        return b":%d\r\n" % item
    if isinstance(item, list):
        return array(value(each, protocol) for each in item)
    if isinstance(item, dict):
        return mapping(item, protocol)
    return bulk(item.encode() if isinstance(item, str) else item)


def error(text: str) -> bytes:
    """Encode an error. Its first word is its code, if it has one. Line breaks in the text are replaced."""
    line = " ".join(text[:_ERROR_CHARS_MAX].split())
    return b"-" + line.encode("utf-8", "replace") + b"\r\n"


def refusal(problem: ServerError) -> bytes:
    """Encode an error of the server, with a code of Redis if there is one, or with ours."""
    return error(f"{code_of(problem)} {problem}")


def broken(problem: ProtocolError) -> bytes:
    """Encode a protocol error. Return nothing if the client uses another protocol."""
    return b"" if problem.silent else error(f"ERR Protocol error: {problem}")


def code_of(problem: ServerError) -> str:
    """Return the code of an error, its first word."""
    if isinstance(problem, InvalidInput):
        return "ERR"
    if isinstance(problem, Unauthorized):
        return "NOAUTH"
    return "NOPERM" if isinstance(problem, Forbidden) else problem.code.upper()


def wrong_arity(name: str) -> bytes:
    """Encode the error of Redis for a wrong number of arguments."""
    return error(f"ERR wrong number of arguments for '{name.lower()}' command")


NOAUTH: Final = error("NOAUTH Authentication required.")
NOAUTH_OFTEN: Final = error("NOAUTH Too many commands without authentication. Connect again, and send AUTH first.")
NOAUTH_HELLO: Final = error(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option "
    "can be used to authenticate the client and select the RESP protocol version at the same time"
)
NOPROTO: Final = error("NOPROTO unsupported protocol version")
WRONGPASS: Final = "WRONGPASS invalid username-password pair or user is disabled."
