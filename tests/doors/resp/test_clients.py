"""Clients we did not write: redis-cli, and redis-py in both protocols."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.doors.resp.command_table import COMMANDS
from tests.support.resp import RespClient, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

REDIS_CLI = str(Path(sys.executable).parent / "redis-cli")

both_protocols = pytest.mark.parametrize("protocol", [2, 3])


def cli(server: ServerProcess, *args: str, stdin: str | None = None) -> str:
    command = [REDIS_CLI, "-p", str(server.resp_port), *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr.replace("Warning: Using a password", "") == done.stderr
    return done.stdout


@pytest.fixture
def topic() -> str:
    return unique()


# redis-cli.


@pytest.mark.parametrize("options", [(), ("-3",)])
def test_redis_cli_publishes_pulls_and_looks(server: ServerProcess, topic: str, options: tuple[str, ...]) -> None:
    assert cli(server, *options, "PUBLISH", topic, "hello").strip() == "OK"
    assert topic in cli(server, *options, "TOPICS")
    pulled = cli(server, *options, "PULL", topic, "DETACH").split()
    assert pulled[-1] == "hello"
    assert cli(server, *options, "DONE", *pulled[-3:-1]).strip() == "OK"
    assert cli(server, *options, "INFO").startswith("redis_version:penstock_v")
    assert "unknown command 'GET'" in cli(server, *options, "GET", "x")
    assert "proto" in cli(server, *options, "HELLO", "3")


def test_redis_cli_reads_commands_from_a_file(server: ServerProcess, topic: str) -> None:
    said = cli(server, stdin=f'PING\nPUBLISH {topic} "a b"\nPULL {topic}\nCOMMAND COUNT\n')
    assert said.split("\n")[:2] == ["pong", "OK"]
    assert "a b" in said
    assert str(len(COMMANDS)) in said


def test_redis_cli_sees_the_first_message_and_leaves_it(server: ServerProcess, topic: str) -> None:
    cli(server, "PUBLISH", topic, "hello")
    with subprocess.Popen(
        [REDIS_CLI, "-p", str(server.resp_port), "SUBSCRIBE", topic], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("hello" in line for line in lines)
        process.terminate()
    with RespClient(server.resp_port, topic) as client:
        assert client.subscribe() == b"hello"


def test_redis_cli_sends_a_thousand_at_once(server: ServerProcess, topic: str) -> None:
    stream = "".join(f"*3\r\n$7\r\nPUBLISH\r\n${len(topic)}\r\n{topic}\r\n$4\r\n{n:04}\r\n" for n in range(1_000))
    command = [REDIS_CLI, "-p", str(server.resp_port), "--pipe"]
    done = subprocess.run(command, input=stream.encode(), capture_output=True, timeout=60, check=True)
    assert b"errors: 0, replies: 1000" in done.stdout
    with RespClient(server.resp_port, topic) as client:
        assert [job[2] for job in client.pull("COUNT", 1_000)] == [f"{n:04}" for n in range(1_000)]


def test_redis_cli_with_a_user_name(server: ServerProcess, topic: str) -> None:
    assert cli(server, "--user", "acme", "--pass", "x", "--no-auth-warning", "PUBLISH", topic, "m").strip() == "OK"
    assert topic not in cli(server, "TOPICS")
    assert topic in cli(server, "--user", "acme", "--pass", "x", "--no-auth-warning", "TOPICS")


# redis-py.


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def stock(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    with redis.Redis(port=server.resp_port, protocol=request.param) as client:
        yield client


def test_redis_py_finds_what_it_looks_for(stock: Any) -> None:
    assert stock.ping() is True
    assert stock.info()["redis_mode"] == "standalone"
    assert stock.echo("x") == b"x"
    assert stock.client_setname("me")
    assert isinstance(stock.client_id(), int)
    assert stock.command_count() == len(COMMANDS)
    assert set(stock.command()) == {name.decode().lower() for name in COMMANDS}
    with pytest.raises(redis.ResponseError, match="unknown command 'GET'"):
        stock.get("x")


def test_redis_py_pushes_and_pulls(stock: Any, topic: str) -> None:
    for n in range(3):
        assert stock.execute_command("PUBLISH", topic, n) == b"OK"
    pushed = stock.execute_command("PUSH", topic, b"\xff", "PRIORITY", 5)
    ((job_id, token, payload), *rest) = stock.execute_command("PULL", topic, "COUNT", 10, "DETACH")
    assert (job_id, payload) == (pushed, b"\xff")
    assert [job[2] for job in rest] == [b"0", b"1", b"2"]
    assert stock.execute_command("DONE", job_id, token) == b"OK"
    with pytest.raises(redis.ResponseError, match=r"STALE_LEASE|WRONG_STATE"):
        stock.execute_command("DONE", job_id, token)


def test_a_pipeline_of_redis_py(stock: Any, topic: str) -> None:
    pipeline = stock.pipeline(transaction=False)
    for n in range(100):
        pipeline.execute_command("PUBLISH", topic, n)
    pipeline.execute_command("NOPE")
    pipeline.execute_command("PULL", topic, "COUNT", 100)
    *published, nope, pulled = pipeline.execute(raise_on_error=False)
    assert published == [b"OK"] * 100
    assert isinstance(nope, redis.ResponseError)
    assert [int(job[2]) for job in pulled] == list(range(100))


@both_protocols
def test_a_subscriber_on_redis_py(server: ServerProcess, topic: str, protocol: int) -> None:
    with redis.Redis(port=server.resp_port, protocol=protocol, single_connection_client=True) as client:
        for n in range(3):
            client.execute_command("PUBLISH", topic, n)
        message = client.execute_command("SUBSCRIBE", topic)
        for n in range(2):
            assert message == str(n).encode()
            assert client.execute_command("ACK") == b"OK"
            message = client.connection.read_response()
        assert message == b"2"


@both_protocols
def test_a_consumer_on_redis_py(server: ServerProcess, topic: str, protocol: int) -> None:
    with redis.Redis(port=server.resp_port, protocol=protocol, single_connection_client=True) as client:
        for n in range(3):
            client.execute_command("PUBLISH", topic, n)
        assert client.execute_command("RECEIVE", topic, "WAIT", 5_000) == b"0"
        assert client.execute_command("DACK", 0) == b"OK"
        assert client.execute_command("RECEIVE", topic, "WITHDACKS") == [b"0", 1]
        assert client.execute_command("RECEIVE", topic, "ACK") == b"1"
        assert client.execute_command("NACK") == b"OK"
        assert client.execute_command("RECEIVE", topic) == b"1"
        assert client.execute_command("ACK") == b"OK"
        assert client.execute_command("RECEIVE", topic) == b"2"
        assert client.execute_command("RECEIVE", topic, "ACK", "WAIT", 1) is None
        with pytest.raises(redis.ResponseError, match="about a message that is held"):
            client.execute_command("ACK")


@both_protocols
def test_redis_py_with_a_user_name(server: ServerProcess, topic: str, protocol: int) -> None:
    there: dict[str, Any] = {"port": server.resp_port, "protocol": protocol}
    with redis.Redis(**there, username="acme", password="x") as acme, redis.Redis(**there, password="y") as plain:
        acme.execute_command("PUBLISH", topic, "m")
        assert plain.execute_command("PULL", topic) == []
        assert len(acme.execute_command("PULL", topic)) == 1


def test_redis_py_with_health_checks_and_a_name(server: ServerProcess) -> None:
    with redis.Redis(port=server.resp_port, db=0, client_name="tester", health_check_interval=1) as client:
        assert client.ping() is True
        assert client.client_getname() in ("tester", b"tester")


# What other libraries send on connect.


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RespClient]:
    with RespClient(server.resp_port) as opened:
        yield opened


def test_hello(client: RespClient) -> None:
    about = client.ok("HELLO")
    assert dict(zip(about[::2], about[1::2], strict=True))[b"proto"] == 2
    assert client.ok("HELLO", 3)[b"mode"] == b"standalone"
    assert client.ok("TOPICS") is not None
    assert isinstance(client.ok("TOPICS"), list)
    assert client.ok("HELLO", 2, "SETNAME", "x")[:2] == [b"server", b"penstock"]
    for version in ("0", "4", "99"):
        assert client.refused("HELLO", version) == "NOPROTO unsupported protocol version"
    assert client.refused("HELLO", "abc").startswith("ERR Protocol version must be a whole number")
    assert client.refused("HELLO", "3", "AUTH", "x").startswith("ERR Syntax error in HELLO option 'AUTH'")
    assert client.refused("HELLO", "3", "NOPE").startswith("ERR Syntax error in HELLO option 'NOPE'")
    assert isinstance(client.ok("TOPICS"), bytes)  # a refused HELLO changes nothing


def test_ping_is_what_a_stock_client_expects_once_it_is_known_to_be_one(client: RespClient) -> None:
    assert client.ok("PING") == b"pong"
    client.ok("CLIENT", "SETINFO", "LIB-NAME", "ioredis")
    assert client.ok("PING") == b"PONG"
    assert client.ok("PING", "hello") == b"hello"
    client.ok("RESET")
    assert client.ok("PING") == b"pong"
    client.ok("HELLO", 3)
    assert client.ok("PING") == b"PONG"


def test_client_and_its_subcommands(client: RespClient) -> None:
    assert client.ok("CLIENT", "GETNAME") is None
    assert client.ok("CLIENT", "SETNAME", "worker-1") == b"OK"
    assert client.ok("client", "getname") == b"worker-1"
    assert client.ok("CLIENT", "ID") > 0
    assert client.ok("CLIENT", "NO-EVICT", "ON") == b"OK"
    assert client.ok("CLIENT", "NO-TOUCH", "off") == b"OK"
    assert b"name=worker-1" in client.ok("CLIENT", "LIST")
    assert client.refused("CLIENT", "SETNAME", "a b").startswith("ERR Client names cannot contain spaces")
    for words in (("KILL", "1"), ("SETINFO", "x"), ("SETINFO", "LIB-X", "y"), ("NO-EVICT", "maybe"), ("TRACKING", "ON")):
        assert client.refused("CLIENT", *words).startswith("ERR")
    assert client.refused("CLIENT") == "ERR wrong number of arguments for 'client' command"


def test_command_and_its_subcommands(client: RespClient) -> None:
    assert client.ok("COMMAND", "COUNT") == len(COMMANDS) == len(client.ok("COMMAND")) == len(client.ok("COMMAND", "LIST"))
    assert client.ok("COMMAND", "INFO", "publish", "nope") == [[b"publish", 3, [], 0, 0, 0, [], [], [], []], None]
    docs = client.ok("COMMAND", "DOCS", "push", "nope")
    assert docs[0] == b"push"
    assert b"[PRIORITY n]" in docs[1][1]
    assert client.refused("COMMAND", "GETKEYS").startswith("ERR unknown subcommand 'GETKEYS' of COMMAND")
    client.ok("HELLO", 3)
    assert set(client.ok("COMMAND", "DOCS")) == {name.lower() for name in COMMANDS}
