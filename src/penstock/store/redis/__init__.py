"""What Penstock keeps in Redis: never the only copy of anything."""

from penstock.store.redis.buffers import Buffers
from penstock.store.redis.connect import RedisLink
from penstock.store.redis.lists import ReadyLists

__all__ = ["Buffers", "ReadyLists", "RedisLink"]
