"""Conversion of errors of PostgreSQL and its connections."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import asyncpg

from penstock.core.errors import InvalidInput, RowChanged, ServerError, StorageFailed, StorageFull
from penstock.store.postgres.schema import CHANGED_STATE

if TYPE_CHECKING:
    from asyncpg import Connection

#: Conflicts between servers. Nothing was stored, and a retry helps.
_IN_THE_WAY = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.LockNotAvailableError,
)


#: Reasons for the loss of a database. The first matching kind counts.
_REASONS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((TimeoutError,), "it does not answer"),
    ((ConnectionRefusedError, FileNotFoundError), "nothing listens at its address"),
    ((socket.gaierror,), "the name of its host is not known"),
    (
        (asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, asyncpg.CannotConnectNowError),
        "it is starting or shutting down",
    ),
    ((asyncpg.TooManyConnectionsError,), "it takes no more connections"),
    ((asyncpg.QueryCanceledError,), "a statement took too long"),
    ((asyncpg.ReadOnlySQLTransactionError,), "it takes no writes, as a standby does"),
)


def translate(error: BaseException) -> ServerError | None:
    """Return the ServerError for an error of the database; None for other errors."""
    if isinstance(error, _IN_THE_WAY) or getattr(error, "sqlstate", None) == CHANGED_STATE:
        return RowChanged(f"Another server was faster: {error}")
    if isinstance(error, (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)):
        return StorageFull()
    if isinstance(error, (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)):
        return InvalidInput("A name contains a zero character, which PostgreSQL cannot keep.")
    if is_lost(error):
        return StorageFailed("The database cannot be reached: nothing was stored. The server retries automatically.")
    if isinstance(error, asyncpg.PostgresError):
        return ServerError(f"The database refused a statement: {error}")
    return None


def reason_of(error: BaseException) -> str:
    """Return why a database is lost, for its operator. The driver's text is logged."""
    if isinstance(error, ServerError):
        return str(error)
    for kinds, reason in _REASONS:
        if isinstance(error, kinds):
            return reason
    return "the connection was lost"


def as_lost(db: Connection, error: BaseException) -> BaseException:
    """Return the meaning of an error of a connection: one that is closed while it is being used may raise any error."""
    if isinstance(error, ServerError) or not isinstance(error, Exception) or is_lost(error) or not db.is_closed():
        return error
    lost: Exception = asyncpg.ConnectionDoesNotExistError(f"the connection was closed: {error}")
    return lost


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that the connection cannot be used any more."""
    return isinstance(
        error,
        (
            OSError,
            TimeoutError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,  # raised by a connection that was closed while it was not used
            asyncpg.PostgresConnectionError,
            asyncpg.AdminShutdownError,
            asyncpg.CrashShutdownError,
            asyncpg.CannotConnectNowError,
            asyncpg.IdleInTransactionSessionTimeoutError,
            asyncpg.TooManyConnectionsError,
            asyncpg.QueryCanceledError,
            asyncpg.ReadOnlySQLTransactionError,
        ),
    )
