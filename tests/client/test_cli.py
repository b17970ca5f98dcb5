"""``penstock worker`` as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Self

import pytest
from click.testing import CliRunner

from penstock.cli.worker import worker
from tests.client.test_worker import PATIENCE_S, until

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from penstock.client import Client
    from tests.support.server import ServerProcess

MODULE = """
from penstock.client import Tasks, current_job

tasks = Tasks("http://nobody.invalid", queue="{queue}")

@tasks.task(name="greet")
def greet(who: str) -> str:
    current_job().log("greeting")
    return f"{word} {{who}}"

@tasks.task(name="relay")
async def relay(who: str) -> str:
    return (await greet.aenqueue(who)).id

@tasks.task(name="hold")
def hold() -> str:
    with open("gate") as gate:
        return gate.read()
"""


class Command:
    """``penstock worker`` in a directory."""

    def __init__(self, directory: Path, *args: str) -> None:
        command = [sys.executable, "-m", "penstock", "worker", *args]
        self.process = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def until(self, text: str) -> None:
        """Read lines up to one that has a text in it."""
        while text not in (line := self.line()):
            assert line or self.process.poll() is None

    def press_ctrl_c(self) -> None:
        """Do what a terminal does: all processes of the group get the signal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def write(path: Path, queue: str, word: str) -> None:
    path.write_text(textwrap.dedent(MODULE).format(queue=queue, word=word))


def test_it_works_and_stops(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    write(tmp_path / "jobs_of_mine.py", queue, "hello")
    with Command(tmp_path, "jobs_of_mine:tasks", "--url", server.url, "--concurrency", "3") as command:
        assert command.line() == f"Works on {queue} at {server.url}: greet, hold, relay"
        job_id = client.jobs.push(queue, {"task": "relay", "args": {"who": "ada"}})
        inner = client.jobs.wait(job_id, PATIENCE_S).result
        assert client.jobs.wait(inner, PATIENCE_S).result == "hello ada"
        until(lambda: client.workers.all(queue)[0].concurrency == 3)
        assert command.stop() == 0
        assert command.line() == "Done: 2 jobs, 0 failed attempts"
    assert client.workers.all(queue) == []


def test_it_says_what_has_failed(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    write(tmp_path / "jobs_of_mine.py", queue, "hello")
    with Command(tmp_path, "jobs_of_mine:tasks", "--url", server.url) as command:
        job_id = client.jobs.push(queue, {"task": "hold", "args": {}}, max_attempts=1)
        command.until(f"WARNING hold: attempt 1 of 1 failed, job {job_id}: FileNotFoundError: [Errno 2]")
        command.until("Traceback (most recent call last):")
        command.until('with open("gate") as gate:')
        command.until("FileNotFoundError: [Errno 2]")
        assert command.stop() == 0


def test_it_starts_anew_when_a_file_changes(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    write(tmp_path / "jobs_of_mine.py", queue, "hello")
    with Command(tmp_path, "jobs_of_mine", "--url", server.url, "--reload") as command:
        assert command.line().startswith("Works on")
        write(tmp_path / "jobs_of_mine.py", queue, "goodbye")
        lines = [command.line() for _ in range(3)]
        assert any("jobs_of_mine.py" in line for line in lines)
        assert any(line.startswith("Works on") for line in lines)
        job_id = client.jobs.push(queue, {"task": "greet", "args": {"who": "ada"}})
        assert client.jobs.wait(job_id, PATIENCE_S).result == "goodbye ada"
        assert command.stop() == 0


def test_ctrl_c_lets_what_runs_end(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    write(tmp_path / "jobs_of_mine.py", queue, "hello")
    os.mkfifo(tmp_path / "gate")
    job_id = client.jobs.push(queue, {"task": "hold", "args": {}})
    with Command(tmp_path, "jobs_of_mine", "--url", server.url, "--reload") as command:
        with (tmp_path / "gate").open("w") as gate:  # which waits for the task to open it
            command.press_ctrl_c()
            command.until("Running jobs have 30 s")
            gate.write("ended")
        assert command.process.wait(PATIENCE_S) == 0
    assert client.jobs.result(job_id) == "ended"


def test_a_second_ctrl_c_gives_it_back(server: ServerProcess, client: Client, queue: str, tmp_path: Path) -> None:
    write(tmp_path / "jobs_of_mine.py", queue, "hello")
    os.mkfifo(tmp_path / "gate")
    job_id = client.jobs.push(queue, {"task": "hold", "args": {}})
    with Command(tmp_path, "jobs_of_mine", "--url", server.url) as command, (tmp_path / "gate").open("w"):
        command.press_ctrl_c()
        command.until("Running jobs have 30 s")
        command.press_ctrl_c()
        assert command.process.wait(PATIENCE_S) == 0
    assert (client.jobs.state(job_id), client.jobs.get(job_id).attempts) == ("waiting", 0)


@pytest.mark.parametrize(
    ("target", "advice"),
    [("nothing_here:tasks", "There is no module"), ("json:loads", "is no Tasks object"), ("json:tasks", "has no tasks")],
)
def test_it_says_what_is_wrong(target: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(worker, [target])
    assert done.exit_code == 1
    assert advice in done.output


@pytest.mark.parametrize("target", ["app:tasks", "shop.jobs:tasks"])
def test_it_tells_a_missing_import_from_a_missing_module(target: str, tmp_path: Path) -> None:
    """The name of what is missing begins like the module's: what counts is the whole of it."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "app.py").write_text("import os\nimport a\n")
    (tmp_path / "shop" / "jobs.py").write_text("import os\nimport shop.missing\n")
    command = [sys.executable, "-m", "penstock", "worker"]
    done = subprocess.run([*command, target], cwd=tmp_path, capture_output=True, text=True, check=False)
    missing = "a" if target == "app:tasks" else "shop.missing"
    name = target.removesuffix(":tasks")
    file = tmp_path / f"{name.replace('.', '/')}.py"
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: The module {name!r} was found, but it imports {missing!r}, which is not installed here ({file}, line 2)\n"
    )
    for nowhere in ("app2", "shop.nothing", "nowhere.jobs"):
        done = subprocess.run([*command, nowhere], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "There is no module" in done.stderr
