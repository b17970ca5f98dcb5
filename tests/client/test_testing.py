"""The helpers for tests, in tests; and the plugin for pytest, in a test suite of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import ApiError, Fail, JobFailed, ResultMissing, Retry, Tasks, current_job
from penstock.client.testing import SERVER_PREFIXES, SERVER_VARIABLES, Server, _without_settings, inline, manual
from penstock.config import load

if TYPE_CHECKING:
    from pathlib import Path

tasks = Tasks("http://nobody.invalid")
sent: list[str] = []


@tasks.task
def send(to: str, text: str = "hello") -> str:
    current_job().progress(50)
    sent.append(to)
    return text


@tasks.task
async def send_all(people: list[str]) -> int:
    for each in people:
        await send.aenqueue(each)
    return len(people)


@tasks.task
def broken() -> None:
    raise ValueError("broken")


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def test_inline() -> None:
    with inline(tasks) as box:
        assert send.enqueue("ada").result() == "hello"
        assert send_all.enqueue(["bob", "eve"]).result() == 2
        assert sent == ["ada", "bob", "eve"]
        failed = broken.enqueue()
        with pytest.raises(JobFailed, match="ValueError: broken"):
            failed.result()
        assert (failed.state(), failed.job().attempts) == ("failed", 3)
        assert send.enqueue_in(3600, "later").state() == "completed"
        assert len(box.calls(send)) == 4


@pytest.mark.anyio
async def test_inline_for_coroutines() -> None:
    with inline(tasks):
        handle = await send_all.aenqueue(["bob"])
        assert await handle.aresult() == 1
    assert sent == ["bob"]


def test_manual() -> None:
    with manual(tasks) as box:
        first = send.enqueue("ada", text="bye")
        later = send.enqueue_in(60, "bob")
        send_all.enqueue(["eve"])
        assert sent == []
        assert first.state() == "waiting"
        with pytest.raises(AssertionError, match="drain"):
            first.result()
        call = box.assert_enqueued(send, to="ada", text="bye")
        assert (call.queue, call.run_at) == ("tasks", None)
        assert box.assert_enqueued(send, to="bob").run_at is not None
        box.assert_not_enqueued(send, to="eve")
        with pytest.raises(AssertionError, match=r"(?s)send\(to='joe'\) was not enqueued.*send\(to='ada'"):
            box.assert_enqueued(send, to="joe")
        with pytest.raises(AssertionError, match="was enqueued"):
            box.assert_not_enqueued(send)
        assert box.drain() == 3
        assert sent == ["ada", "eve"]
        assert first.result() == "bye"
        later.cancel()
        assert box.drain(scheduled=True) == 0
        assert later.state() == "unknown"


def test_manual_failures_and_unique_calls() -> None:
    @tasks.task(unique=True, name="unique")
    def once(number: int) -> None: ...

    with manual(tasks) as box:
        assert once.enqueue(1).id == once.enqueue(1).id
        mine = send.options(job_id="mine")
        assert [mine.enqueue("ada").id, mine.enqueue("bob").id, len(box.calls(send))] == ["mine", "mine", 1]
        handle = broken.enqueue()
        assert box.drain() == 3
        with pytest.raises(JobFailed, match="broken"):
            handle.result()
        with pytest.raises(AssertionError, match=r"broken\(\) failed: ValueError: broken") as failed:
            box.assert_none_failed()
        assert isinstance(failed.value.__cause__, ValueError)
        with pytest.raises(TypeError):
            send.enqueue(5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="delay"):
            send.enqueue_in(-1, "x")
    del tasks.tasks["unique"]


def test_tasks_are_tried_again_and_tell_of_themselves_as_in_a_worker() -> None:
    @tasks.task(name="flaky", max_attempts=4)
    def flaky(good: int) -> int:
        job = current_job()
        job.progress(job.attempt * 10, f"try {job.attempt}")
        job.log("trying", "warn")
        if job.attempt < good:
            raise Retry("not yet", after=3600)
        return job.attempt

    @tasks.task(name="hopeless")
    async def hopeless() -> None:
        raise Fail("no use")

    @tasks.task(name="slow", timeout=0.05, max_attempts=1)
    def slow() -> None:
        while not current_job().cancelled:
            threading.Event().wait(0.01)

    @tasks.task(name="odd")
    def odd() -> object:
        return object()

    try:
        for mode in (inline, manual):
            with mode(tasks) as box:
                good, bad = flaky.enqueue(3), flaky.enqueue(9)
                never, late, strange = hopeless.enqueue(), slow.enqueue(), odd.enqueue()
                box.drain()
                assert good.result() == 3
                job = good.job()
                assert (job.attempts, job.progress, job.progress_message, job.max_attempts) == (2, 30, "try 3", 4)
                assert box.calls(flaky, good=3)[0].logs == [("trying", "warn")] * 3
                assert (bad.state(), bad.job().attempts, bad.job().error) == ("failed", 4, "not yet")
                assert (never.job().attempts, never.job().error) == (1, "no use")
                assert "timeout" in (late.job().error or "")
                with pytest.raises(ResultMissing):
                    strange.result()
    finally:
        for name in ("flaky", "hopeless", "slow", "odd"):
            del tasks.tasks[name]


def test_calls_wait_for_those_they_need() -> None:
    with manual(tasks) as box:
        first = send.enqueue_in(60, "first")
        second = send.options(depends_on=[first]).enqueue("second")
        after_failure = send.options(depends_on=[broken.enqueue()]).enqueue("never")
        assert box.drain() == 1
        assert box.drain(scheduled=True) == 2
        assert sent == ["first", "second"]
        assert (second.state(), after_failure.state()) == ("completed", "waiting-children")
        with pytest.raises(ApiError, match="Dependency job not found: nobody"):
            send.options(depends_on=["nobody"]).enqueue("x")


@pytest.mark.anyio
async def test_handles_for_coroutines_without_a_server() -> None:
    with manual(tasks) as box:
        handle = await send.aenqueue("ada")
        assert (await handle.astate(), (await handle.ajob()).queue) == ("waiting", "tasks")
        assert tasks.handle(handle.id).state() == "waiting"
        await handle.acancel()
        assert box.enqueued == []


def test_afterwards_all_is_as_before() -> None:
    before = tasks.backend
    with manual(tasks), inline(tasks):
        pass
    assert tasks.backend is before
    assert asyncio.iscoroutinefunction(send_all.function)


SUITE = """
from penstock.client import Tasks, Worker

