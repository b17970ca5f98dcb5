"""Connections to Redis: to one server, or to the current master of its Sentinels."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from penstock.core import limits
from penstock.core.breaker import Breaker
from penstock.core.errors import ConfigInvalid, FastPathFailed, FastPathFull

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import Clock

log = structlog.get_logger("penstock.redis")

CONNECT_S: Final = 1.0
#: A Redis that does not answer for this long is not used.
ANSWER_S: Final = 1.0
SENTINEL_PORT: Final = 26379
#: In the text of an error of Redis, also of a script.
_OUT_OF_MEMORY: Final = "OOM command not allowed"


class RedisLink:
    """Runs commands, and records which server answers them. Every failure is a FastPathFailed: callers must work without Redis.

    ``url``: see the setting ``redis``. A command is never sent twice: it may have run although no answer came.
    Up to ``limits.redis_connections_max`` commands run at the same time, each on its own connection; the others wait in order.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.breaker = Breaker(clock)
        self._memory = Breaker(clock, rest_ms=limits.fast_rest_ms, rest_ms_max=limits.fast_rest_ms)
        self.master: str | None = None  #: the run id of the server: another one has other data
        self._redis, self._sentinels = _clients(url)
        # The pools of redis-py raise an error when no connection is free; the one that waits does not work with Sentinels.
        self._places = asyncio.Semaphore(limits.redis_connections_max)

    @property
    def is_full(self) -> bool:
        """Whether Redis was out of memory a moment ago (``limits.fast_rest_ms``)."""
        return self._memory.is_open

    async def close(self) -> None:
        """Close the connections."""
        for client in (self._redis, *self._sentinels):
            await client.aclose()

    def script(self, text: str) -> Callable[..., Awaitable[Any]]:
        """Return a function that runs a Lua script on ``keys`` with ``args``."""
        return self._redis.register_script(text)

    async def check(self) -> str:
        """Read the run id of the server. Raises FastPathFailed."""
        found: dict[str, Any] = await self.run(lambda: self._redis.info("server"))
        run_id = str(found["run_id"])
        if run_id != self.master:
            log.info("Redis answers again", run_id=run_id, before=self.master)
            self.master = run_id
        return run_id

    async def run(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Run a command. Raises FastPathFailed, at once while Redis is known to be failing, or FastPathFull."""
        self._check()
        async with self._places:
            self._check()  # Redis may have failed during the wait
            return await self._run(ask)

    def _check(self) -> None:
        if not self.breaker.allows():
            raise FastPathFailed("Redis is not used for a moment, after a failure.")

    async def _run(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            answer = await ask()
        except (RedisError, OSError, TimeoutError) as error:
            if _OUT_OF_MEMORY in str(error):  # it works, and refuses to store more
                if not self._memory.is_open:
                    log.warning("redis is out of memory: no new ready lists for a moment", error=str(error))
                self._memory.failed()
                raise FastPathFull(f"Redis is out of memory: {error}") from error
            self.master = None  # the run id must be read again from the next server
            self.breaker.failed()
            await self._hang_up()
            log.warning("Redis failed: the server continues without it", error=str(error) or type(error).__name__)
            raise FastPathFailed(f"Redis failed: {error}") from error
        self.breaker.worked()
        return answer

    async def _hang_up(self) -> None:
        """Close the connections, so that the next command connects to the current master."""
        pool = self._redis.connection_pool
        await pool.disconnect(inuse_connections=False)


def _clients(url: str) -> tuple[Redis, list[Redis]]:
    """Return the client of the master, and the clients of the Sentinels, if there are any."""
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": ANSWER_S,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "client_name": "penstock",
        "max_connections": limits.redis_connections_max,
        "protocol": 2,
    }
    parts = urlsplit(url)
    try:
        if not parts.scheme.startswith("sentinel"):
            return Redis.from_url(url, **options), []
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        if password:
            options["password"] = unquote(password)
            if user:
                options["username"] = unquote(user)
        if parts.scheme == "sentinels":
            options |= {"ssl": True, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        sentinels = [_address(host) for host in hosts.split(",")]
        asking: dict[str, Any] = {"socket_connect_timeout": CONNECT_S, "socket_timeout": ANSWER_S}
        if "sentinel_password" in query:
            asking["password"] = query["sentinel_password"]
        guards = Sentinel(sentinels, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        master = guards.master_for(parts.path.strip("/"), db=int(query.get("db", "0")), **options)
        return master, guards.sentinels
    except ValueError:  # its text may contain a part of the password
        raise ConfigInvalid(
            "The address given by --redis is not right. Check its port and the number of its database, and percent-encode "
            "special characters in its password, such as / as %2F."
        ) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port or SENTINEL_PORT)
