"""One WebSocket of the messages door, by a clock that is told: a store that fails, a client that is a bad one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.access.authenticator import Authenticator
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import StorageFailed, TooMany
from penstock.core.job import JobFlag
from penstock.core.lifecycle import State
from penstock.doors.messages.metrics import MessageCounters
from penstock.doors.messages.queue_registry import MessageDefaults, QueueRegistry
from penstock.doors.messages.request_metrics import RouteCount
from penstock.doors.messages.websocket import Consumers
from penstock.doors.net.raw_sockets import RawSockets
from penstock.doors.websocket import Closing
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.settle import Ack, Requeue
from tests.support.engines import QUEUE, claim, claim_all, push, state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

SCOPE = SimpleNamespace(
    path="/namespaces/default/queues/mail/ws",
    query_string="window=2",
    headers={},
    client="127.0.0.1:1",
    http_version="2",
    scheme="http",
)


class Client:
    """Both ends of a WebSocket that is none. While ``gate`` is closed the client takes nothing."""

    def __init__(self, door: Consumers) -> None:
        self.frames: list[Any] = []
        self.status: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.heard = 0
        self._said: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self.serving = asyncio.ensure_future(door.serve(SCOPE, self, "127.0.0.1"))  # type: ignore[arg-type]

    async def accept(self) -> Client:
        return self

    async def receive(self) -> Any:
        kind, data = await self._said.get()
        self.heard += 1
        return SimpleNamespace(kind=kind, data=data)

    async def send_str(self, data: str) -> None:
        await self.gate.wait()
        self.frames.append(json.loads(data))

    def close(self, status: int | None) -> None:
        self.status = status

    async def say(self, frame: Any) -> None:
        self._said.put_nowait((2, frame if isinstance(frame, str) else json.dumps(frame)))
        await yield_to_loop()

    async def ack(self, message: Any) -> None:
        await self.say({"type": "ack", "receipt_handle": message["receipt_handle"]})

    async def disconnect(self) -> None:
        self._said.put_nowait((0, ""))
        await self.serving


def door_of(engine: Engine, clock: ManualClock) -> Consumers:
    registry = QueueRegistry(engine, MessageDefaults())
    return Consumers(
        engine, registry, MessageCounters(engine.store.queue_find), Authenticator(clock), raw_sockets=RawSockets(clock),
        rate_limit=None, handshakes=RouteCount(clock),
    )  # fmt: skip


@pytest.fixture
def door(engine: Engine, clock: ManualClock) -> Consumers:
    return door_of(engine, clock)


@pytest.fixture
async def client(door: Consumers) -> AsyncIterator[Client]:
    made = Client(door)
    await yield_to_loop()
    yield made
    made.gate.set()
    await door.close()
    await made.serving


def fail_on(engine: Engine, monkeypatch: pytest.MonkeyPatch, *kinds: type) -> list[bool]:
    """Have commands of some kinds refused until the list that is returned is cleared."""
    run, failing = engine.run, [True]

    def refuse(command: Any) -> Any:
        if failing and isinstance(command, kinds):
            raise StorageFailed
        return run(command)

    monkeypatch.setattr(engine, "run", refuse)
    return failing


async def test_what_could_not_be_acknowledged_is_still_out(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await push(engine, flags=JobFlag.MESSAGE | JobFlag.REMOVE_ON_COMPLETE)
    await yield_to_loop()
    (message,) = client.frames
    failing = fail_on(engine, monkeypatch, Ack)
    await client.ack(message)
    assert client.frames[-1] == {
        "type": "error", "error": str(StorageFailed()), "receipt_handle": message["receipt_handle"],
    }  # fmt: skip
    failing.clear()
    await client.ack(message)
    assert await state(engine, job) is State.NOWHERE
    assert len(client.frames) == 2


async def test_what_could_not_be_acknowledged_in_time_is_the_queues(
    engine: Engine, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine, flags=JobFlag.MESSAGE, backoff=0)
    await yield_to_loop()
    (message,) = client.frames
    fail_on(engine, monkeypatch, Ack)
    await client.ack(message)
    await clock.advance(MessageDefaults().visibility_timeout_ms)
    assert [each.get("attempt") for each in client.frames] == [1, None, 2]


async def test_messages_that_cannot_be_had_are_asked_for_again(
    engine: Engine, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(engine)
    await yield_to_loop()
    failing = fail_on(engine, monkeypatch, Claim)
    await client.ack(client.frames[0])
    await push(engine)
    await yield_to_loop()
    assert len(client.frames) == 2, "it had asked before"
    await client.ack(client.frames[1])
    await push(engine)
    failing.clear()
    await clock.advance(limits.push_rest_ms)
    assert len(client.frames) == 3


async def test_what_could_not_be_given_back_comes_when_its_time_is_over(
    engine: Engine, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await push(engine, flags=JobFlag.MESSAGE)
    await yield_to_loop()
    failing = fail_on(engine, monkeypatch, Requeue)
    await client.disconnect()
    failing.clear()
    assert await state(engine, job) is State.ACTIVE
    await clock.advance(MessageDefaults().visibility_timeout_ms)
    assert await state(engine, job) is State.WAITING


async def test_what_is_said_before_hanging_up_is_heard(engine: Engine, client: Client) -> None:
    done = await push(engine, flags=JobFlag.MESSAGE | JobFlag.REMOVE_ON_COMPLETE)
    other = await push(engine)
    await yield_to_loop()
    client._said.put_nowait((2, json.dumps({"type": "ack", "receipt_handle": client.frames[0]["receipt_handle"]})))
    await client.disconnect()
    assert await state(engine, done) is State.NOWHERE
    assert await state(engine, other) is State.WAITING


async def test_what_is_claimed_while_the_client_leaves_goes_back(engine: Engine, client: Client) -> None:
    pushing = asyncio.ensure_future(push(engine))
    await asyncio.sleep(0)
    await client.disconnect()
    job = await pushing
    await yield_to_loop()
    delivery = await claim(engine)
    assert delivery is not None
    assert (delivery.job.id, delivery.job.attempts) == (job.id, 0)


async def test_who_does_not_read_is_not_listened_to(client: Client) -> None:
    client.gate.clear()
    nonsense = json.dumps({"type": "x" * 60, "receipt_handle": ""})
    for _ in range(20_000):
        client._said.put_nowait((2, nonsense))
    await yield_to_loop(40_000)
    assert client.heard < 20_000, "about a megabyte of errors waits for it"
    client.gate.set()
    await yield_to_loop(40_000)
    assert client.heard == 20_000


async def test_who_takes_nothing_for_long_is_gone(engine: Engine, client: Client, clock: ManualClock) -> None:
    client.gate.clear()
    job = await push(engine, flags=JobFlag.MESSAGE, max_attempts=100)
    await clock.advance(limits.reader_stuck_ms_max)
    await client.serving
    assert await state(engine, job) is State.WAITING


async def test_there_are_so_many_and_a_door_that_closes_lets_nobody_in(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "push_sockets_max", 1)
    door = door_of(engine, clock)
    client = Client(door)
    await yield_to_loop()
    assert len(door) == 1
    with pytest.raises(TooMany):
        await Client(door).serving
    await door.close()
    await client.serving
    assert client.status == Closing.GOING_AWAY
    assert len(door) == 0
    with pytest.raises(TooMany):
        await Client(door).serving


async def test_nothing_is_remembered_of_a_connection_that_is_over(
    engine: Engine, door: Consumers, client: Client, clock: ManualClock
) -> None:
    for _ in range(4):
        await push(engine, flags=JobFlag.MESSAGE | JobFlag.REMOVE_ON_COMPLETE)
    await yield_to_loop()
    assert (len(door.deliveries), engine.feed.has_listeners) == (2, True)
    await client.ack(client.frames[0])
    assert (len(door.deliveries), engine.feed.has_listeners) == (2, True)
    await clock.advance(MessageDefaults().visibility_timeout_ms)
    assert (len(door.deliveries), engine.feed.has_listeners) == (2, False), "late words about them are heard"
    await client.disconnect()
    assert (len(door.deliveries), engine.feed.has_listeners) == (0, False)


async def test_two_that_hold_the_whole_queue_give_all_of_it_back(engine: Engine, door: Consumers, client: Client) -> None:
    other = Client(door)
    await yield_to_loop()
    jobs = [await push(engine) for _ in range(4)]
    await yield_to_loop()
    assert len(client.frames) + len(other.frames) == 4
    await other.disconnect()
    await client.disconnect()
    left = [await claim(engine, queue=QUEUE) for _ in range(4)]
    assert {each.job.id for each in left if each is not None} == {job.id for job in jobs}


async def test_many_messages_are_given_back_in_slices_and_keep_their_order(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "slice_jobs_max", 1)
    jobs = [await push(engine, flags=JobFlag.MESSAGE) for _ in range(3)]
    await yield_to_loop()
    assert len(client.frames) == 2
    sizes: list[int] = []
    run = engine.run

    def note(command: Any) -> Any:
        if isinstance(command, Requeue):
            sizes.append(len(command.holds))
        return run(command)

    monkeypatch.setattr(engine, "run", note)
    await client.disconnect()
    assert sizes == [1, 1]
    assert [job.id for job in await claim_all(engine)] == [job.id for job in jobs]
