"""The PostgreSQL store: a shard that many servers share."""

from penstock.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
