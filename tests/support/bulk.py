"""A client of the bulk endpoints: httpx and pyarrow, and the check that everybody should make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import httpx2

TRAILER = b"PNSTROWS"


class Truncated(AssertionError):
    """A body that is not all there."""


def table_of(body: bytes) -> pa.Table:
    """Read a body. Raises Truncated unless it ends with as many rows as it has."""
    if body[-16:-8] != TRAILER:
        raise Truncated("the trailer is missing")
    table = pa.ipc.open_stream(pa.BufferReader(body[:-16])).read_all()
    if table.num_rows != int.from_bytes(body[-8:], "little"):
        raise Truncated(f"{table.num_rows} rows are there")
    return table


class Bulk:
    """Asks as one namespace; ``*`` is all of them."""

    def __init__(self, client: httpx2.Client, namespace: str | None = None) -> None:
        self.http = client
        self._headers = {} if namespace is None else {"X-Namespace": namespace}

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return self.http.request(method, path, headers=self._headers, **more)

    def overview(self) -> Any:
        reply = self.ask("GET", "/bulk")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def take(self, **body: Any) -> Any:
        reply = self.ask("POST", "/bulk/snapshots", json=body)
        assert reply.status_code == 201, reply.text
        return reply.json()

    def part(self, snapshot: Any, number: int) -> pa.Table:
        return self.read(f"/bulk/snapshots/{snapshot['id']}/parts/{number}")

    def read(self, path: str, **query: Any) -> pa.Table:
        reply = self.ask("GET", path, params=query)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "application/vnd.apache.arrow.stream"
        table = table_of(reply.content)
        assert reply.headers["x-penstock-rows"] == str(table.num_rows)
        assert reply.headers["content-length"] == str(len(reply.content))
        return table

    def jobs(self, **body: Any) -> list[dict[str, Any]]:
        """Take a snapshot, fetch all of it, and remove it."""
        snapshot = self.take(**body)
        parts = [self.part(snapshot, each["part"]) for each in snapshot["parts"]]
        assert [part.num_rows for part in parts] == [each["rows"] for each in snapshot["parts"]]
        assert self.ask("DELETE", f"/bulk/snapshots/{snapshot['id']}").status_code == 204
        rows: list[dict[str, Any]] = [row for part in parts for row in part.to_pylist()]
        assert len(rows) == snapshot["rows"]
        return rows

    def journal(self, shard: int, first: int, to: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.read("/bulk/journal", **{"shard": shard, "from": first, "to": to}).to_pylist()
        return rows

    def events(self) -> list[dict[str, Any]]:
        """Read all that is kept and durable, of all shards."""
        return [
            row
            for each in self.overview()["shards"]
            for row in self.journal(each["shard"], each["journal_first"], each["vouched"])
        ]
