"""Connections to a shard, set up for many small transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg import Connection

from penstock.core.errors import ConfigInvalid, StorageFailed
from penstock.masking import masked
from penstock.store.postgres.errors import is_lost, reason_of
from penstock.store.postgres.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Coroutine

CONNECT_S: Final = 10.0
STATEMENT_S: Final = 30.0
#: A server that stops in the middle of a transaction (stopped, swapped out) must not delay the others for long.
IDLE_IN_TRANSACTION_MS: Final = 5_000
LOCK_WAIT_MS: Final = 10_000
#: For transactions, shorter than IDLE_IN_TRANSACTION_MS: while a server stops inside a transaction, its other transactions
#: may wait in the database for that one. They must have failed when it is aborted; otherwise each would delay all servers in
#: turn, for as long again. A server that works normally tries again after such a failure.
WRITER_LOCK_WAIT_MS: Final = 4_000

_SETTINGS: Final = {
    "application_name": "penstock",
    "search_path": SCHEMA,
    "timezone": "UTC",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",  # one client's read takes one processor of the database, for any amount of data
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    "lock_timeout": str(LOCK_WAIT_MS),
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
#: Every statement of the writer finds its rows by an index, also when the statistics are of a table that was empty shortly
#: before; and planning a statement for each batch would cost more than running it.
_WRITER: Final = {
    "lock_timeout": str(WRITER_LOCK_WAIT_MS),
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "synchronous_commit": "on",
}
#: A database that has not answered a minimal query for this long counts as lost, unless the configuration sets another time:
#: its network may hang. The answer is checked this many times meanwhile, so that a server that was stopped itself (for
#: example with its whole machine) finds the answer that has arrived since, and does not count its own pause as the
#: database's. At most half of STATEMENT_S: several callers query in turn, and all of them within a server's lease of its
#: number.
ANSWER_MS: Final = 5_000
ANSWER_LOOKS: Final = 10
#: A slow answer is logged after this part of that time.
_SLOW: Final = 3 / 5
_COUNTER: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "synchronous_commit": "off",
}


#: A bulk read is one long transaction, and between two fetches the rows are written to files.
_BULK: Final = {"idle_in_transaction_session_timeout": "120000", "default_transaction_read_only": "on"}


async def connect(
    url: str,
    *,
    writer: bool = False,
    quick: bool = False,
    counter: bool = False,
    bulk: bool = False,
    answer_ms: int = ANSWER_MS,
) -> Connection:
    """Open a connection. Raises StorageFailed if the database cannot be reached, ConfigInvalid if it refuses the user.

    ``writer``: for transactions. ``quick``: for queries that are answered at once, or fail; see ``answered``. ``counter``:
    for such queries that count, which need not survive a crash. ``answer_ms``: the limit for these two; default 5 s.
    ``bulk``: only for reading large amounts.
    """
    at_once = {"statement_timeout": str(int(answer_ms * _SLOW))} if quick or counter else {}
    settings = _SETTINGS | (_WRITER if writer else {}) | at_once | (_COUNTER if counter else {})
    settings |= _BULK if bulk else {}
    try:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_S,
            command_timeout=answer_ms / 1_000 if counter else STATEMENT_S,
            server_settings=settings,
            statement_cache_size=256,
        )
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.ClientConfigurationError,
    ) as error:
        said = masked(str(error))
        raise ConfigInvalid(f"The database refuses the connection: {said}. Check the address that --store sets.") from error
    except ValueError:  # its text may contain a part of the password
        raise ConfigInvalid(
            "The address given by --store cannot be read. Percent-encode special characters in its password, such as / as %2F."
        ) from None
    except Exception as error:
        if is_lost(error) or isinstance(error, asyncpg.PostgresError):  # it is starting, or accepts no connections now
            reason = reason_of(error)
            raise StorageFailed(f"The database cannot be reached: {reason}. The server retries automatically.") from error
        raise


async def answered(question: Coroutine[Any, Any, Any], answer_ms: int) -> Any:
    """Return the answer to a query. Raises TimeoutError if none arrives for that long while this server runs."""
    asked = asyncio.ensure_future(question)
    try:
        for _ in range(ANSWER_LOOKS):
            await asyncio.wait((asked,), timeout=answer_ms / 1_000 / ANSWER_LOOKS)
            if asked.done():
                return asked.result()
    finally:
        asked.cancel()
    raise TimeoutError
