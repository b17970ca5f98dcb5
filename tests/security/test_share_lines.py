"""Requests wait in the line of a namespace in which their client has rights, whatever namespace it names."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest
from msgpack import unpackb as unpacked  # type: ignore[import-untyped]

from penstock.access.authenticator import Authenticator
from penstock.access.identity import EVERYTHING, Identity
from penstock.doors.jobs.tcp import TcpListener
from penstock.doors.resp.listener import RespListener
from penstock.doors.topics.subscriber import Subscribers
from tests.security.test_tenants import frame
from tests.support.resp import wire
from tests.support.tcp import all_commands

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine


class Office(Authenticator):
    """Knows one client, which has rights in one namespace."""

    async def identify(self, shown: str) -> Identity:
        return Identity(shown, {"evil": int(EVERYTHING)})


@pytest.fixture
def lines(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The lines in which requests stood."""
    found: set[str] = set()

    def note(method: str) -> None:
        real: Callable[..., Any] = getattr(engine.fair_share, method)

        def noted(namespace: str, *more: Any) -> Any:
            found.add(namespace)
            return real(namespace, *more)

        monkeypatch.setattr(engine.fair_share, method, noted)

    for method in ("begin", "begin_large"):
        note(method)
    return found


@pytest.mark.anyio
async def test_commands_over_resp_stand_in_the_line_of_their_client(
    engine: Engine, clock: ManualClock, lines: set[str]
) -> None:
    """Commands that are refused waited in front of those of the tenant whose namespace they named."""
    listener = RespListener(Subscribers(engine, 10_000), Office(clock, ["x"]))
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(wire("AUTH", "evil-token"))  # it has no right in the default namespace
    assert await reader.readline() == b"+OK\r\n"
    for _ in range(3):
        writer.write(wire("PUBLISH", "topic", "message"))
        assert b"default" in await reader.readline()
    writer.close()
    await listener.stop()
    assert "evil" in lines
    assert "default" not in lines


@pytest.mark.anyio
async def test_commands_over_tcp_stand_in_the_line_of_their_client(
    engine: Engine, clock: ManualClock, lines: set[str]
) -> None:
    listener = TcpListener(all_commands(engine), Office(clock, ["x"]), clock)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)

    async def ask(**fields: Any) -> bytes:
        writer.write(frame(fields))
        return await reader.readexactly(struct.unpack(">I", await reader.readexactly(4))[0])

    assert b"\xc3" in await ask(cmd="Auth", token="evil-token")  # it has no right in the default namespace
    for size in (1, 100_000):
        assert b"forbidden" in await ask(cmd="PUSH", queue="q", data="x" * size)
    writer.close()
    await listener.stop()
    assert "evil" in lines
    assert "default" not in lines


@pytest.mark.anyio
@pytest.mark.parametrize("jobs", [[{"data": 1}] * 101, [{"data": "x" * 7_000}] * 10], ids=["many jobs", "many bytes"])
async def test_a_large_bulk_push_over_tcp_waits_for_the_large_requests_of_its_namespace(
    engine: Engine, clock: ManualClock, jobs: list[dict[str, Any]]
) -> None:
    listener = TcpListener(all_commands(engine), Office(clock, ["x"]), clock)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)

    async def answer() -> Any:
        return unpacked(await reader.readexactly(struct.unpack(">I", await reader.readexactly(4))[0]))

    writer.write(frame({"cmd": "Auth", "token": "evil-token", "namespace": "evil"}))
    assert (await answer())["ok"] is True
    fair_share = engine.fair_share
    fair_share.begin("good")
    fair_share.begin("evil")
    assert fair_share.shared
    await fair_share.begin_large("evil")  # another large request of the namespace is in progress
    writer.write(frame({"cmd": "PUSHB", "queue": "q", "jobs": jobs, "reqId": "large"}))
    writer.write(frame({"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1}], "reqId": "small"}))
    assert (await answer())["reqId"] == "small"
    assert fair_share.waiting == 1
    fair_share.end_large("evil")
    stored = await answer()
    assert (stored["reqId"], len(stored["ids"])) == ("large", len(jobs))
    async with asyncio.timeout(10), fair_share.large("evil"):  # the command has given its place back
        pass
    writer.close()
    await listener.stop()


@pytest.mark.anyio
async def test_results_of_children_over_tcp_wait_for_the_large_requests_of_their_namespace(
    engine: Engine, clock: ManualClock
) -> None:
    listener = TcpListener(all_commands(engine), Office(clock, ["x"]), clock)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)

    async def answer() -> Any:
        return unpacked(await reader.readexactly(struct.unpack(">I", await reader.readexactly(4))[0]))

    writer.write(frame({"cmd": "Auth", "token": "evil-token", "namespace": "evil"}))
    assert (await answer())["ok"] is True
    writer.write(frame({"cmd": "PUSH", "queue": "q", "data": 1}))
    job = (await answer())["id"]
    fair_share = engine.fair_share
    fair_share.begin("good")
    fair_share.begin("evil")
    await fair_share.begin_large("evil")  # another large request of the namespace is in progress
    writer.write(frame({"cmd": "GetChildrenValues", "id": job, "reqId": "large"}))
    writer.write(frame({"cmd": "GetState", "id": job, "reqId": "small"}))
    assert (await answer())["reqId"] == "small"
    fair_share.end_large("evil")
    assert await answer() == {"ok": True, "data": {"values": {}}, "reqId": "large"}
    writer.close()
    await listener.stop()
