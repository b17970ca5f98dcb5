"""Several servers on one database, and clients that use all of them, never give up, and write down everything."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import httpx2

from tests.support.history import Ack, Delivery, History, Verdict, judge
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LEASE_MS = 2_000
PATIENCE_S = 180
TICK_MS = 100
BACKLOG_MAX = 500
BROKEN = (httpx2.TransportError, httpx2.TimeoutException)


class Pair:
    """Servers on one database, or on shards. ``url``: its address, or theirs. ``env``: more variables for all servers."""

    def __init__(self, directory: Path, url: str, count: int = 2, env: dict[str, str] | None = None) -> None:
        variables = {"PENSTOCK_STORES": url} | (env or {})
        self.servers = [ServerProcess(directory / f"server{number}", env=variables) for number in range(count)]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self.servers))
        self.clients = [await self._stack.enter_async_context(server.async_client()) for server in self.servers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        await asyncio.gather(*(asyncio.to_thread(server.stop) for server in self.servers))


class PairLoad:
    """Pushes, pulls, acks, failures, flows and a cron on a queue, each at any of the servers.

    ``queue``, ``ticks``: where its jobs and those of its cron are.
    """

    def __init__(self, pair: Pair, seed: int, *, queue: str = "load", ticks: str = "ticks") -> None:
        self.pair = pair
        self.queue, self.ticks_queue, self.cron = queue, ticks, f"often-{ticks}"
        self.history = History()
        self.random = random.Random(seed)
        self.stopping = False
        self.answers = 0
        self.slowest_s = [0.0] * len(pair.servers)
        self.under_way = [0] * len(pair.servers)
        self.avoided: int | None = None  #: a server that nobody asks for now
        self.codes: dict[str, int] = {}
        self.internal: list[str] = []  #: errors that nobody has foreseen
        self.parents: dict[str, list[str]] = {}
        self.ticks: set[str] = set()
        self.failed = 0
        self._alarm_at = 0
        self._alarm = asyncio.Event()

    async def after(self, answers: int) -> None:
        """Wait until so many more requests have succeeded: a moment in the middle of things, without a stopwatch."""
        self._alarm.clear()
        self._alarm_at = self.answers + answers
        async with asyncio.timeout(PATIENCE_S):
            await self._alarm.wait()

    async def ask(self, method: str, path: str, body: Any = None, *, at: int | None = None) -> httpx2.Response | None:
        """Ask a server; None if the connection broke before the answer."""
        if at is None:
            at = self.random.choice([number for number in range(len(self.pair.clients)) if number != self.avoided])
        asked_at = History.now()
        self.under_way[at] += 1
        try:
            response = await self.pair.clients[at].request(method, path, json=body)
        except httpx2.ConnectError:  # it is not there: nothing happened
            await asyncio.sleep(0.01)
            return await self.ask(method, path, body)
        except BROKEN:
            await asyncio.sleep(0.01)  # let the loop breathe while the server is away
            return None
        finally:
            self.under_way[at] -= 1
            self.slowest_s[at] = max(self.slowest_s[at], History.now() - asked_at)
        if response.status_code != 200:
            code = response.headers["penstock-error"]
            self.codes[code] = self.codes.get(code, 0) + 1
            if code == "internal":
                self.internal.append(response.text)
            await asyncio.sleep(0.01)
            return response
        self.answers += 1
        if self.answers >= self._alarm_at:
            self._alarm.set()
        return response

    async def prepare(self) -> None:
        """Make the queue, and a cron that puts its ticks into another one."""
        for queue in (self.queue, self.ticks_queue):
            await self.surely("PUT", f"/queues/{queue}/stall-config", {"config": {"maxStalls": 1_000}})
        await self._tick_every(TICK_MS)

    async def _tick_every(self, ms: int) -> None:
        cron = {"name": self.cron, "queue": self.ticks_queue, "data": "tick", "repeatEvery": ms, "preventOverlap": False}
        await self.surely("POST", "/crons", cron)

    async def surely(self, method: str, path: str, body: Any = None) -> Any:
        """Ask until it works."""
        async with asyncio.timeout(PATIENCE_S):
            while (response := await self.ask(method, path, body)) is None or response.status_code != 200:
                await asyncio.sleep(0.01)
        return response.json()

    def start(self, producers: int = 4, workers: int = 6) -> list[asyncio.Task[None]]:
        """Begin."""
        return [
            *(asyncio.create_task(self._produce(name)) for name in range(producers)),
            *(asyncio.create_task(self._work(self.queue)) for _ in range(workers)),
            asyncio.create_task(self._work(self.ticks_queue)),
        ]

    async def _produce(self, name: int) -> None:
        for number in itertools.count():
            while len(self.history.acknowledged) - len(self.history.acks) > BACKLOG_MAX and not self.stopping:
                await asyncio.sleep(0.01)  # else a long run would end with a long drain
            if self.stopping:
                return
            items = [f"{name}-{number}-{index}" for index in range(self.random.choice((1, 1, 1, 5)))]
            ids = await self._push(items)
            if ids and len(ids) > 1:
                parent = f"{name}-{number}-parent"
                self.parents[parent] = items
                await self._push([parent], dependsOn=ids)

    async def _push(self, items: list[str], **more: Any) -> list[str] | None:
        self.history.attempted.update(items)
        jobs = [
            {"data": item, "priority": self.random.randrange(3), "maxAttempts": 100, "backoff": 10, **more} for item in items
        ]
        if len(items) == 1:
            response = await self.ask("POST", f"/queues/{self.queue}/jobs", jobs[0])
        else:
            response = await self.ask("POST", f"/queues/{self.queue}/jobs/bulk", {"jobs": jobs})
        if response is None:
            return None
        if response.status_code == 200:
            reply = response.json()
            ids: list[str] = reply.get("ids") or [reply["id"]]
            self.history.acknowledged.update(zip(items, ids, strict=True))
            return ids
        if not _may_have_happened(response):
            self.history.refused.update(items)
        return None

    async def _work(self, queue: str) -> None:
        while not self.stopping:
            await self.take(queue, wait=200)

    async def take(self, queue: str, wait: int) -> bool:
        """Pull some jobs, forget about some, fail some, else acknowledge them; True if there were any."""
        asked_at = History.now()
        body = {"count": 3, "timeout": wait, "owner": "w", "lockTtl": LEASE_MS}
        response = await self.ask("POST", f"/queues/{queue}/jobs/pull-batch", body)
        if response is None or response.status_code != 200:
            return False
        reply, at = response.json(), History.now()
        found = list(zip(reply["jobs"], reply["tokens"], strict=True))
        for job, token in found:
            if queue == self.ticks_queue:
                self.ticks.add(job["id"])
                await self.ask("POST", f"/jobs/{job['id']}/ack", {"token": token})
                continue
            delivery = Delivery(at, job["id"], token, job["attempts"], LEASE_MS, self.history.epoch, asked_at)
            self.history.deliveries[job["data"]].append(delivery)
        for job, token in found if queue == self.queue else ():
            fate = 1.0 if self.stopping else self.random.random()
            if fate < 0.04:
                continue
            if fate < 0.08:
                self.failed += 1
                mine = next(each for each in self.history.deliveries[job["data"]] if each.token == token)
                mine.lease_ms = 0  # from here on anybody may have it
                await self.ask("POST", f"/jobs/{job['id']}/fail", {"token": token, "error": "told to"})
            else:
                await self._ack(job, token)
        return bool(found)

    async def _ack(self, job: Any, token: str) -> None:
        asked_at = History.now()
        response = await self.ask("POST", f"/jobs/{job['id']}/ack", {"token": token, "result": 1})
        outcome = "info"
        if response is not None and not _may_have_happened(response):
            outcome = "ok" if response.status_code == 200 else "fail"
        self.history.acks[job["data"]].append(Ack(asked_at, History.now(), job["id"], token, outcome))

    async def finish(self, tasks: list[asyncio.Task[None]]) -> Verdict:
        """Stop, take what is left, and judge."""
        self.stopping = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)
        await self._tick_every(3_600_000)  # it keeps its count, and does not tick any more
        executions = (await self.surely("GET", f"/crons/{self.cron}"))["cron"]["executions"]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(self._drain(self.queue) for _ in range(6)), self._drain(self.ticks_queue))
        except TimeoutError:
            left = {queue: await self._counts(queue) for queue in (self.queue, self.ticks_queue)}
            raise AssertionError(f"not drained in {PATIENCE_S} s: {left}") from None
        dead = (await self.surely("GET", f"/queues/{self.queue}/dlq?count=10000"))["jobs"]
        self.history.left_over = {job["data"] for job in dead}
        assert len(self.ticks) == executions, f"{executions} ticks, {len(self.ticks)} jobs"
        self._check_acks()
        self._check_parents()
        return judge(self.history)

    async def _drain(self, queue: str) -> None:
        while any((await self._counts(queue)).values()):
            await self.take(queue, wait=200)

    async def _counts(self, queue: str) -> dict[str, int]:
        counts = (await self.surely("GET", f"/queues/{queue}/counts"))["counts"]
        return {name: count for name, count in counts.items() if name not in ("completed", "failed", "dead", "paused")}

    def _check_acks(self) -> None:
        """Nothing is finished although every ack of it was answered with: that did not happen."""
        for item, acks in self.history.acks.items():
            if item not in self.history.left_over:
                assert any(ack.outcome != "fail" for ack in acks), (
                    f"{item} is done although it was told not to be: {acks}, {self.history.deliveries[item]}"
                )

    def _check_parents(self) -> None:
        """A parent is handed out when all its children are done, not before."""
        for parent, children in self.parents.items():
            for delivery in self.history.deliveries.get(parent, ()):
                for child in children:
                    asked = [ack.asked_at for ack in self.history.acks[child] if ack.outcome != "fail"]
                    assert asked, f"{parent} came without {child}"
                    assert min(asked) < delivery.at, f"{parent} came before {child}"


def _may_have_happened(response: httpx2.Response) -> bool:
    return response.headers.get("penstock-error") == "outcome_unknown"
