"""A small server of /bulk in memory, on a real socket, which can be told to fail: for what a good server never does."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections import defaultdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from penstock.spark import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
T0 = int(EPOCH.timestamp() * 1000)


def stamp(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class FakeServer:
    """Jobs wait in queues, are leased under (group, epoch), and go when they are acknowledged. One shard, no time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.journal_first = 0
        self.epochs: dict[str, dict[int, list[int]]] = {}  #: of the groups that ever claimed a job
        self.stages: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(dict)
        self.commits: dict[str, dict[str, Any]] = {}
        self.queues_max = 10  #: that a claim may name
        self.known = 0  #: rows of a commit whose names are said to be taken
        self.snapshots: dict[str, list[list[dict[str, Any]]]] = {}
        self.asked: list[tuple[str, str, dict[str, str], dict[str, str]]] = []
        #: What to do with the next requests whose path ends like this: "drop" after doing it, "cut", "lie", "503".
        self.faults: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    # What tests do

    def push(self, queue: str, values: Sequence[str | bytes], **more: Any) -> None:
        with self.lock:
            for value in values:
                number = len(self.jobs)
                raw = value.encode() if isinstance(value, str) else value
                job = {
                    "number": number,
                    "queue": queue,
                    "value": raw,
                    "state": "waiting",
                    "attempts": 0,
                    "priority": 0,
                } | more
                self.jobs[number] = job
                self.event("job:pushed", job)

    def event(self, kind: str, job: dict[str, Any]) -> None:
        seq = len(self.events)
        found = dict.fromkeys(schemas.COLUMNS["journal"])
        job_id = f"id-{job['number']}"
        found |= {
            "shard": 0,
            "seq": seq,
            "at": stamp(T0 + seq * 1000),
            "kind": kind,
            "queue": job["queue"],
            "job_id": job_id,
        }
        self.events.append(found | {"namespace": "default"})

    def values(self, queue: str, *states: str) -> list[str]:
        with self.lock:
            found = [
                each for each in self.jobs.values() if each["queue"] == queue and each["state"] in (states or ("waiting",))
            ]
            return [each["value"].decode() for each in found]

    def lose(self, count: int) -> None:
        """End the leases of some jobs."""
        with self.lock:
            for each in [each for each in self.jobs.values() if each["state"] == "active"][:count]:
                each["state"] = "waiting"

    # What the server does

    def do(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:  # noqa: C901, PLR0911, a table
        with self.lock:
            words = path.strip("/").split("/")
            match method, words:
                case "GET", ["bulk"]:
                    end = len(self.events)
                    place = {"shard": 0, "journal_first": self.journal_first, "journal_next": end, "vouched": end}
                    return 200, {"shards": [place], "server_time": T0, "version": "0"}
                case "GET", ["queues"]:
                    return 200, {"ok": True, "queues": sorted({each["queue"] for each in self.jobs.values()})}
                case "GET", ["queues", queue, "counts"]:
                    return 200, {"ok": True, "counts": {"waiting": len(self.values(queue))}}
                case "POST", ["bulk", "snapshots"]:
                    return self.snapshot(json.loads(body))
                case "GET", ["bulk", "snapshots", name, "parts", part]:
                    if name not in self.snapshots:
                        return 404, {"error": "There is no such snapshot."}
                    return 200, self.table("jobs", self.snapshots[name][int(part)])
                case "GET", ["bulk", "journal", "at"]:
                    at = stamp(int(query["timestamp"]))
                    return 200, {"seq": sum(each["at"] < at for each in self.events)}
                case "GET", ["bulk", "journal"]:
                    if int(query["from"]) < self.journal_first:
                        return 410, {"error": f"The journal begins with {self.journal_first}."}
                    return 200, self.table("journal", self.events[int(query["from"]) : int(query["to"])])
                case "GET", ["bulk", "groups"]:
                    lag = sum(each["state"] == "waiting" for each in self.jobs.values())
                    return 200, [{"namespace": "default", "group": group, "lag": lag} for group in self.epochs]
                case "POST", ["bulk", "groups", group, verb]:
                    return self.group(group, verb, json.loads(body))
                case "GET", ["bulk", "groups", group, "read"]:
                    return self.read(group, query)
                case "POST", ["bulk", "stages", txn]:
                    rows = pa.ipc.open_stream(body).read_all().to_pylist()
                    self.stages[txn][int(query["part"])] = [
                        row | {name: value for name, value in query.items() if name != "part"} for row in rows
                    ]
                    return 200, {"rows": len(rows), "bytes": len(body)}
                case "POST", ["bulk", "stages", txn, "abort"]:
                    self.stages.pop(txn, None)
                    return 200, {}
                case "POST", ["bulk", "commits"]:
                    return self.commit(json.loads(body))
            return 404, {"error": f"no route {method} {path}"}

    def table(self, name: str, rows: list[dict[str, Any]]) -> pa.Table:
        fields = [pa.field(each, schemas._ARROW[kind]) for each, kind in schemas.COLUMNS[name].items()]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields))

    def snapshot(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        def fits(job: dict[str, Any]) -> bool:
            return all(
                not wanted.get(name) or job[field] in wanted[name]
                for name, field in (("queues", "queue"), ("states", "state"))
            )

        rows = [
            {
                "namespace": "default",
                "shard": 0,
                "id": f"id-{each['number']}",
                "created_at": stamp(T0),
                "size": len(each["value"]),
            }
            | {name: each[name] for name in ("queue", "state", "priority", "attempts")}
            | {"value": each["value"] if wanted["include_payload"] else None}
            for each in self.jobs.values()
            if fits(each)
        ]
        length = wanted["rows_per_part"]
        parts = [rows[first : first + length] for first in range(0, len(rows), length)]
        name = f"s{len(self.snapshots)}"
        self.snapshots[name] = parts
        listed = [{"part": number, "shard": 0, "rows": len(part), "bytes": 1} for number, part in enumerate(parts)]
        return 201, {"id": name, "rows": len(rows), "parts": listed, "taken_at": T0, "expires_at": T0}

    def group(self, group: str, verb: str, wanted: dict[str, Any]) -> tuple[int, Any]:
        epochs = self.epochs.get(group, {})
        if verb == "claim":
            if len(wanted["queues"]) > self.queues_max:
                return 400, {"error": f"queues must have at most {self.queues_max} items"}
            if wanted["epoch"] not in epochs:
                found = [
                    each for each in self.jobs.values() if each["state"] == "waiting" and each["queue"] in wanted["queues"]
                ]
                for each in found[: wanted["max"]]:
                    each |= {"state": "active", "attempts": each["attempts"] + 1, "holder": (group, wanted["epoch"])}
                if found:
                    epochs = self.epochs.setdefault(group, epochs)
                    epochs[wanted["epoch"]] = [each["number"] for each in found[: wanted["max"]]]
            rows = len(epochs.get(wanted["epoch"], ()))
            return 200, {"epoch": wanted["epoch"], "rows": rows, "splits": 1}
        ended = [epoch for epoch in epochs if verb == "release" or (verb == "ack" and epoch <= wanted["epoch"])]
        acked = lost = 0
        for epoch in ended:
            for number in epochs.pop(epoch):
                job = self.jobs[number]
                if job["state"] == "active" and job.get("holder") == (group, epoch):
                    job["state"] = "completed" if verb == "ack" else "waiting"
                    self.event("job:completed", job)
                    acked += 1
                else:
                    lost += 1
        return 200, {"acked": acked, "lost": lost, "epochs": sorted(epochs)}

    def read(self, group: str, query: dict[str, str]) -> tuple[int, Any]:
        epoch = int(query["epoch"])
        numbers = self.epochs.get(group, {}).get(epoch, [])
        held = [number for number in numbers if self.jobs[number]["state"] == "active"]
        if len(held) < len(numbers) and query.get("lost") != "skip":
            return 409, {"error": f"{len(numbers) - len(held)} leases of epoch {epoch} were lost."}
        share = numbers[int(query["split"]) :: int(query["splits"])]
        rows = [
            {"key": f"id-{number}", "value": self.jobs[number]["value"], "queue": self.jobs[number]["queue"], "partition": 0}
            | {"offset": number, "timestamp": stamp(T0), "namespace": "default", "job_id": f"id-{number}", "attempt": 1}
            for number in share
            if number in held
        ]
        return 200, self.table("queues", rows)

    def commit(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        known = self.commits.get(wanted["key"])
        if known is not None:
            return 200, known | {"duplicate": True}
        count = 0
        for txn in wanted["txns"]:
            if txn not in self.stages:
                return 409, {"error": f"Nothing is staged under {txn}."}
            for _, rows in sorted(self.stages.pop(txn).items()):
                for row in rows:
                    queue, value = row.pop("queue"), row.pop("value")
                    self.push(queue, [value], **row)
                    count += 1
        self.commits[wanted["key"]] = {"key": wanted["key"], "rows": count, "state": "published", "duplicate": False}
        self.commits[wanted["key"]]["known"] = self.known
        return 200, self.commits[wanted["key"]]


def _handler_of(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with fake.lock:
                fake.asked.append((self.command, parts.path, query, headers))
                fault = next((each for each in fake.faults if parts.path.endswith(each[0])), None)
                if fault is not None:
                    fake.faults.remove(fault)
            how = fault[1] if fault else ""
            status, answer = (503, {"error": "not now"}) if how == "503" else fake.do(self.command, parts.path, query, body)
            if how == "drop":
                self.close_connection = True
                return
            if isinstance(answer, pa.Table):
                self._rows(answer, how)
            else:
                self._send(status, json.dumps(answer).encode(), {"content-type": "application/json"})

        do_GET = do_POST = _handle  # noqa: N815

        def _rows(self, table: pa.Table, how: str) -> None:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table, max_chunksize=100)
            count = table.num_rows + (1 if how == "lie" else 0)
            content = sink.getvalue() + struct.pack("<8sQ", b"PNSTROWS", count)
            if how == "no trailer":
                content = sink.getvalue()
            headers = {"x-penstock-rows": str(table.num_rows)}
            if how == "cut":
                self._send(200, content, headers, sent=len(content) * 2 // 3)
            else:
                self._send(200, content, headers)

        def _send(self, status: int, content: bytes, headers: dict[str, str], *, sent: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:sent])
            self.close_connection = sent is not None

    return Handler
