"""Identities of clients, and their rights per namespace."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

from penstock.core import limits
from penstock.core.errors import Forbidden, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence


class Right(IntFlag):
    """The rights that a request needs. ``NONE``: authentication only."""

    NONE = 0
    LOOK = 1  #: read queues, jobs, events
    PRODUCE = 2  #: push jobs
    TAKE = 4  #: claim jobs
    SETTLE = 8  #: settle jobs
    ADMIN = 16  #: all other actions


EVERYTHING: Final = Right.LOOK | Right.PRODUCE | Right.TAKE | Right.SETTLE | Right.ADMIN
#: All namespaces, and the server as a whole.
ANYWHERE: Final = "*"
#: The last words of scopes.
WORDS: Final[Mapping[str, Right]] = {
    "read": Right.LOOK | Right.TAKE,
    "write": Right.PRODUCE | Right.SETTLE,
    "produce": Right.LOOK | Right.PRODUCE,
    "consume": Right.LOOK | Right.TAKE | Right.SETTLE,
    "admin": EVERYTHING,
    "*": EVERYTHING,
}
#: The claims of a token that have scopes, ours and those of OAuth: a list, or a text with spaces. All of them count.
_SCOPES: Final = ("scopes", "scope", "scp")
_NAMESPACES: Final = "allowed_namespaces"
_CLAIMS: Final = ", ".join((*_SCOPES, _NAMESPACES))
#: The scope to request when a right is missing.
_REMEDY: Final[Mapping[Right, str]] = {
    Right.LOOK: "read",
    Right.PRODUCE: "produce",
    Right.TAKE: "consume",
    Right.SETTLE: "consume",
    Right.ADMIN: "admin",
}


class Identity:
    """An authenticated client. ``grants``: rights by namespace; ``expires_ms``: wall clock (None: it does not expire).

    It may end earlier (``end``). Long-running work for it must watch for that (``watch``).
    """

    __slots__ = ("_grants", "_watchers", "expires_ms", "subject")

    def __init__(self, subject: str, grants: Mapping[str, int], expires_ms: int | None = None) -> None:
        self.subject = subject
        self.expires_ms = expires_ms
        self._grants = dict(grants)
        self._watchers: set[Callable[[], None]] = set()

    def watch(self, when_ended: Callable[[], None]) -> None:
        """Call ``when_ended`` if the identity ends early. Undo this with ``unwatch``."""
        self._watchers.add(when_ended)

    def unwatch(self, when_ended: Callable[[], None]) -> None:
        """Undo ``watch``. It is safe to call this without it."""
        self._watchers.discard(when_ended)

    def end(self) -> None:
        """End the identity permanently, and notify those that watch it."""
        self.expires_ms = 0
        watchers, self._watchers = self._watchers, set()
        for each in watchers:
            each()

    def may(self, namespace: str, right: Right) -> bool:
        """Return whether it has a right in a namespace; ``*``: for the whole server."""
        held = self._grants.get(namespace, 0) | self._grants.get(ANYWHERE, 0)
        return held & right == right

    def among(self, namespaces: Container[str], right: Right) -> list[str] | None:
        """Return those of some namespaces in which it has a right; None: in all. The cost grows with its own rights only."""
        if self.may(ANYWHERE, right):
            return None
        return [each for each in self._grants if each in namespaces and self.may(each, right)]

    def tenant(self, namespace: str) -> str:
        """Return the namespace for which a connection to ``namespace`` is counted.

        If the identity has no right there, this is one of the namespaces where it has rights, because a client must not use
        up the limits of others.
        """
        if ANYWHERE in self._grants or namespace in self._grants or not self._grants:
            return namespace if self._grants else ""
        return min(self._grants)

    def check_any(self, namespace: str) -> None:
        """Raise Forbidden if it has no right at all in a namespace."""
        if ANYWHERE not in self._grants and namespace not in self._grants:
            raise Forbidden(
                f"This token has no permission in the namespace {namespace!r}. Choose one of its own, or use another token."
            )

    @property
    def is_restricted(self) -> bool:
        """Return whether it has rights in some namespaces only."""
        return ANYWHERE not in self._grants

    def holder(self, namespace: str, network: str) -> str:
        """Return the name under which the memory and the connections of this client are counted.

        A tenant can get several keys or tokens, so all of a namespace are one holder. An identity with rights everywhere is
        a holder of its own, or ``network``, the network of its address, if it has no name.
        """
        if self.is_restricted:
            return f"namespace {self.tenant(namespace)}"
        return f"identity {self.subject}" if self.subject else network

    def check(self, namespace: str, right: Right) -> None:
        """Raise Forbidden, with the missing scope, unless it has a right in a namespace."""
        if self.may(namespace, right):
            return
        where = "the whole server" if namespace == ANYWHERE else f"the namespace {namespace!r}"
        remedy = (
            "" if self._grants else f" None of its claims {_CLAIMS} grants anything; JWT_DEFAULT_SCOPES is for such tokens."
        )
        raise Forbidden(
            f"This token has no permission for this in {where}. It needs the scope '{namespace}:{_REMEDY[right]}'.{remedy}"
        )

    def expired(self, now_ms: int) -> bool:
        """Return whether it has ended."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


#: The identity of a token with all rights.
UNRESTRICTED: Final = Identity("", {ANYWHERE: EVERYTHING})


def grants_of(claims: Mapping[str, Any], default_scopes: Sequence[str] = ()) -> dict[str, int]:
    """Return the rights of a token. Raises Unauthorized, with the name of the claim, if a claim is invalid.

    ``scopes``, ``scope`` and ``scp`` have the rights: ``namespace:word``, or a word alone for every namespace.
    ``allowed_namespaces`` has the namespaces: a list or ``"*"``. A token with both is limited by both; a token with only the
    latter has all rights there. A token with neither has ``default_scopes``, or no rights if there are none.
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
            if right is None:  # unknown words grant nothing
                continue
            if colon and not namespace:
                raise Unauthorized(
                    f"The token's claim {name} has the scope {scope!r}, whose namespace is empty. Name it, or use *."
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
        raise Unauthorized(f"The token's claim {name} must be a list of strings, or a string. Request one from the issuer.")
    if len(texts) > limits.token_grants_max:
        raise Unauthorized(f"The token's claim {name} is too long (max {limits.token_grants_max} items).")
    return texts
