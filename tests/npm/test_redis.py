"""ioredis and node-redis, as they come from npm, on the Redis protocol of a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import npm
from tests.support.issuer import certificate
from tests.support.ports import free_port
from tests.support.resp import unique
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPTS = Path(__file__).parent / "redis"
LIBRARIES = ["ioredis", "node-redis"]
TIMEOUT_S = 120


def start(script: str, library: str, port: int, **more: Any) -> subprocess.Popen[str]:
    """Start a script with a library."""
    asked = json.dumps({"library": library, "port": port, "topic": unique(), **more})
    return subprocess.Popen(
        [npm.node(), str(SCRIPTS / f"{script}.mjs"), asked],
        env=npm.environment(NODE_MODULES=str(npm.modules())),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], said: str = "") -> Any:
    """Return what a script prints until it ends."""
    try:
        out, errors = process.communicate(said, timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out + errors
    return json.loads(out)


def run(script: str, library: str, port: int, **more: Any) -> Any:
    """Run a script with a library; return what it printed."""
    return finish(start(script, library, port, **more))


EXPECTED = {
    "first": "a", "ack": "OK", "second": "b", "back": "OK", "third": ["c", 0], "dack": "OK", "again": ["c", 1], "nack": "OK",
    "together": ["c", "PONG", "b", "OK", None], "waited": "late", "ended": None, "bytes": [0, 255, 10, 13],
    "alive": "still here",
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_consumer(server: ServerProcess, library: str, protocol: int) -> None:
    seen = run("consume", library, server.resp_port, protocol=protocol)
    assert seen.pop("nothing").startswith("error: ERR ACK is about a message that is held, and none is")
    assert "Send RECEIVE topic WAIT ms" in seen.pop("subscribe")
    assert seen == EXPECTED


@pytest.mark.parametrize("library", LIBRARIES)
def test_workers_that_lose_their_connection(server: ServerProcess, library: str) -> None:
    assert run("workers", library, server.resp_port, count=100) == {"done": list(range(100)), "dropped": 5, "left": None}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_consumer_outlives_its_server(tmp_path: Path, library: str) -> None:
    env = {"PENSTOCK_TOPICS_LEASE_MS": "300"}
    running = ServerProcess(tmp_path / "data", env=env).start()
    consumer = start("outlive", library, running.resp_port)
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == '"kept"\n'
    running.kill()
    with ServerProcess(tmp_path / "data", env=env, resp_port=running.resp_port):
        seen = finish(consumer, "it is back\n")
    assert seen.pop("ack").startswith("error: ERR ACK is about a message that is held, and none is")
    assert seen == {"got": "kept", "done": "OK", "left": None}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, int, Path]]:
    """A server with a certificate, and a second listener of the Redis protocol that does without."""
    folder, plain = tmp_path_factory.mktemp("both"), free_port()
    cert, key = certificate(folder)
    flags = ("--cert", str(cert), "--key", str(key), "--resp-plain", f"127.0.0.1:{plain}")
    with ServerProcess(folder / "data", *flags) as running:
        yield running, plain, cert


@pytest.mark.parametrize("library", LIBRARIES)
def test_with_and_without_tls_at_the_same_time(both: tuple[ServerProcess, int, Path], library: str) -> None:
    running, plain, cert = both
    for port, more in ((running.resp_port, {"ca": str(cert)}), (plain, {})):
        seen = run("consume", library, port, **more)
        assert {name: seen[name] for name in EXPECTED} == EXPECTED
