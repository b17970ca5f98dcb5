"""The pages on the bulk endpoints: each request that they print is sent, and the answer has what they show."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from tests.docs.blocks import runs
from tests.docs.shapes import fits
from tests.docs.shell import Terminal, check_install, put
from tests.support.bulk import table_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running, running.client() as client:
        client.post("/queues/mail/jobs/bulk", json={"jobs": [{"data": number} for number in range(4)]}).raise_for_status()
        yield running


@runs("docs/bulk.md", "sh 1")
def test_the_extra_is_there(blocks: list[str]) -> None:
    check_install(blocks[0])


@runs("docs/bulk.md", "python 1", "json 1")
def test_reading_in_python(blocks: list[str], server: ServerProcess) -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks[0], "bulk.md", "exec"), names)
    with server.client() as client:
        told = client.get("/bulk").json()
    assert fits(told, json.loads(blocks[1]))
    assert fits(told["shards"][0], json.loads(blocks[1])["shards"][0])
    query = {"shard": 0, "from": 1, "to": told["shards"][0]["vouched"]}
    assert names["fetch"](f"{server.url}/bulk/journal", **query).num_rows == told["shards"][0]["vouched"] - 1


@runs("docs/bulk.md", "sh 2")
def test_a_snapshot(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    taken = json.loads(Terminal(tmp_path / "home", server.port).run(blocks[0]))
    assert taken["rows"] == 4
    assert set(taken) == {"id", "rows", "parts", "taken_at", "expires_at", "damaged"}


class Line(NamedTuple):
    """A request that a page shows, and what it says of the answer."""

    method: str
    path: str
    body: str
    answer: str


def lines(block: str) -> list[Line]:
    whole = re.sub(r"\n +->", " ->", block)
    return [Line(*found) for found in re.findall(r"^(GET|POST) +(\S+) *(.*?) +-> (.*)$", whole, re.MULTILINE)]


def send(client: httpx2.Client, line: Line, names: dict[str, str]) -> httpx2.Response:
    path, body = (put(text, {each: here for each, here in names.items() if each in text}) for text in (line.path, line.body))
    if line.body == "Arrow":
        table = pa.table({"value": [b"1", b"2"]})
        with (sink := pa.BufferOutputStream(), pa.ipc.new_stream(sink, table.schema))[1] as writer:
            writer.write_table(table)
        return client.request(line.method, path, content=sink.getvalue().to_pybytes())
    return client.request(line.method, path, content=body) if body else client.request(line.method, path)


@runs("docs/bulk-writing.md", "http 1")
def test_staged_writes(blocks: list[str], server: ServerProcess) -> None:
    stage, commit, look, abort = lines(blocks[0])
    with server.client() as client:
        names = {"{txn}": "first", "{key}": "k1", '"key":"…"': '"key":"k1"', '"txns":["…"]': '"txns":["first"]'}
        staged = send(client, stage, names).json()
        assert (staged["rows"], set(staged)) == (2, set(json.loads(stage.answer)))
        committed = send(client, commit, names).json()
        assert fits(committed, json.loads(commit.answer))
        found = send(client, look, names).json()
        assert set(found) == set(committed)
        assert found["state"] in look.answer or found["state"] == "committed"
        names["{txn}"] = "second"
        send(client, stage, names).raise_for_status()
        assert send(client, abort, names).json() == {"rows": 2}


@runs("docs/bulk-writing.md", "http 2")
def test_consumer_groups(blocks: list[str], server: ServerProcess) -> None:
    claim, read, ack, beat, release, groups = lines(blocks[0])
    names = {"{group}": "g"}
    with server.client() as client:
        claimed = send(client, claim, names).json()
        assert (claimed["rows"], fits(claimed, json.loads(claim.answer) | {"histories": {}})) == (4, True)
        one_split = read._replace(path=read.path.replace("splits=5", f"splits={claimed['splits']}"))
        assert table_of(send(client, one_split, names).content).num_rows == 4
        shown = re.findall(r'"(\w+)"', groups.answer)
        assert set(shown) <= set(send(client, groups, names).json()[0])
        assert send(client, beat, names).json() == {"epochs": [7], "lost": 0}
        assert send(client, ack, names).json() == {"acked": 4, "lost": 0}
        assert send(client, release, names).json() == {"released": 0}
