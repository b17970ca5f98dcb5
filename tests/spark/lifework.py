"""A random life of queues over HTTP, and what must be counted of it afterwards."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.spark.chaos import until

if TYPE_CHECKING:
    import httpx2

    from tests.support.server import ServerProcess

NAMESPACES = ("default", "acme")
QUEUES = ("mail", "billing", "thumbs")
STALLING = "stalling"
#: Jobs of one request at most.
_SLICE = 1_000


class Lifework:
    """Pushes, works at, fails and removes jobs at random, and counts what the server said it did."""

    def __init__(self, server: ServerProcess, jobs: int, seed: int = 7) -> None:
        self._server = server
        self._jobs = jobs
        self._chance = random.Random(seed)
        #: What was done, by namespace and queue.
        self.truth: dict[tuple[str, str], Counter[str]] = {}

    def live(self) -> None:
        """Do it all."""
        with self._server.client() as client:
            pushed = 0
            while pushed < self._jobs:
                place = self._place()
                pushed += self._push(client, place, min(self._jobs - pushed, self._chance.choice((1, 20, _SLICE))))
                for _ in range(2):
                    self._act(client, self._place())
            # However short the life is, it has some of everything.
            for place in self.truth.copy():
                for what in (
                    "work",
                    "release",
                    "discard",
                    "revive",
                    "discard",
                    "purge",
                    "cancel",
                    "replay",
                    "promote",
                    "clean",
                ):
                    getattr(self, f"_{what}")(client, place)
            self._stall(client)

    def counts(self, place: tuple[str, str]) -> dict[str, int]:
        """Ask the engine how many jobs are in each state."""
        with self._server.client() as client:
            found: dict[str, int] = self._ask(client, "GET", place, f"/queues/{place[1]}/counts")["counts"]
            # Those that are counted among the waiting ones, too.
            return {state: count for state, count in found.items() if state not in ("prioritized", "paused")}

    def _place(self) -> tuple[str, str]:
        return self._chance.choice(NAMESPACES), self._chance.choice(QUEUES)

    def _note(self, place: tuple[str, str], **counts: int) -> None:
        self.truth.setdefault(place, Counter()).update(counts)

    def _ask(self, client: httpx2.Client, method: str, place: tuple[str, str], path: str, **body: Any) -> Any:
        reply = client.request(method, path, headers={"X-Namespace": place[0]}, json=body or None)
        assert reply.status_code < 300, (path, reply.text)
        return reply.json()

    def _push(self, client: httpx2.Client, place: tuple[str, str], count: int) -> int:
        jobs = [self._job() for _ in range(count)]
        if count == 1:
            self._ask(client, "POST", place, f"/queues/{place[1]}/jobs", **jobs[0])
        else:
            ids = self._ask(client, "POST", place, f"/queues/{place[1]}/jobs/bulk", jobs=jobs)["ids"]
            assert len(ids) == count
        self._note(place, arrivals=count, bytes_in=sum(len(each["data"]) + 2 for each in jobs))
        return count

    def _job(self) -> dict[str, Any]:
        chance = self._chance
        job: dict[str, Any] = {"data": "x" * chance.randint(1, 50), "priority": chance.randint(0, 3), "maxAttempts": 1}
        if chance.random() < 0.1:
            job["delay"] = 3_600_000
        if chance.random() < 0.2:
            job |= {"maxAttempts": 2, "backoff": 0}
        if chance.random() < 0.2:
            job["removeOnComplete"] = True
        return job

    def _act(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        what = self._chance.choices(
            ("work", "release", "drain", "cancel", "discard", "revive", "purge", "clean", "replay", "promote"),
            (60, 5, 2, 4, 4, 3, 2, 3, 2, 2),
        )[0]
        getattr(self, f"_{what}")(client, place)

    def _pull(self, client: httpx2.Client, place: tuple[str, str], count: int, **more: Any) -> Any:
        return self._ask(client, "POST", place, f"/queues/{place[1]}/jobs/pull-batch", count=count, **more)

    def _work(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        pulled = self._pull(client, place, self._chance.choice((5, 300, _SLICE)), lockTtl=3_600_000)
        good: list[tuple[Any, str]] = []
        for job, token in zip(pulled["jobs"], pulled["tokens"], strict=True):
            if self._chance.random() < 0.06:
                error = f"Timeout of {self._chance.randint(1, 900)} ms at '{job['id']}'"
                self._ask(client, "POST", place, f"/jobs/{job['id']}/fail", error=error, token=token)
                last = job["attempts"] + 1 >= job["maxAttempts"]
                self._note(place, failures=1, **({"dead": 1} if last else {"retries": 1}))
            else:
                good.append((job, token))
        if good:
            ids, tokens = [job["id"] for job, _ in good], [token for _, token in good]
            reply = self._ask(client, "POST", place, "/jobs/ack-batch", ids=ids, tokens=tokens)
            assert reply["count"] == len(good)
            self._note(place, completions=len(good))

    def _release(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        pulled = self._pull(client, place, 20, lockTtl=3_600_000)
        if pulled["jobs"]:
            ids = [job["id"] for job in pulled["jobs"]]
            reply = self._ask(client, "POST", place, "/jobs/release-batch", ids=ids, tokens=pulled["tokens"])
            assert reply["count"] == len(ids)
            self._note(place, releases=len(ids))

    def _drain(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        if self._chance.random() < 0.3:
            self._note(place, removed=self._ask(client, "POST", place, f"/queues/{place[1]}/drain")["count"])

    def _some(self, client: httpx2.Client, place: tuple[str, str], state: str) -> list[str]:
        jobs = self._ask(client, "GET", place, f"/queues/{place[1]}/jobs/list?state={state}&limit=10")["jobs"]
        return [job["id"] for job in jobs]

    def _cancel(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        for job in self._some(client, place, "waiting"):
            self._ask(client, "DELETE", place, f"/jobs/{job}")
            self._note(place, removed=1)

    def _discard(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        for job in self._some(client, place, "waiting"):
            self._ask(client, "POST", place, f"/jobs/{job}/discard")
            self._note(place, dead=1)

    def _promote(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        self._ask(client, "POST", place, f"/queues/{place[1]}/promote-jobs", count=20)

    def _revive(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        self._note(place, revived=self._ask(client, "POST", place, f"/queues/{place[1]}/dlq/retry")["count"])

    def _purge(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        self._note(place, forgotten=self._ask(client, "POST", place, f"/queues/{place[1]}/dlq/purge")["count"])

    def _clean(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        for state, name in (("completed", "forgotten"), ("delayed", "removed")):
            reply = self._ask(client, "POST", place, f"/queues/{place[1]}/clean", grace=0, state=state, limit=15)
            self._note(place, **{name: reply["count"]})

    def _replay(self, client: httpx2.Client, place: tuple[str, str]) -> None:
        for job in self._some(client, place, "completed"):
            self._ask(client, "POST", place, f"/queues/{place[1]}/retry-completed", id=job)
            self._note(place, replayed=1)

    def _stall(self, client: httpx2.Client) -> None:
        """Let workers go silent, and jobs become too old."""
        place = ("default", STALLING)
        self._push(client, place, 30)
        held = self._pull(client, place, 10, lockTtl=1)
        until(lambda: self.counts(place)["active"] == 0)
        last = [job for job in held["jobs"] if job["maxAttempts"] == 1]
        self._note(place, stalls=len(held["jobs"]), dead=len(last))
        for _ in range(5):
            self._ask(client, "POST", place, f"/queues/{STALLING}/jobs", data="y", ttl=1)
        self._note(place, arrivals=5, bytes_in=15, expired=5)
        until(lambda: sum(self.counts(place).values()) == 30)