def test_a(penstock_client):
    assert penstock_client.jobs.push("q", 1)
    assert penstock_client.queues.count("q") == 1

def test_b_is_apart(penstock_client, penstock_server):
    assert penstock_client.queues.count("q") == 0
    assert penstock_client.settings.url == penstock_server.url
"""


def test_a_server_for_tests_sees_nothing_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "the developer's own"
    for name, value in {
        "PENSTOCK_STORES": "postgresql://nobody@nowhere.invalid/production",
        "DATA_PATH": str(other),
        "PENSTOCK_DATA": str(other),
        "AUTH_TOKENS": "secret",
        "EPOCHQ_PORT": "nonsense",
        "HTTP_PORT": "nonsense",
    }.items():
        monkeypatch.setenv(name, value)
    with Server() as server, server.client() as client:
        assert client.jobs.push("q", 1)
    assert not other.exists()
    with Server(env={"AUTH_TOKENS": "asked for"}) as server, server.client() as client:
        with pytest.raises(ApiError) as refused:
            client.jobs.push("q", 1)
        assert refused.value.is_unauthorized


def test_it_knows_what_a_server_reads_from_its_environment() -> None:
    """Every variable that the configuration looks at, however it comes by the name."""

    class Watched(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return default

        def __contains__(self, name: object) -> bool:
            asked.add(str(name))
            return False

    asked: set[str] = set()
    load({}, Watched())
    assert {"PENSTOCK_STORES", "HOST", "EPOCHQUEUE_PORT", "TCP_PORT"} <= asked | {"HOST"}
    assert _without_settings(dict.fromkeys(asked, "x") | {"HOME": "kept"}) == {"HOME": "kept"}
    assert {name for name in asked if not name.startswith(SERVER_PREFIXES)} == SERVER_VARIABLES


def test_the_plugin_for_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
