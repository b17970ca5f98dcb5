"""Data of Penstock in Redis: never the only copy."""

from penstock.store.redis.buffer_copies import BufferCopies
from penstock.store.redis.connect import RedisLink
from penstock.store.redis.ready_lists import RedisReadyLists

__all__ = ["BufferCopies", "RedisLink", "RedisReadyLists"]
