"""The page of the topics door and its examples: every command of the page is run, every example in one command."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2

from penstock.cli.serve import serve
from penstock.config import Config
from penstock.core import limits
from penstock.doors.topics.subscriber import MessageOutcome
from tests.docs.blocks import runs
from tests.docs.generate import ROOT
from tests.support.issuer import certificate
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def example(name: str, *args: str, fine: bool = True) -> str:
    """Run an example and return what it printed; ``fine``: whether it should end well."""
    command = [sys.executable, str(ROOT / "examples" / "topics" / f"{name}.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) is fine, done.stderr
    return done.stdout if fine else done.stderr


def left(server: ServerProcess, topic: str) -> int:
    counts: dict[str, int] = httpx2.get(f"{server.url}/queues/{topic}/counts").json()["counts"]
    return sum(counts.values())


def test_echo(server: ServerProcess) -> None:
    assert example("echo", "one", "zwölf", "", "--url", server.url) == "one\nzwölf\n\n"
    assert left(server, "echo") == 0


def test_echo_over_tls(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--dev-cert") as server:
        trusted = ["--cacert", str(server.data / "dev-cert.pem")]
        assert example("echo", "--url", f"https://localhost:{server.port}", *trusted) == "hello\nworld\n"


def test_workers_that_fail_lose_nothing(server: ServerProcess) -> None:
    said = example("workers", "--workers", "3", "--messages", "12", "--url", server.url).splitlines()
    assert said[-1] == "12 of 12 done, 3 workers died, 2 messages given back"
    assert sorted(re.findall(r"died of (\d+)", "\n".join(said))) == ["1", "11", "6"]
    assert left(server, "workers") == 0


def test_backoff(server: ServerProcess) -> None:
    said = example("backoff", "--rounds", "1", "--url", server.url).splitlines()
    assert said[0] == "try 1 failed, again in 1 s"
    came = re.fullmatch(r"came back after ([0-9.]+) s", said[1])
    assert came is not None
    assert float(came[1]) >= 1
    assert said[2:] == ["try 2 succeeded"]
    assert left(server, "backoff") == 0


def test_a_token_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": "secret"}) as server:
        assert example("echo", "--url", server.url, fine=False).startswith("401: ")
        monkeypatch.setenv("TOKEN", "secret")
        assert example("echo", "--url", f"{server.url}/") == "hello\nworld\n"


def test_without_a_server_they_say_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for name in ("echo", "workers", "backoff"):
        said = example(name, "--url", url, fine=False)
        assert said.startswith(f"There is no server at {url}"), said
        assert said.endswith("Start one with: penstock serve\n")


# The page.

TEXT = (ROOT / "docs" / "topics-door.md").read_text(encoding="utf-8")


@runs("docs/topics-door.md", "sh 1", "sh 2", "text 1", "sh 3")
def test_the_quick_start_runs_word_by_word(blocks: list[str], tmp_path: Path) -> None:
    publish, subscribe, dialogue, delete = blocks
    with ServerProcess(tmp_path / "data") as server:  # of our own: its topic is called foo
        rules = f'connect-to = "localhost:6790:127.0.0.1:{server.port}"\nfail\n'
        (tmp_path / ".curlrc").write_text(rules, encoding="utf-8")
        env = {"CURL_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        assert subprocess.run(["bash", "-ec", publish], env=env, check=True, capture_output=True, timeout=30).stdout == b""
        with subprocess.Popen(
            shlex.split(subscribe), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as curl:
            assert curl.stdin is not None
            assert curl.stdout is not None
            for line in dialogue.splitlines():
                if line.startswith('"'):
                    curl.stdin.write(f"{line}\n")
                else:
                    assert curl.stdout.readline() == f"{line}\n"
            publish_more(server)
            assert curl.stdout.readline() == '{"msg":"bW9yZQ=="}\n', "the last ACK was heard"
            curl.kill()
        subprocess.run(["bash", "-ec", delete], env=env, check=True, timeout=30)
        assert left(server, "foo") == 0


def publish_more(server: ServerProcess) -> None:
    assert httpx2.post(f"{server.url}/publish/foo", content=b"more").status_code == 201


@runs("docs/topics-door.md", "sh 4")
def test_the_command_line_of_the_page_is_one(blocks: list[str], tmp_path: Path) -> None:
    (command,) = blocks
    certificate(tmp_path, "localhost")
    (tmp_path / "localhost.key").rename(tmp_path / "localhost-key.pem")
    port = free_port()
    words = shlex.split(command.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("./", f"{tmp_path}/"))
    assert words[:2] == ["penstock", "serve"]
    with ServerProcess(tmp_path / "data", *words[2:]):
        trust = ssl.create_default_context(cafile=str(tmp_path / "localhost.pem"))
        for verb, path, status in (("POST", "publish/foo", 201), ("DELETE", "foo", 200)):
            answer = httpx2.request(verb, f"https://localhost:{port}/{path}", content=b"x", verify=trust, trust_env=False)
            assert answer.status_code == status


@runs("docs/topics-door.md", "sh 5")
def test_the_docker_command_has_flags_that_exist(blocks: list[str]) -> None:
    """Where there is no Docker, this is what can be said of it."""
    (command,) = blocks
    _, _, serving = command.replace("\\\n", " ").partition("penstock serve")
    context = serve.make_context("serve", shlex.split(serving))
    assert context.params["tls_cert_file"] == "/etc/penstock/certs/localhost.pem"
    assert context.params["insecure"] is True


def test_the_limits_of_the_page_are_those_of_the_server() -> None:
    text = " ".join(TEXT.split())
    for number in (
        f"{limits.name_chars_max} characters",
        f"{limits.payload_bytes_max // limits.MEBIBYTE} MB",
        f"{limits.stream_command_bytes_max:,} bytes",
        f"{limits.delay_ms_max // 1_000:,} seconds",
        f"{limits.subscribers_max:,}",
        f"{limits.stream_unread_bytes_max // limits.MEBIBYTE} MB",
        f"disconnected after {limits.reader_stuck_ms_max // 1_000} s",
        f"detects it after {limits.gone_s} s",
        f"`topics_lease_ms` ({Config().topics_lease_ms // 1_000} s)",
    ):
        assert number in text, number


def test_every_word_of_the_stream_is_explained() -> None:
    for word in MessageOutcome:
        assert f'| `"{word.value}' in TEXT
