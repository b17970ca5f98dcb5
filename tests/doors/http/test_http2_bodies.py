"""Bodies over HTTP/2 whose length is not announced: what has ended is taken, what was cut off is not."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from tests.support import npm
from tests.support.http2 import Http2Client

if TYPE_CHECKING:
    from tests.doors.api import Api
    from tests.support.server import ServerProcess

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
CURL = ("curl", "-s", "-w", "%{http_code}", "--http2-prior-knowledge", "-X", "POST")
TOO_LARGE = bytes(limits.body_bytes_max + 4_000_000)
NO_ERROR, INTERNAL_ERROR, CANCEL = 0, 2, 8
#: Sends each body in one of the ways in which Node sends it, and prints the statuses.
NODE = """
const http2 = require('http2')
const [url, path] = process.argv.slice(1)
const ways = [
  stream => stream.end('whole'),
  stream => { stream.write('in '); stream.end('parts') },
  stream => { stream.write('end'); setTimeout(() => stream.end(), 20) },
  stream => require('stream').Readable.from(['pi', 'pe']).pipe(stream),
  stream => stream.end(),
]
const session = http2.connect(url)
const ask = way => new Promise((done, failed) => {
  const stream = session.request({ ':method': 'POST', ':path': path })
  stream.on('response', headers => { stream.resume(); stream.on('end', () => done(headers[':status'])) })
  stream.on('error', failed)
  way(stream)
})
;(async () => {
  const statuses = []
  for (const way of ways) statuses.push(await ask(way))
  // Half a message, and then the stream is destroyed, or the whole session.
  const cut = session.request({ ':method': 'POST', ':path': path })
  cut.on('error', () => {})
  cut.write('half')
  await new Promise(done => setTimeout(done, 50))
  cut.destroy()
  await new Promise(done => cut.on('close', done))
  console.log(JSON.stringify(statuses))
  session.destroy()
})()
"""


def _messages(api: Api) -> list[Any]:
    """Take all messages of the queue, and return what they carry."""
    while api.counts()["delayed"]:  # it is not decided about all of them yet
        time.sleep(0.01)
    found = []
    while (job := api.pull()) is not None:
        data = job["data"]  # what is no JSON is shown as base64
        found.append(base64.b64decode(data).decode() if isinstance(data, str) else data)
    return found


@needs_curl
def test_curl_may_publish_what_it_does_not_know_the_length_of(server: ServerProcess, api: Api) -> None:
    url = f"{server.url}/publish/{api.queue}"
    for body in (b"a message", b""):
        sent = subprocess.run([*CURL, "-T", "-", url], input=body, capture_output=True, check=True)
        assert sent.stdout == b"201"
    assert subprocess.run([*CURL, url], capture_output=True, check=True).stdout == b"201"  # nothing but a head
    assert _messages(api) == ["a message", "", ""]


@needs_curl
def test_curl_may_push_what_it_does_not_know_the_length_of(server: ServerProcess, api: Api) -> None:
    url = f"{server.url}/queues/{api.queue}"
    pushed = subprocess.run([*CURL, "-T", "-", f"{url}/jobs"], input=b'{"data": 7}', capture_output=True, check=True)
    assert pushed.stdout.endswith(b"200")
    cut = subprocess.run([*CURL, "-T", "-", f"{url}/jobs"], input=b'{"data": 7', capture_output=True, check=True)
    assert cut.stdout.endswith(b"400")
    assert api.counts()["waiting"] == 1
    # A body that may be left out.
    assert subprocess.run([*CURL, f"{url}/clean"], capture_output=True, check=True).stdout.endswith(b"200")
    assert api.counts()["waiting"] == 0


def test_node_may_publish_in_all_its_ways_and_what_it_destroys_is_not_stored(server: ServerProcess, api: Api) -> None:
    command = [npm.node(), "-e", NODE, server.url, f"/publish/{api.queue}"]
    sent = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=npm.environment())
    assert sent.returncode == 0, sent.stderr
    assert json.loads(sent.stdout) == [201] * 5
    assert _messages(api) == ["whole", "in parts", "end", "pipe", ""]


@pytest.mark.parametrize("code", [NO_ERROR, INTERNAL_ERROR, CANCEL])
@pytest.mark.parametrize("sent", [[], [b"half"], [b"half", b""]], ids=["nothing", "half", "half and an empty frame"])
def test_a_message_that_is_reset_is_not_stored(server: ServerProcess, api: Api, code: int, sent: list[bytes]) -> None:
    with Http2Client(server.port) as client:
        for _ in range(10):
            stream = client.post(f"/publish/{api.queue}")
            for part in sent:
                client.send(stream, part)
            client.reset(stream, code)
        last = client.post(f"/publish/{api.queue}")
        client.send(last, b"whole", end=True)
        while last not in client.ended:
            assert client.read()
    assert _messages(api) == ["whole"]


def test_a_message_of_a_lost_connection_is_not_stored(server: ServerProcess, api: Api) -> None:
    for _ in range(10):
        with Http2Client(server.port) as client:
            client.send(client.post(f"/publish/{api.queue}"), b"half")
    with Http2Client(server.port) as client:
        last = client.post(f"/publish/{api.queue}")
        client.send(last, b"whole", end=True)
        while last not in client.ended:
            assert client.read()
    assert _messages(api) == ["whole"]


def test_a_pull_after_the_answer_finds_the_message(server: ServerProcess, api: Api) -> None:
    with Http2Client(server.port) as client:
        for number in range(20):
            stream = client.post(f"/publish/{api.queue}")
            client.send(stream, str(number).encode(), end=True)
            while stream not in client.answered:
                assert client.read()
            assert api.pull()["data"] == number


@needs_curl
@pytest.mark.parametrize(("path", "status"), [("publish/{}", b"413"), ("queues/{}/jobs", b"400"), ("nothing/{}", b"404")])
@pytest.mark.parametrize("way", [("--data-binary", "@-"), ("-T", "-")], ids=["announced", "unannounced"])
def test_curl_gets_the_answer_to_a_body_that_is_too_large(
    server: ServerProcess, api: Api, path: str, status: bytes, way: tuple[str, str]
) -> None:
    url = f"{server.url}/{path.format(api.queue)}"
    for _ in range(3):
        sent = subprocess.run([*CURL, *way, url], input=TOO_LARGE, capture_output=True, check=False)
        assert (sent.returncode, sent.stdout[-3:]) == (0, status), sent.stderr
    assert api.counts()["waiting"] == 0


def test_a_client_that_sends_all_before_it_reads_gets_the_answer(server: ServerProcess, api: Api) -> None:
    with Http2Client(server.port) as client:
        stream = client.post(f"/publish/{api.queue}", length=len(TOO_LARGE))
        client.send_all(stream, TOO_LARGE)
        while stream not in client.ended:
            assert client.read()
        assert client.status[stream] == 413
        assert stream not in client.resets


def test_a_body_without_an_end_is_not_read_for_ever(server: ServerProcess, api: Api) -> None:
    with Http2Client(server.port) as client:
        stream = client.post(f"/publish/{api.queue}", length=1 << 40)
        sent = client.send_all(stream, itertools.repeat(bytes(1 << 14)))
        assert client.resets[stream] == NO_ERROR
        assert client.status[stream] == 413
        assert sent < limits.drain_bytes_max + (4 << 20)  # and what was on its way
