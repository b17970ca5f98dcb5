"""API keys in PostgreSQL. Every change increments one number, so that other servers detect changes with a small query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.apikey import ApiKey
from penstock.core.errors import TooMany

if TYPE_CHECKING:
    from asyncpg import Connection

REVISION = "select revision from api_key_changes"
_ALL = """
select id, digest, namespaces, roles, label, created_at, expires_at, revoked_at from api_keys order by created_at, id
"""
# Concurrent changes of keys wait here for each other: their numbers become visible in order.
_COUNT_UP = "update api_key_changes set revision = revision + 1"
# A revoked or expired key is deleted if room is needed, the oldest of them first.
_MAKE_ROOM = """
delete from api_keys where id in (
  select id from api_keys where revoked_at is not null or expires_at <= $1
  order by coalesce(revoked_at, expires_at), id limit greatest(0, (select count(*) from api_keys) - $2::bigint + 1))
"""
_ADD = "insert into api_keys values ($1, $2, $3, $4, $5, $6, $7, $8)"
_REVOKE = "update api_keys set revoked_at = coalesce(revoked_at, $2) where id = $1 returning 1"


async def read(db: Connection) -> tuple[int, list[ApiKey]]:
    """Read all keys, oldest first, and the number of changes up to this state."""
    async with db.transaction(isolation="repeatable_read", readonly=True):
        revision: int = await db.fetchval(REVISION)
        rows = await db.fetch(_ALL)
    return revision, [
        ApiKey(key_id, digest, tuple(namespaces), tuple(roles), *others)
        for key_id, digest, namespaces, roles, *others in rows
    ]


async def add(db: Connection, key: ApiKey, most: int) -> None:
    """Write a new key, if there is room. Raises TooMany."""
    async with db.transaction():
        await db.execute(_COUNT_UP)
        await db.execute(_MAKE_ROOM, key.created_at, most)
        count = await db.fetchval("select count(*) from api_keys")
        if count >= most:
            raise TooMany(f"There are {count} API keys, and no more can be kept. Revoke unused ones.")
        scope = list(key.namespaces), list(key.roles)
        times = key.created_at, key.expires_at, key.revoked_at
        await db.execute(_ADD, key.id, key.digest, *scope, key.label, *times)


async def revoke(db: Connection, key_id: str, now_ms: int) -> bool:
    """Mark a key as revoked, unless it already is; return whether there is such a key."""
    async with db.transaction():
        await db.execute(_COUNT_UP)
        return await db.fetchval(_REVOKE, key_id, now_ms) is not None
