"""Who somebody is and what they may do: rights, per namespace."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

from penstock.core import limits
from penstock.core.errors import Forbidden, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Right(IntFlag):
    """What something needs. ``NONE``: nothing but being known."""

    NONE = 0
    LOOK = 1  #: see queues, jobs, events
    PRODUCE = 2  #: bring jobs
    TAKE = 4  #: get jobs to work on
    SETTLE = 8  #: say how they went
    ADMIN = 16  #: everything else


EVERYTHING: Final = Right.LOOK | Right.PRODUCE | Right.TAKE | Right.SETTLE | Right.ADMIN
#: Stands for all namespaces, and for the server as a whole.
ANYWHERE: Final = "*"
#: The words a scope may end with.
WORDS: Final[Mapping[str, Right]] = {
    "read": Right.LOOK | Right.TAKE,
    "write": Right.PRODUCE | Right.SETTLE,
    "produce": Right.LOOK | Right.PRODUCE,
    "consume": Right.LOOK | Right.TAKE | Right.SETTLE,
    "admin": EVERYTHING,
    "*": EVERYTHING,
}
#: The claims of a token that hold scopes, ours and those of OAuth, as a list or as a text with spaces. All of them count.
_SCOPES: Final = ("scopes", "scope", "scp")
_NAMESPACES: Final = "allowed_namespaces"
_CLAIMS: Final = ", ".join((*_SCOPES, _NAMESPACES))
#: The scope to ask for when a right is missing.
_REMEDY: Final[Mapping[Right, str]] = {
    Right.LOOK: "read",
    Right.PRODUCE: "produce",
    Right.TAKE: "consume",
    Right.SETTLE: "consume",
    Right.ADMIN: "admin",
}


class Identity:
    """Somebody known. ``grants`` are rights by namespace; ``expires_ms`` is when this ends, by the wall clock (None: never).

    It may be ended before that (``end``). Whatever goes on for long on somebody's behalf has to watch for it (``watch``).
    """

    __slots__ = ("_grants", "_watchers", "expires_ms", "subject")

    def __init__(self, subject: str, grants: Mapping[str, int], expires_ms: int | None = None) -> None:
        self.subject = subject
        self.expires_ms = expires_ms
        self._grants = dict(grants)
        self._watchers: set[Callable[[], None]] = set()

    def watch(self, when_ended: Callable[[], None]) -> None:
        """Be called when it is ended before its time. To be undone with ``unwatch``."""
        self._watchers.add(when_ended)

    def unwatch(self, when_ended: Callable[[], None]) -> None:
        """Be called no longer; fine if that was not asked for."""
        self._watchers.discard(when_ended)

    def end(self) -> None:
        """Have it end now, for good, and tell those who watch."""
        self.expires_ms = 0
        watchers, self._watchers = self._watchers, set()
        for each in watchers:
            each()

    def may(self, namespace: str, right: Right) -> bool:
        """Tell whether a right is held in a namespace; ``*`` asks for the whole server."""
        held = self._grants.get(namespace, 0) | self._grants.get(ANYWHERE, 0)
        return held & right == right

    def tenant(self, namespace: str) -> str:
        """Return the namespace that a connection is counted for which is to be about ``namespace``.

        That is another one, of its own, if no right is held there: nobody is counted for a namespace of others.
        """
        if ANYWHERE in self._grants or namespace in self._grants or not self._grants:
            return namespace if self._grants else ""
        return min(self._grants)

    def check(self, namespace: str, right: Right) -> None:
        """Raise Forbidden, saying what would be needed, unless a right is held in a namespace."""
        if self.may(namespace, right):
            return
        where = "the whole server" if namespace == ANYWHERE else f"the namespace {namespace!r}"
        remedy = (
            "" if self._grants else f" None of its claims {_CLAIMS} grants anything; JWT_DEFAULT_SCOPES is for such tokens."
        )
        raise Forbidden(f"This token may not do that in {where}. It needs the scope '{namespace}:{_REMEDY[right]}'.{remedy}")

    def expired(self, now_ms: int) -> bool:
        """Tell whether it has ended."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


#: Who shows a token that opens everything.
EVERYBODY: Final = Identity("", {ANYWHERE: EVERYTHING})


def grants_of(claims: Mapping[str, Any], default_scopes: Sequence[str] = ()) -> dict[str, int]:
    """Read what a token grants. Raises Unauthorized, naming the claim, if one of them cannot be understood.

    ``scopes``, ``scope`` and ``scp`` say what: ``namespace:word``, or a word alone for every namespace. ``allowed_namespaces``
    say where, a list or ``"*"``. A token with both is held to both; one with the latter only may do everything there. A token
    with neither has ``default_scopes``, none if there are none.
    """
    namespaces = claims.get(_NAMESPACES)
    allowed = {ANYWHERE} if namespaces is None else set(_texts(namespaces, _NAMESPACES))
    if "" in allowed:
        raise Unauthorized(f"The token's claim {_NAMESPACES} has an empty namespace. Name it, or leave it out.")
    given = {name: _texts(claims[name], name) for name in _SCOPES if claims.get(name) is not None}
    if not given and namespaces is not None:
        return dict.fromkeys(allowed, int(EVERYTHING))
    grants: dict[str, int] = {}
    for name, scopes in given.items() if given else (("jwt_default_scopes", default_scopes),):
        for scope in scopes:
            namespace, colon, word = scope.rpartition(":")  # a namespace may have colons in its name
            right = WORDS.get(word)
            if right is None:  # what we do not know grants nothing
                continue
            if colon and not namespace:
                raise Unauthorized(
                    f"The token's claim {name} has the scope {scope!r}, whose namespace is empty. Name it, or say *."
                )
            for where in _within(namespace or ANYWHERE, allowed):
                grants[where] = grants.get(where, 0) | right
    return grants


def _within(namespace: str, allowed: set[str]) -> set[str]:
    """Return the part of a scope's namespace that is allowed."""
    if namespace == ANYWHERE:
        return allowed
    return {namespace} if namespace in allowed or ANYWHERE in allowed else set()


def _texts(value: object, name: str) -> list[str]:
    texts = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise Unauthorized(f"The token's claim {name} must be a list of strings, or a string. Have it issued with one.")
    if len(texts) > limits.token_grants_max:
        raise Unauthorized(f"The token's claim {name} is too long (max {limits.token_grants_max} items).")
    return texts
