"""Handlers of API keys: create, list, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import structlog

from penstock.access.api_keys import check_request
from penstock.access.identity import ANYWHERE, Right
from penstock.core.errors import Forbidden, KeyNotFound
from penstock.doors.http.body import BodyReader
from penstock.doors.http.namespace import check_namespace
from penstock.doors.http.route import Route
from penstock.doors.ops.replies import OpsReply

if TYPE_CHECKING:
    from penstock.access.api_keys import ApiKeys
    from penstock.access.authenticator import Authenticator
    from penstock.core.apikey import ApiKey
    from penstock.doors.http.request import Request

log = structlog.get_logger("penstock.access")


class KeyBody(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A request for a key. ``*`` is every namespace; roles are produce, consume and admin."""

    namespaces: list[str]
    roles: list[str]
    label: str = ""
    expires_in_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None  #: null: valid until it is revoked


class KeyView(OpsReply):
    """A key, without its secret."""

    id: str
    prefix: str  #: the beginning of the key
    label: str
    namespaces: list[str]
    roles: list[str]
    created_at: int
    expires_at: int | None
    revoked_at: int | None


class KeyReply(OpsReply):
    """A new key. ``secret`` is the value of X-Api-Key; it is returned only once."""

    ok: bool
    key: KeyView
    secret: str


class KeysReply(OpsReply):
    """The keys whose namespaces the caller administers, oldest first."""

    ok: bool
    keys: list[KeyView]


class RevokedReply(OpsReply):
    """The answer to a revocation: the key is no longer valid."""

    ok: bool


_BODY = BodyReader(KeyBody)


class KeyHandlers:
    """One method per route. An administrator of all namespaces of a key may manage it; other clients do not see it."""

    def __init__(self, keys: ApiKeys, authenticator: Authenticator) -> None:
        self._keys = keys
        self._authenticator = authenticator

    async def make(self, req: Request) -> KeyReply:
        body = await _BODY.read(req)
        wish = check_request(body.namespaces, body.roles, body.label, body.expires_in_ms)
        for namespace in wish.namespaces:
            if namespace != ANYWHERE:
                check_namespace(namespace, "namespaces")
            req.allow(namespace, Right.ADMIN)
        if self._authenticator.is_open:
            # The first key enables authentication for all clients. An unauthenticated client must not decide that.
            raise Forbidden(
                "This server has no authentication, so the first key cannot be created over the network. Create it with "
                "penstock keys create on the machine of the store, or set auth_tokens or api_key."
            )
        made = await self._keys.make(wish)
        by = req.identity.subject or "a token"
        log.info("an API key was created", key=made.key.id, namespaces=wish.namespaces, roles=wish.roles, by=by)
        return KeyReply(ok=True, key=_view(made.key), secret=made.text)

    async def listing(self, req: Request) -> KeysReply:
        return KeysReply(ok=True, keys=[_view(key) for key in self._keys.listed() if _administers(req, key)])

    async def revoke(self, req: Request, id: str) -> RevokedReply:
        if not _administers(req, self._keys.find(id)):
            raise KeyNotFound
        await self._keys.revoke(id)
        log.info("an API key was revoked", key=id, by=req.identity.subject or "a token")
        return RevokedReply(ok=True)

    def routes(self) -> list[Route]:
        """Return the routes for administrators."""
        tag = "Keys"
        return [
            Route("GET", "/keys", self.listing, "List API keys", tag, KeysReply, asks=True),
            Route("POST", "/keys", self.make, "Create an API key", tag, KeyReply, body=_BODY, body_required=True, asks=True),
            Route("DELETE", "/keys/{id}", self.revoke, "Revoke an API key", tag, RevokedReply, asks=True),
        ]


def _administers(req: Request, key: ApiKey) -> bool:
    return all(req.identity.may(namespace, Right.ADMIN) for namespace in key.namespaces)


def _view(key: ApiKey) -> KeyView:
    return KeyView(
        id=key.id,
        prefix=key.prefix,
        label=key.label,
        namespaces=list(key.namespaces),
        roles=list(key.roles),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )
