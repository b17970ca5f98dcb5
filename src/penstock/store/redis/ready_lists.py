"""Ready lists: the next jobs of hot queues, already leased to the servers, to be delivered without a query of the database.

All servers of a shard share them. A list contains the best jobs of its queue, in order: priority, then position. A job that
becomes ready later and comes before one in the list is *offered*: from then on no job behind it is delivered until a server
has fetched it from the database.

Everything here belongs to a generation, a number that the database assigns. If Redis loses data, or a server is not sure
about its own data, the generation is ended, and no server reads it again: see ``engine.prefetch``.

A server that fetches jobs for a list, or takes them back, holds its lock; a server whose lock has expired is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.core.errors import FastPathFailed
from penstock.core.job import Delivery, JobRecord, Payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.store.redis.connect import RedisLink

    Script = Callable[..., Awaitable[Any]]

#: Keys that are neither filled nor read expire after this long (s): those of lists that were given up. Lists in use never
#: do, and unused ones are taken back after seconds. If a list expires that is recorded in the database, because all servers
#: were stopped or cut off, it counts as lost: the leases of its jobs in the database end, and nothing is missing.
KEEP_S: Final = 120
#: How long a server may take to fetch jobs for a list (ms).
LOCK_MS: Final = 5_000

_ALIVE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return false end
"""
# A script that has written something may write more when Redis is out of memory. This is for scripts that write little, and
# without which a list cannot be used or taken back.
_SMALL = """
redis.call('hdel', KEYS[4], '')
"""
# Take the lock: 0 if another server has it, else 1, how many the list has, the number of offers so far, bytes of the jobs.
_PLAN = (
    _SMALL
    + """
if not redis.call('set', KEYS[5], ARGV[1], 'nx', 'px', ARGV[2]) then return {0} end
local offers, bytes = unpack(redis.call('hmget', KEYS[4], 'offers', 'bytes'))
return {1, redis.call('zcard', KEYS[2]), tonumber(offers or '0'), tonumber(bytes or '0')}
"""
)
# Add jobs, and delete the offers that were made before they were fetched: these are among them, or gone. If more jobs wait in
# the database behind a place, that place is an offer, too: jobs behind it are not delivered before these are fetched.
# The first command that writes must be one that Redis refuses when it is out of memory.
_FILL = """
if redis.call('get', KEYS[5]) ~= ARGV[2] then return -1 end
if redis.call('get', KEYS[1]) ~= ARGV[1] then return false end
local size = 0
for i = 7, #ARGV, 2 do
  redis.call('zadd', KEYS[2], 0, ARGV[i])
  redis.call('hset', KEYS[3], ARGV[i], ARGV[i + 1])
  size = size + #ARGV[i + 1]
end
redis.call('zremrangebyscore', KEYS[6], '-inf', ARGV[3])
if ARGV[6] ~= '' then redis.call('zadd', KEYS[6], redis.call('hincrby', KEYS[4], 'offers', 1), ARGV[6]) end
local last = redis.call('zrange', KEYS[2], -1, -1)[1]
local low = false
for _, key in ipairs(redis.call('zrange', KEYS[6], 0, -1)) do
  if last and key < last then
    if not low or key < low then low = key end
  else redis.call('zrem', KEYS[6], key) end
end
if low then redis.call('hset', KEYS[4], 'low', low) else redis.call('hdel', KEYS[4], 'low') end
redis.call('hset', KEYS[4], 'filled', ARGV[5])
for _, key in ipairs({KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]}) do redis.call('expire', key, ARGV[4]) end
redis.call('del', KEYS[5])
return {redis.call('zcard', KEYS[2]), redis.call('hincrby', KEYS[4], 'bytes', size)}
"""
# Take jobs from the front, but none behind an offer: how many are left, whether an offer was in the way, the bytes of those
# that are left, the jobs.
_POP = (
    _ALIVE
    + """
if redis.call('ttl', KEYS[1]) < ARGV[3] / 2 or redis.call('ttl', KEYS[2]) < ARGV[3] / 2 then
  for _, key in ipairs({KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]}) do redis.call('expire', key, ARGV[3]) end
end
local members = redis.call('zrange', KEYS[2], 0, ARGV[2] - 1)
local low = redis.call('hget', KEYS[4], 'low')
local overtaken = 0
if low then
  for i, member in ipairs(members) do
    if member > low then
      overtaken = 1
      for j = #members, i, -1 do members[j] = nil end
      break
    end
  end
end
if #members == 0 then
  return {redis.call('zcard', KEYS[2]), overtaken, tonumber(redis.call('hget', KEYS[4], 'bytes') or '0')}
end
local bodies = redis.call('hmget', KEYS[3], unpack(members))
redis.call('zrem', KEYS[2], unpack(members))
redis.call('hdel', KEYS[3], unpack(members))
local size = 0
for _, body in ipairs(bodies) do size = size + #body end
table.insert(bodies, 1, redis.call('hincrby', KEYS[4], 'bytes', -size))
table.insert(bodies, 1, overtaken)
table.insert(bodies, 1, redis.call('zcard', KEYS[2]))
return bodies
"""
)
_OFFER = (
    _SMALL
    + """
local key = ARGV[2]
local last = redis.call('zrange', KEYS[2], -1, -1)[1]
if redis.call('exists', KEYS[5]) == 0 and (not last or key > last) then return 0 end
redis.call('zadd', KEYS[6], redis.call('hincrby', KEYS[4], 'offers', 1), key)
local low = redis.call('hget', KEYS[4], 'low')
if not low or key < low then redis.call('hset', KEYS[4], 'low', key) end
redis.call('expire', KEYS[4], ARGV[3])
redis.call('expire', KEYS[6], ARGV[3])
return 1
"""
)
# Take all jobs and keep the lock, whichever server had it: jobs that are being fetched for this list now are refused.
_DRAIN = (
    _ALIVE.replace("return false", "return {2}")
    + """
local since = tonumber(redis.call('hget', KEYS[4], 'filled') or '0')
if since > tonumber(ARGV[4]) then return {0} end
local bodies = redis.call('hvals', KEYS[3])
redis.call('del', KEYS[2], KEYS[3], KEYS[4], KEYS[6])
redis.call('set', KEYS[5], ARGV[2], 'px', ARGV[3])
table.insert(bodies, 1, 1)
return bodies
"""
)
# Remove some jobs that a request names: which of them were there.
_REMOVE = """
local found = {}
for _, member in ipairs(ARGV) do
  if redis.call('zrem', KEYS[2], member) == 1 then
    redis.call('hincrby', KEYS[4], 'bytes', -redis.call('hstrlen', KEYS[3], member))
    redis.call('hdel', KEYS[3], member)
    found[#found + 1] = member
  end
end
return found
"""
_BEGIN = _SMALL + "return redis.call('set', KEYS[1], ARGV[1], 'ex', ARGV[2])"
_UNLOCK = "if redis.call('get', KEYS[5]) == ARGV[1] then redis.call('del', KEYS[5]) end return 1"


class _Entry(msgspec.Struct, array_like=True, gc=False):
    job: JobRecord
    data: bytes
    options: bytes | None


class ListLock(NamedTuple):
    """The lock of a list."""

    holder: str
    length: int  #: number of its jobs
    offers: int  #: number of offers so far
    bytes: int  #: size of its jobs


class ListSize(NamedTuple):
    """The size of a list."""

    length: int  #: number of its jobs
    bytes: int


class Taken(NamedTuple):
    """Jobs that were taken from a list."""

    jobs: list[Delivery]
    left: int
    overtaken: bool  #: a better job is in the database
    bytes: int  #: size of the jobs that are left


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode


def place_of(job: JobRecord) -> str:
    """Return a job's position as text, so that texts sort as jobs do."""
    return f"{0x7FFFFFFF - job.priority:08x}{job.position + (1 << 63):016x}"


class RedisReadyLists:
    """The lists of one shard.

    ``identity`` separates its keys from those of other shards. All methods may raise FastPathFailed.
    """

    def __init__(self, link: RedisLink, identity: Callable[[], str]) -> None:
        self._link = link
        self._identity = identity
        self._begin = link.script(_BEGIN)
        self._plan = link.script(_PLAN)
        self._fill = link.script(_FILL)
        self._pop = link.script(_POP)
        self._offer = link.script(_OFFER)
        self._drain = link.script(_DRAIN)
        self._unlock = link.script(_UNLOCK)
        self._remove = link.script(_REMOVE)

    @property
    def link(self) -> RedisLink:
        """The connection to Redis."""
        return self._link

    def _keys(self, generation: int, queue: int) -> list[str]:
        start = f"penstock:{{{self._identity()}}}:{generation}"
        return [f"{start}:alive", *(f"{start}:{queue}:{part}" for part in ("order", "jobs", "state", "lock", "offers"))]

    async def plan(self, generation: int, queue: int, holder: str) -> ListLock | None:
        """Take the lock of a list; None if another server has it."""
        answer = await self._run(self._plan, generation, queue, [holder, LOCK_MS])
        return ListLock(holder, *answer[1:]) if answer[0] else None

    async def begin(self, generation: int) -> None:
        """Start a generation without any data in Redis."""
        run_id = await self._run_id()
        await self._run(self._begin, generation, 0, [run_id, KEEP_S])

    async def fill(
        self,
        generation: int,
        queue: int,
        plan: ListLock,
        jobs: Sequence[Delivery],
        *,
        now_ms: int,
        cut_at: JobRecord | None = None,
    ) -> ListSize | None:
        """Add jobs and release the lock; return the new size of the list, None if the lock was lost: nothing was added.

        ``cut_at``: more jobs wait in the database, all of them behind this one. Raises FastPathFull if nothing was added
        because Redis is out of memory; the lock is kept. Raises FastPathFailed if Redis has lost the lists.
        """
        run_id = await self._run_id()
        parts: list[str | bytes | int] = [run_id, plan.holder, plan.offers, KEEP_S, now_ms]
        parts.append("" if cut_at is None else _member(cut_at))
        for job, payload in jobs:
            parts += (_member(job), _encode(_Entry(job, payload.data, payload.options)))
        answer = await self._run(self._fill, generation, queue, parts)
        if answer is None:
            raise FastPathFailed("Redis has lost the ready lists.")
        return None if answer == -1 else ListSize(*answer)

    async def pop(self, generation: int, queue: int, count: int) -> Taken:
        """Take up to ``count`` jobs from the front."""
        answer = await self._run(self._pop, generation, queue, [await self._run_id(), count, KEEP_S])
        if answer is None:
            raise FastPathFailed("Redis has lost the ready lists.")
        left, overtaken, size, *bodies = answer
        return Taken([_read(body) for body in bodies], left, bool(overtaken), size)

    async def offer(self, generation: int, queue: int, place: str) -> None:
        """Stop the delivery of jobs behind a position until the database was queried."""
        await self._run(self._offer, generation, queue, ["", place, KEEP_S])

    async def drain(
        self, generation: int, queue: int, holder: str, filled_before_ms: int, *, known: bool
    ) -> list[Delivery] | None:
        """Take all jobs, and the lock; None if the list was filled since then.

        ``known``: the database has this list. Raises FastPathFailed if Redis does not have it.
        """
        answer = await self._run(self._drain, generation, queue, [await self._run_id(), holder, LOCK_MS, filled_before_ms])
        done, *bodies = answer
        if done == 2 and known:
            raise FastPathFailed("Redis has lost the ready lists.")
        return [_read(body) for body in bodies] if done else None

    async def remove(self, generation: int, queue: int, jobs: Sequence[JobRecord]) -> set[int]:
        """Remove some jobs from a list; return the ids of those that were on it, so that they were not delivered."""
        members = {_member(job).encode(): job.id for job in jobs}
        return {members[each] for each in await self._run(self._remove, generation, queue, list(members))}

    async def unlock(self, generation: int, queue: int, holder: str) -> None:
        """Release a lock."""
        await self._run(self._unlock, generation, queue, [holder])

    async def _run_id(self) -> str:
        return self._link.master or await self._link.check()

    async def _run(self, script: Script, generation: int, queue: int, args: Sequence[str | bytes | int]) -> Any:
        return await self._link.run(lambda: script(keys=self._keys(generation, queue), args=args))


def _member(job: JobRecord) -> str:
    return f"{place_of(job)}{job.id:016x}"


def _read(body: bytes) -> Delivery:
    entry = _decode(body)
    return Delivery(entry.job, Payload(entry.data, entry.options))
