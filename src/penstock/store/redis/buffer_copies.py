"""Copies of the enqueue buffers in Redis, so that other servers can store the answered pushes of a server that has stopped.

Each server's log has one: a sorted set of its records by number, with a key that its owner renews. Redis may lose all of it:
the log on the owner's disk is authoritative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.store.enqueue_log import LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.store.redis.connect import RedisLink

#: Without a renewal for this long (ms), other servers store the owner's answered pushes.
OWNER_MS: Final = 10_000
_NUMBER_BYTES: Final = 8

# Without records, it is done even if Redis is out of memory: a script that has written something may write more.
_KEEP = """
if #ARGV == 2 then redis.call('del', KEYS[2]) end
redis.call('sadd', KEYS[1], ARGV[1])
redis.call('set', KEYS[2], 1, 'px', ARGV[2])
for i = 3, #ARGV, 2 do redis.call('zadd', KEYS[3], ARGV[i], ARGV[i + 1]) end
return 1
"""
_FORGET = """
redis.call('zremrangebyscore', KEYS[3], '-inf', ARGV[2])
if redis.call('zcard', KEYS[3]) == 0 and redis.call('exists', KEYS[2]) == 0 then redis.call('srem', KEYS[1], ARGV[1]) end
return 1
"""
_ORPHANS = """
local found = {}
for _, wal in ipairs(redis.call('smembers', KEYS[1])) do
  if redis.call('exists', KEYS[2] .. wal) == 0 then found[#found + 1] = wal end
end
return found
"""


class BufferCopies:
    """The copies of one shard.

    ``identity`` separates its keys from those of other shards. All methods may raise FastPathFailed.
    """

    def __init__(self, link: RedisLink, identity: Callable[[], str]) -> None:
        self._link = link
        self._identity = identity
        self._keep = link.script(_KEEP)
        self._forget = link.script(_FORGET)
        self._orphans = link.script(_ORPHANS)
        self._read = link.script("return redis.call('zrange', KEYS[3], 0, ARGV[1] - 1)")

    def _keys(self, log_number: int | str) -> list[str]:
        start = f"penstock:{{{self._identity()}}}:buffers"
        return [start, f"{start}:owner:{log_number}", f"{start}:records:{log_number}"]

    async def keep(self, log_number: int, records: Sequence[LogRecord]) -> None:
        """Store copies of records, and renew the owner's key."""
        parts: list[int | bytes] = [log_number, OWNER_MS]
        for number, body in records:
            parts += (number, number.to_bytes(_NUMBER_BYTES) + body)
        await self._run(self._keep, log_number, parts)

    async def forget(self, log_number: int, number: int) -> None:
        """Delete the records up to a number, because they are stored."""
        await self._run(self._forget, log_number, [log_number, number])

    async def orphans(self) -> list[int]:
        """Return the logs whose owners have not renewed their keys."""
        return [int(log_number) for log_number in await self._run(self._orphans, "", [])]

    async def read(self, log_number: int, limit: int) -> list[LogRecord]:
        """Return the first records of a log in Redis."""
        found: list[bytes] = await self._run(self._read, log_number, [limit])
        return [LogRecord(int.from_bytes(each[:_NUMBER_BYTES]), each[_NUMBER_BYTES:]) for each in found]

    async def _run(self, script: Any, log_number: int | str, args: Sequence[int | bytes]) -> Any:
        return await self._link.run(lambda: script(keys=self._keys(log_number), args=args))
