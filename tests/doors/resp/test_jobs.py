"""Jobs over the Redis protocol: PUSH, PULL, DONE, FAIL, alone, in pipelines, and together with the jobs door."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.ids import to_uuid
from penstock.core.job import JobSpec
from penstock.core.queue import QueueKey
from penstock.doors.resp.pushes import Pushes
from tests.doors.api import UNKNOWN_ID, Api
from tests.support.resp import END, Refused, RespClient, unique, wire
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.engine.engine import Engine


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RespClient]:
    with RespClient(server.resp_port) as opened:
        yield opened


@pytest.fixture
def api(server: ServerProcess, client: RespClient) -> Iterator[Api]:
    with server.client() as http:
        yield Api(http, client.topic)


# One at a time.


def test_a_job_is_pushed_pulled_and_done(client: RespClient, api: Api) -> None:
    pushed = client.push('{"a": 1}')
    assert api.job(pushed)["data"] == {"a": 1}
    assert (api.job(pushed)["maxAttempts"], api.job(pushed)["removeOnComplete"]) == (3, False)
    ((job_id, token, payload),) = client.pull()
    assert (job_id, payload) == (pushed, '{"a": 1}')
    assert api.state(pushed) == "active"
    assert client.call("DONE", job_id, token) == b"OK"
    assert api.state(pushed) == "completed"
    assert client.ok("PULL", client.topic) == []


def test_options_of_a_push(client: RespClient, api: Api) -> None:
    mine = unique("id")
    later = client.push("later", "DELAY", 3_600_000)
    client.push("low", "priority", "-5")
    assert client.push("high", "ID", mine, "PRIORITY", 10) == mine
    assert client.push("again", "ID", mine) == mine
    assert api.state(later) == "delayed"
    assert [job[2] for job in client.pull("COUNT", 10)] == ["high", "low"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("PUSH", "q"), "ERR wrong number of arguments for 'push' command"),
        (("PUSH", "q", "x", "PRIORITY"), "ERR syntax error near 'PRIORITY'"),
        (("PUSH", "q", "x", "COLOUR", "red"), "ERR syntax error near 'COLOUR': expected PRIORITY with a value, DELAY"),
        (("PUSH", "q", "x", "DELAY", "1", "DELAY", "2"), "ERR syntax error near 'DELAY'"),
        (("PUSH", "q", "x", "PRIORITY", "high"), "ERR PRIORITY must be a whole number from -1000000 to 1000000"),
        (("PUSH", "q", "x", "PRIORITY", "1.5"), "ERR PRIORITY must be a whole number"),
        (("PUSH", "q", "x", "DELAY", "-1"), "ERR DELAY must be a whole number from 0"),
        (("PUSH", "q", "x", "DELAY", "9" * 30), "ERR DELAY must be a whole number from 0"),
        (("PUSH", "q", "x", "ID", ""), "ERR ID must have 1 to 1024 characters"),
        (("PUSH", "q", "x", "ID", "a\0b"), "ERR ID must have 1 to 1024 characters, without NUL"),
        (("PUSH", "q", "x", "ID", b"\xff"), "ERR ID must be UTF-8"),
        (("PUSH", "q", "x", "ID", to_uuid(377957122049)), "ERR jobId has the form of an id that Penstock assigns"),
        (("PULL",), "ERR wrong number of arguments for 'pull' command"),
        (("PULL", "q", "COUNT", "0"), "ERR COUNT must be a whole number from 1 to 1000"),
        (("PULL", "q", "WAIT", "-1"), "ERR WAIT must be a whole number from 0 to 60000"),
        (("PULL", "q", "WAIT", "1e30"), "ERR WAIT must be a whole number"),
        (("PULL", "q", "DETACH", "DETACH"), "ERR syntax error near 'DETACH'"),
        (("DONE",), "ERR wrong number of arguments for 'done' command"),
        (("DONE", UNKNOWN_ID), "JOB_NOT_FOUND Job not found or not active"),
        (("DONE", "no-such-id"), "JOB_NOT_FOUND Job not found or not active"),
        (("DONE", "x\0y"), "ERR id must have 1 to 1024 characters"),
        (("FAIL", UNKNOWN_ID, "", "why"), "JOB_NOT_FOUND Job not found or not active"),
    ],
    ids=repr,
)
def test_what_is_wrong_is_said(client: RespClient, words: tuple[Any, ...], error: str) -> None:
    assert client.refused(*words).startswith(error)
    assert client.ok("PING") == b"pong"


def test_a_job_that_failed_is_retried_or_dead(client: RespClient, api: Api) -> None:
    (job_id, retried) = (api.push("x", maxAttempts=1), api.push("y", backoff=0))
    (one, two) = client.pull("COUNT", 2)
    assert client.call("FAIL", one[0], one[1], "broken ü") == b"OK"
    assert api.state(job_id) == "failed"
    assert api.job(job_id)["error"] == "broken ü"
    assert client.call("FAIL", two[0]) == b"OK"
    assert client.pull("WAIT", 10_000)[0][0] == retried


def test_only_the_latest_token_counts(client: RespClient, api: Api, server: ServerProcess) -> None:
    job_id = client.push("x")
    with RespClient(server.resp_port, client.topic) as first:
        ((_, old, _),) = first.pull()
    ((_, token, _),) = client.pull("WAIT", 10_000)
    for word in ("DONE", "FAIL"):
        assert client.refused(word, job_id, old) == f"STALE_LEASE Invalid or expired lock token for job {job_id}"
        assert client.refused(word, job_id, "nonsense").startswith("STALE_LEASE")
    assert api.state(job_id) == "active"
    assert client.call("DONE", job_id, token) == b"OK"
    assert client.refused("DONE", job_id, token) == "WRONG_STATE Job not found or not active"


def test_both_doors_mix(client: RespClient, api: Api, server: ServerProcess) -> None:
    pushed = api.push({"n": 1})
    ((job_id, token, payload),) = client.pull()
    assert (job_id, payload) == (pushed, '{"n":1}')
    api.ok("POST", f"/jobs/{job_id}/ack", {"token": token})
    client.push(b"\xff\0")
    job_id, token = api.take()
    assert client.call("DONE", job_id, token) == b"OK"
    with TcpClient(server.tcp_port, client.topic) as tcp:
        mine = unique("id")
        client.push("1", "ID", mine)
        pulled = tcp.ok("PULL", queue=tcp.queue)
        assert client.call("DONE", mine, pulled["token"]) == b"OK"


def test_a_pull_waits_and_others_go_on_meanwhile(client: RespClient, server: ServerProcess) -> None:
    client.send("PULL", client.topic, "WAIT", 30_000)
    client.send("PING")  # waits for its turn
    with RespClient(server.resp_port, client.topic) as other:
        job_id = other.push("x")
    assert client.read()[0][0].decode() == job_id
    assert client.read() == b"pong"
    assert client.ok("PULL", client.topic, "WAIT", 1) == []


def test_large_payloads(client: RespClient) -> None:
    large = b"x" * limits.payload_bytes_max
    client.ok("PUSH", client.topic, large)
    assert client.ok("PULL", client.topic)[0][2] == large
    client.socket.sendall(b"*3\r\n$4\r\nPUSH\r\n$1\r\nq\r\n$%d\r\n" % (limits.payload_bytes_max + 1))
    assert client.rest() == b"-ERR Protocol error: invalid bulk length\r\n"


# Pipelines.


@pytest.mark.parametrize("count", [1, 64, 1_000, 2_500])
def test_a_pipeline_is_answered_in_order(client: RespClient, count: int) -> None:
    client.socket.sendall(b"".join(wire("PUSH", client.topic, n) for n in range(count)) + wire("PING"))
    ids = client.many(count)
    assert client.read() == b"pong"
    assert len(set(ids)) == count
    client.socket.sendall(wire("PULL", client.topic) * count)
    pulled = [job for jobs in client.many(count) for job in jobs]
    assert [job[2] for job in pulled] == [str(n).encode() for n in range(count)]
    assert [job[0] for job in pulled] == ids
    client.socket.sendall(b"".join(wire("DONE", job[0], job[1]) for job in pulled))
    assert client.many(count) == [b"OK"] * count
    assert client.ok("PULL", client.topic) == []


def test_errors_in_the_middle_harm_nobody_else(client: RespClient, api: Api) -> None:
    commands = b""
    expected: list[type] = []
    for n in range(300):
        commands += wire("PUSH", client.topic, n)
        expected.append(bytes)
        if n % 7 == 0:
            commands += wire("PUSH", client.topic, n, "PRIORITY", "x") + wire("NOPE") + b"PUBLISH a\r\n"
            expected += [Refused] * 3
        if n % 11 == 0:  # the engine refuses this one, and with it all that are pushed together
            commands += wire("PUSH", client.topic, n, "ID", "idempotency:x")
            expected.append(Refused)
        if n % 50 == 0:
            commands += wire("DONE", UNKNOWN_ID, "x") + wire("ECHO", n)
            expected += [Refused, bytes]
    client.socket.sendall(commands)
    assert [type(reply) for reply in client.many(len(expected))] == expected
    assert api.counts()["waiting"] == 300
    assert [job[2] for job in client.pull("COUNT", 1_000)] == [str(n) for n in range(300)]


def test_a_pipeline_is_as_if_done_one_after_the_other(client: RespClient) -> None:
    topic, another, mine = client.topic, unique(), unique("id")
    client.socket.sendall(
        wire("PULL", topic)
        + wire("PUSH", topic, "a", "ID", mine)
        + wire("PULL", topic)
        + wire("DONE", mine)
        + wire("DONE", mine)
        + wire("PUSH", topic, "b")
        + wire("PUSH", another, "c")
        + wire("PUSH", topic, "d")
        + wire("PULL", topic, "COUNT", 5)
        + wire("PULL", another, "COUNT", 5)
        + wire("PULL", topic)
        + wire("FAIL", "nobody", "", "why")
        + wire("PULL", topic, "WAIT", "1")
    )
    replies = client.many(13)
    assert replies[0] == []
    assert replies[1] == mine.encode()
    assert replies[2][0][2] == b"a"
    assert replies[3] == b"OK"
    assert isinstance(replies[4], Refused)
    assert [[job[2] for job in reply] for reply in replies[8:11]] == [[b"b", b"d"], [b"c"], []]
    assert isinstance(replies[11], Refused)
    assert replies[12] == []


def test_pulls_and_settlements_interleaved(client: RespClient, api: Api) -> None:
    client.socket.sendall(b"".join(wire("PUSH", client.topic, n) for n in range(20)))
    client.many(20)
    jobs = client.pull("COUNT", 10)
    commands = b"".join(wire("DONE", job[0], job[1]) + wire("PULL", client.topic) for job in jobs[:5])
    commands += b"".join(wire("FAIL", job[0], job[1], f"error {n % 2}") for n, job in enumerate(jobs[5:]))
    client.socket.sendall(commands)
    replies = client.many(15)
    assert replies[0:10:2] == [b"OK"] * 5
    assert [reply[0][2] for reply in replies[1:10:2]] == [b"10", b"11", b"12", b"13", b"14"]
    assert replies[10:] == [b"OK"] * 5
    assert [api.job(job[0])["error"] for job in jobs[5:]] == [f"error {n % 2}" for n in range(5)]


def test_one_id_pushed_to_two_queues_in_a_pipeline_is_one_job(client: RespClient) -> None:
    another, mine = unique(), unique("id")
    client.socket.sendall(
        wire("PUSH", client.topic, "a", "ID", mine) + wire("PUSH", another, "b", "ID", mine) + wire("PUSH", another, "c")
    )
    assert client.many(2) == [mine.encode()] * 2
    client.read()
    assert [job[2] for job in client.pull("COUNT", 5)] == ["a"]
    assert [job[2] for job in client.ok("PULL", another, "COUNT", 5)] == [b"c"]


def test_a_pipeline_in_every_split(client: RespClient, server: ServerProcess) -> None:
    stream = wire("PUSH", client.topic, "a\r\nb") + b"PING\r\n" + wire("ECHO", "") + wire("PULL", client.topic)
    for place in range(1, len(stream)):
        with RespClient(server.resp_port, client.topic) as cut:
            cut.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            cut.socket.sendall(stream[:place])
            cut.socket.sendall(stream[place:])
            pushed, pong, nothing, ((job_id, token, payload),) = cut.many(4)
            assert (pong, nothing, payload, job_id) == (b"pong", b"", b"a\r\nb", pushed)
            assert cut.call("DONE", job_id, token) == b"OK"


# Hanging up.


def test_hanging_up_gives_jobs_back_unless_they_are_detached(client: RespClient, api: Api, server: ServerProcess) -> None:
    ids = [client.push(n) for n in range(4)]
    with RespClient(server.resp_port, client.topic) as worker:
        (first,) = worker.pull()
        worker.pull("WAIT", 1)
        worker.pull("DETACH")
        worker.call("DONE", first[0], first[1])
        worker.call("QUIT")
        assert worker.read() is END
    assert [api.state(job_id) for job_id in (ids[0], ids[2])] == ["completed", "active"]
    left: list[str] = []
    while len(left) < 2:  # one batch may see the first of them only
        left += [job[0] for job in client.pull("COUNT", 4, "WAIT", 10_000)]
    assert left == [ids[1], ids[3]]
    assert api.job(ids[1])["attempts"] == 0


def test_who_hangs_up_while_it_waits_takes_nothing(client: RespClient, server: ServerProcess) -> None:
    with RespClient(server.resp_port, client.topic) as worker:
        worker.socket.sendall(wire("PING") + wire("PULL", client.topic, "WAIT", 60_000))
        assert worker.read() == b"pong"
    job_id = client.push("x")
    assert client.pull("WAIT", 10_000)[0][0] == job_id


def test_what_was_sent_before_hanging_up_is_done(client: RespClient, api: Api, server: ServerProcess) -> None:
    with RespClient(server.resp_port, client.topic) as worker:
        worker.socket.sendall(b"".join(wire("PUSH", client.topic, n) for n in range(100)) + b"*3\r\n$4\r\nPUSH\r\n$1")
        worker.socket.shutdown(socket.SHUT_WR)
        assert len(worker.many(100)) == 100
        assert worker.read() is END
    assert api.counts()["waiting"] == 100


def test_large_pulls_of_a_pipeline(client: RespClient) -> None:
    for _ in range(6):
        client.ok("PUSH", client.topic, b"x" * limits.payload_bytes_max)
    client.socket.sendall(wire("PULL", client.topic) * 6)
    replies = client.many(6)
    given = [len(jobs) for jobs in replies]
    assert given[:3] == [1, 1, 1]
    assert sum(given) + sum(len(client.ok("PULL", client.topic)) for _ in range(6 - sum(given))) == 6


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_what_was_answered_survives_a_kill(tmp_path: Path, durability: str) -> None:
    server = ServerProcess(tmp_path / "data", "--durability", durability).start()
    try:
        with RespClient(server.resp_port) as client:
            client.publish(*range(200))
            server.kill()
        server.start()
        with RespClient(server.resp_port, client.topic) as later:
            assert [job[2] for job in later.pull("COUNT", 1_000)] == [str(n) for n in range(200)]
    finally:
        server.stop()


@pytest.mark.anyio
async def test_pushes_to_several_queues_are_gathered_unless_they_have_names(engine: Engine) -> None:
    one, two = QueueKey("default", "one"), QueueKey("default", "two")
    slots: list[bytes] = []
    pushes = Pushes(engine, slots)
    for key in (one, two, one):
        assert pushes.takes(key, JobSpec(b"1"))
        pushes.add(key, JobSpec(b"1"), True)
    assert not pushes.takes(one, JobSpec(b"1", job_id="name")), "whose is first matters over all queues"
    before = engine.stats.batches
    await pushes.finish()
    assert slots == [b"+OK\r\n"] * 3
    assert engine.stats.batches == before + 1
