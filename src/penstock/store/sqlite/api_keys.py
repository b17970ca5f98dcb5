"""API keys in the SQLite store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.apikey import ApiKey
from penstock.core.errors import TooMany

if TYPE_CHECKING:
    import apsw

_ALL = """
select id, digest, namespaces, roles, label, created_at, expires_at, revoked_at from api_keys order by created_at, id
"""
_ADD = "insert into api_keys values (?, ?, ?, ?, ?, ?, ?, ?)"
# A revoked or expired key is deleted if room is needed, the oldest of them first.
_MAKE_ROOM = """
delete from api_keys where id in (
  select id from api_keys where revoked_at is not null or expires_at <= ?1
  order by coalesce(revoked_at, expires_at), id limit max(0, (select count(*) from api_keys) - ?2 + 1))
"""


def read(db: apsw.Connection) -> list[ApiKey]:
    """Read all keys, oldest first."""
    return [
        ApiKey(key_id, digest, tuple(namespaces.split(",")), tuple(roles.split(",")), *others)
        for key_id, digest, namespaces, roles, *others in db.execute(_ALL)
    ]


def add(db: apsw.Connection, key: ApiKey, most: int) -> None:
    """Write a new key, if there is room. Raises TooMany."""
    with db:
        db.execute(_MAKE_ROOM, (key.created_at, most))
        (count,) = next(iter(db.execute("select count(*) from api_keys")))
        if count >= most:
            raise TooMany(f"There are {count} API keys, and no more can be kept. Revoke unused ones.")
        scope = ",".join(key.namespaces), ",".join(key.roles)
        times = key.created_at, key.expires_at, key.revoked_at
        db.execute(_ADD, (key.id, key.digest, *scope, key.label, *times))


def revoke(db: apsw.Connection, key_id: str, now_ms: int) -> bool:
    """Mark a key as revoked, unless it already is; return whether there is such a key."""
    with db:
        db.execute("update api_keys set revoked_at = ? where id = ? and revoked_at is null", (now_ms, key_id))
    return bool(list(db.execute("select 1 from api_keys where id = ?", (key_id,))))
