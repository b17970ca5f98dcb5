"""One attempt, over real sockets: what is sent, what counts as an answer, and where a connection may go."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.clock import SystemClock
from penstock.outbound.guard import Guard
from penstock.outbound.sender import NotDelivered, Sender
from tests.support.receiver import CLOSE, HANG, Receiver, status

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LOCAL = Guard(("127.0.0.1",))


def sender(guard: Guard = LOCAL, **more: Any) -> Sender:
    return Sender(SystemClock(), guard, **more)


async def test_a_request_is_what_was_given_and_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Receiver(status(204)) as receiver:
        assert await sender().post(f"{receiver.url}?a=b#c", {"X-Webhook-Event": "job.pushed"}, b'{"a":1}') == 204
    (request,) = receiver.requests
    assert request.line == "POST /hook?a=b HTTP/1.1"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["x-webhook-event"] == "job.pushed"
    assert request.headers["connection"] == "close"
    assert request.body == b'{"a":1}'


@pytest.mark.parametrize("code", [200, 299, 301, 302, 307, 308, 400, 410, 429, 500, 503])
async def test_the_status_is_the_answer_and_a_redirect_is_not_followed(code: int) -> None:
    async with Receiver() as forbidden, Receiver(status(code, f"Location: {forbidden.url}")) as receiver:
        assert await sender().post(receiver.url, {}, b"") == code
        assert len(receiver.requests) == 1
        assert forbidden.requests == []


async def test_interim_answers_are_passed_over() -> None:
    async with Receiver(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + status(201)
    ) as receiver:
        assert await sender().post(receiver.url, {}, b"") == 201


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (CLOSE, "closed before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nHalf", "closed before the answer was complete"),
        (b"HTTP/1.1 200 OK", "closed before the answer was complete"),
        (b"hello\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/2 200\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 99 No\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n", "limit"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", "too many headers"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "too many headers"),
    ],
)
async def test_what_is_no_answer_is_a_failure(reply: bytes, reason: str) -> None:
    async with Receiver(reply) as receiver:
        with pytest.raises(NotDelivered, match=reason):
            await sender().post(receiver.url, {}, b"")


async def test_an_endless_body_is_not_read() -> None:
    async with Receiver(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 50_000_000) as receiver:
        assert await sender().post(receiver.url, {}, b"") == 200


async def test_one_that_hangs_is_given_up() -> None:
    async with Receiver(HANG) as receiver:
        with pytest.raises(NotDelivered, match="No answer within 50 ms"):
            await sender(timeout_ms=50).post(receiver.url, {}, b"")


async def test_one_that_never_reads_is_given_up() -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    server = await asyncio.start_server(never_read, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NotDelivered, match="No answer within"):
        await sender(timeout_ms=50).post(f"http://127.0.0.1:{port}/", {}, b"x" * 50_000_000)
    server.close()
    for writer in accepted:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_nobody_there() -> None:
    async with Receiver() as receiver:
        pass
    with pytest.raises(NotDelivered, match="Connect"):
        await sender().post(receiver.url, {}, b"")


async def test_a_lookup_that_hangs_is_given_up() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(NotDelivered, match="No answer within"):
        await sender(Guard(resolve=resolve), timeout_ms=20).post("http://slow.com/", {}, b"")


class Connections:
    """Stands in for the network: notes where a connection goes, and takes it to a receiver instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, receiver: Receiver, *, dead: tuple[str, ...] = ()) -> None:
        self.made: list[tuple[str, int]] = []
        connect = asyncio.open_connection

        async def open_connection(host: str, port: int, **more: Any) -> Any:
            self.made.append((host, port))
            if host in dead:
                raise ConnectionRefusedError
            return await connect("127.0.0.1", receiver.port, **more)

        monkeypatch.setattr(asyncio, "open_connection", open_connection)


async def test_a_name_that_changes_its_address_is_connected_to_where_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [["93.184.216.34"], ["127.0.0.1"], ["93.184.216.34", "127.0.0.1"]]

    async def resolve(host: str, _port: int) -> list[str]:
        assert host == "rebind.com"
        return answers.pop(0)

    async with Receiver() as receiver:
        connections = Connections(monkeypatch, receiver)
        rebound = sender(Guard(resolve=resolve))
        assert await rebound.post("http://rebind.com/hook", {}, b"") == 200
        assert len(answers) == 2  # looked up once, not again for the connection
        for _ in range(2):
            with pytest.raises(NotDelivered, match="Webhook URL cannot point to loopback IP"):
                await rebound.post("http://rebind.com/hook", {}, b"")
        assert connections.made == [("93.184.216.34", 80)]
        assert receiver.requests[0].headers["host"] == "rebind.com"


async def test_a_stored_url_is_checked_again_before_every_attempt() -> None:
    async with Receiver() as receiver:
        with pytest.raises(NotDelivered, match="Webhook URL cannot point to loopback IP"):
            await sender(Guard()).post(receiver.url, {}, b"")
        assert receiver.requests == []


async def test_the_next_address_is_tried_if_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34", "93.184.216.35"]

    async with Receiver() as receiver:
        connections = Connections(monkeypatch, receiver, dead=("93.184.216.34",))
        assert await sender(Guard(resolve=resolve)).post("http://two.com/", {}, b"") == 200
        assert [host for host, _ in connections.made] == ["93.184.216.34", "93.184.216.35"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=good.com",
            "-addext", "subjectAltName=DNS:good.com", "-keyout", str(path) + ".key", "-out", str(path),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


async def test_tls_asks_for_the_name_of_the_url_and_checks_the_certificate(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, f"{certificate}.key")
    serving.sni_callback = lambda _socket, name, _context: asked.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34"]

    guard = Guard(resolve=resolve)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # the receiver's side of refusals
    async with Receiver(tls=serving) as receiver:
        Connections(monkeypatch, receiver)
        assert await sender(guard, tls=trusting).post("https://good.com/hook", {}, b"x") == 200
        assert asked == ["good.com"]
        assert receiver.requests[0].headers["host"] == "good.com"
        with pytest.raises(NotDelivered, match="Hostname mismatch"):
            await sender(guard, tls=trusting).post("https://other.com/hook", {}, b"x")
        with pytest.raises(NotDelivered, match=r"self.signed"):
            await sender(guard).post("https://good.com/hook", {}, b"x")
        assert len(receiver.requests) == 1
