"""The pages about the SDK: their examples run, against a real server, as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import Client, JobFailed, Worker
from tests.docs.generate import ROOT
from tests.docs.test_docs import BLOCK
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 120


class Page:
    """The Python of a page, run against a server; names of queues are made this test's own."""

    def __init__(self, name: str, server: ServerProcess) -> None:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        self.blocks = [body for kind, body in BLOCK.findall(text) if kind == "python"]
        self.names: dict[str, Any] = {"__name__": re.sub(r"\W", "_", name)}
        self.url = server.url

    def run(self, block: str) -> None:
        assert "http://localhost:6790" in self.blocks[0]
        code = block.replace("http://localhost:6790", self.url).replace("worker.run()", "work(worker)")
        exec(compile(code, "a page of the docs", "exec"), self.names)


def work(worker: Worker, *, failed: int = 0) -> None:
    """Run a worker until nothing is left to do for now."""
    with Client.from_settings(worker._desk.settings) as client:

        def watch() -> None:
            while any((counts := client.queues.counts(queue)).waiting + counts.active for queue in worker.plan.queues):
                threading.Event().wait(0.01)
            while client.queues.counts(worker.plan.queues[0]).delayed and worker.failed < failed:
                threading.Event().wait(0.01)
            worker.stop()

        thread = threading.Thread(target=watch)
        thread.start()
        worker.run()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose queues are empty: the pages count what is in them."""
    with ServerProcess(tmp_path_factory.mktemp("sdk") / "data") as running:
        yield running


@pytest.fixture
def page(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Page]:
    opened = Page(request.param, server)
    yield opened
    for name in ("tasks", "client"):
        if name in opened.names:
            opened.names[name].close()


def test_getting_started(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "getting-started-sdk.md").read_text(encoding="utf-8")
    with ServerProcess(tmp_path / "data") as server:
        mail, work, look, tests, messages = (
            body.replace("http://localhost:6790", server.url) for kind, body in BLOCK.findall(text) if kind == "python"
        )
        for name, body in (("mail.py", mail), ("walk.py", work + look + messages), ("test_mail.py", tests)):
            (tmp_path / name).write_text(body)
        (command,) = re.findall(r"^penstock (worker .*)$", text, re.MULTILINE)
        worker = [sys.executable, "-m", "penstock", *command.split()]
        with subprocess.Popen(worker, cwd=tmp_path, stdout=subprocess.DEVNULL) as running:
            try:
                subprocess.run([sys.executable, "walk.py"], cwd=tmp_path, check=True, timeout=PATIENCE_S)
            finally:
                running.terminate()
    command_line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mail.py"]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("page", ["sdk.md"], indirect=True)
def test_the_page_of_the_sdk(page: Page) -> None:
    page.names["work"] = work
    for block in page.blocks:
        page.run(block)
    client = page.names["client"]
    assert client.queues.counts("orders").delayed == 2
    assert client.queues.counts("mail").delayed == 2


@pytest.mark.parametrize("page", ["recipes/replace-your-cron-job.md"], indirect=True)
def test_replace_your_cron_job(page: Page) -> None:
    page.run(page.blocks[0])
    client, names = page.names["client"], page.names
    names["install"]()
    names["install"]()
    (cron,) = [each for each in client.crons.all() if each.name == "nightly-report"]
    assert (cron.schedule, cron.timezone) == ("0 2 * * *", "Europe/Berlin")
    # Night falls: the same cron, with a tick at once.
    client.crons.delete("nightly-report")
    client.crons.add("nightly-report", "reports", names["nightly_report"].data(days=1), every=86_400, immediately=True)
    while not client.queues.count("reports"):
        threading.Event().wait(0.01)
    work(Worker(names["tasks"]))
    (job,) = client.queues.jobs("reports", "completed")
    assert client.jobs.result(job.id) == "report of the last 1 days"
    assert client.crons.get("nightly-report").executions == 1
    client.crons.delete("nightly-report")


@pytest.mark.parametrize("page", ["recipes/retry-a-payment.md"], indirect=True)
def test_retry_a_payment(page: Page, server: ServerProcess) -> None:
    page.run(page.blocks[0])
    names = page.names
    answers = [names["Declined"]("no money"), names["Declined"]("no money"), None]
    charged: list[str] = []

    def bank(payment_id: str, cents: int) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer
        charged.append(payment_id)

    names["bank"] = bank
    with Client(server.url) as client:
        names["pay"]("7", 4200)
        names["pay"]("7", 4200)
        for wait_days in (1, 3):
            work(Worker(names["tasks"]))
            job = client.jobs.get("payment-7")
            assert job.state == "delayed"
            assert job.started_at is None or 0.9 < (job.run_at - job.created_at) / 86_400_000 < wait_days + 0.1
            client.jobs.promote("payment-7")  # the days go by
        work(Worker(names["tasks"]))
        assert (client.jobs.result("payment-7"), charged) == ("paid", ["7"])
        answers.append(names["Closed"]("gone"))
        names["pay"]("8", 100)
        work(Worker(names["tasks"]))
        (dead,) = client.queues.dlq("payments")
        assert (dead.id, dead.error) == ("payment-8", "the card is closed: gone")
        with pytest.raises(JobFailed):
            names["charge"].options(job_id="payment-8").enqueue("8", 100).result(timeout=5)


@pytest.mark.parametrize("page", ["recipes/cancel-an-unpaid-order.md"], indirect=True)
def test_cancel_an_unpaid_order(page: Page) -> None:
    page.run(page.blocks[0])
    client, names = page.names["client"], page.names
    queue = names["cancel_if_unpaid"].queue
    for number in (901, 902):
        names["place"](number)
        job = client.jobs.get(f"cancel-{number}")
        assert (job.state, job.run_at - job.created_at) == ("delayed", 1_800_000)
    names["pay"](902)
    assert client.jobs.state("cancel-902") == "unknown"
    names["pay"](902)  # once more does no harm
    client.jobs.promote("cancel-901")  # half an hour goes by
    work(Worker(names["tasks"], queue))
    assert names["orders"] == {901: "cancelled", 902: "paid"}
    assert client.jobs.result("cancel-901") is True


def test_the_tasks_of_the_readme_run(tmp_path: Path) -> None:
    """As a reader would: one program enqueues, another one works."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (mail,) = [body for kind, body in BLOCK.findall(text) if kind == "python" and "@tasks.task" in body]
    (enqueues, works) = re.findall(r"`python (mail\.py)` enqueues, `penstock (worker mail:tasks)` runs", text)[0]
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        (tmp_path / "mail.py").write_text(mail.replace("http://localhost:6790", server.url))
        subprocess.run([sys.executable, enqueues], cwd=tmp_path, check=True, timeout=PATIENCE_S)
        (job,) = client.queues.jobs("emails", "waiting")
        command = [sys.executable, "-m", "penstock", *works.split()]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as running:
            try:
                assert client.jobs.wait(job.id, PATIENCE_S).result is True
            finally:
                running.terminate()
        assert client.queues.counts("emails").delayed == 1
