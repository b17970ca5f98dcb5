"""The pages about the SDK: their examples run, against a real server, as they are printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from penstock.client import Client, JobFailed, Worker
from tests.docs.blocks import runs
from tests.docs.generate import ROOT
from tests.docs.shell import Terminal, commands, own_ports, put
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

PATIENCE_S = 120


class Page:
    """The Python of a page, run against a server. ``name``: of the module that it is."""

    def __init__(self, name: str, server: ServerProcess) -> None:
        self.names: dict[str, Any] = {"__name__": name, "work": work}
        self.url = server.url

    def run(self, block: str) -> None:
        code = block.replace("http://localhost:6790", self.url).replace("worker.run()", "work(worker)")
        exec(compile(code, "a page of the docs", "exec"), self.names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in ("tasks", "client"):
            if name in self.names:
                self.names[name].close()


def work(worker: Worker, *, failed: int = 0) -> None:
    """Run a worker until nothing is left to do for now."""
    with Client.from_settings(worker._worker_loop.settings) as client:

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


@runs("docs/getting-started-sdk.md", "sh", "python")
def test_getting_started(blocks: list[str], tmp_path: Path) -> None:
    start, mail, worker, some_work, look, tests, messages = blocks
    install, serve = commands(start)
    installed = tmp_path / "site"
    here = {"PIP_TARGET": str(installed), "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    Terminal(tmp_path / "pip", env=here).run(f"cd {shlex.quote(str(ROOT))}\n{install}")
    assert (installed / "penstock" / "client" / "__init__.py").exists()
    ports = own_ports()
    terminal = Terminal(tmp_path / "work", env=ports)
    address = {"http://localhost:6790": f"http://localhost:{ports['HTTP_PORT']}"}
    (terminal.home / "mail.py").write_text(put(mail, address))
    (terminal.home / "walk.py").write_text(some_work + put(look, address) + messages)
    (terminal.home / "test_mail.py").write_text(tests)
    with terminal.running(serve), terminal.running(worker):
        terminal.run("python walk.py")
    assert "3 passed" in terminal.run("python -m pytest -q -p no:cacheprovider test_mail.py")


@runs("docs/sdk.md", "python")
def test_the_page_of_the_sdk(blocks: list[str], server: ServerProcess) -> None:
    with Page("sdk_page", server) as page:
        for block in blocks:
            page.run(block)
        client = page.names["client"]
        assert client.queues.counts("orders").delayed == 2
        assert client.queues.counts("mail").delayed == 2


TASKS_OF_MYAPP = """
from penstock.client import Tasks

tasks = Tasks()


@tasks.task(queue="of-myapp")
def hello() -> str:
    return "hello"


if __name__ == "__main__":
    assert hello.enqueue().result(timeout=30) == "hello"
    tasks.close()
"""


@runs("docs/sdk.md", "sh")
def test_the_workers_of_the_sdk(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    """Each does what is enqueued while it runs. Without --url, they go by the environment."""
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "jobs.py").write_text(TASKS_OF_MYAPP)
    terminal = Terminal(tmp_path, env={"PENSTOCK_URL": server.url})
    (block,) = blocks
    for command in commands(put(block, {"http://localhost:6790": server.url})):
        with terminal.running(command):
            terminal.run("python -m myapp.jobs")


@runs("docs/recipes/replace-your-cron-job.md", "python")
def test_replace_your_cron_job(blocks: list[str], server: ServerProcess) -> None:
    with Page("reports", server) as page:
        page.run(*blocks)
        night_falls(page)


def night_falls(page: Page) -> None:
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


def work_in_shells(blocks: list[str], module: str, server: ServerProcess, home: Path, meanwhile: str) -> None:
    """Run a recipe as its readers do: a file, and a worker. ``meanwhile``: a program that runs beside it."""
    recipe, shell = blocks
    terminal = Terminal(home)
    (home / f"{module}.py").write_text(put(recipe, {"http://localhost:6790": server.url}))
    *before, worker = commands(shell)
    terminal.run("\n".join(before))
    with terminal.running(worker):
        terminal.run(f"python -c {shlex.quote(meanwhile)}")


@runs("docs/recipes/replace-your-cron-job.md", "python", "sh")
def test_replace_your_cron_job_in_shells(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    report = "import reports; assert '3 days' in reports.nightly_report.enqueue(days=3).result(30)"
    work_in_shells(blocks, "reports", server, tmp_path, report)
    with Client(server.url) as client:
        assert client.crons.get("nightly-report").schedule == "0 2 * * *"
        client.crons.delete("nightly-report")
        client.queues.obliterate("reports")


@runs("docs/recipes/cancel-an-unpaid-order.md", "python", "sh")
def test_cancel_an_unpaid_order_in_shells(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    work_in_shells(blocks, "orders", server, tmp_path, "import orders; orders.place(77); orders.pay(77)")
    with Client(server.url) as client:
        assert client.jobs.state("cancel-77") == "unknown"


@runs("docs/recipes/retry-a-payment.md", "python", "sh")
def test_retry_a_payment_in_shells(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    paid = f"Client({server.url!r}).jobs.wait('payment-77', {PATIENCE_S}).result == 'paid'"
    pay = f"import payments; from penstock.client import Client; payments.pay('77', 100); assert {paid}"
    work_in_shells(blocks, "payments", server, tmp_path, pay)


@runs("docs/recipes/retry-a-payment.md", "python")
def test_retry_a_payment(blocks: list[str], server: ServerProcess) -> None:
    with Page("payments", server) as page:
        page.run(*blocks)
        pay_late(page, server)


def pay_late(page: Page, server: ServerProcess) -> None:
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


@runs("docs/recipes/cancel-an-unpaid-order.md", "python")
def test_cancel_an_unpaid_order(blocks: list[str], server: ServerProcess) -> None:
    with Page("orders", server) as page:
        page.run(*blocks)
        forget_to_pay(page)


def forget_to_pay(page: Page) -> None:
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


@runs("README.md", "python 1")
def test_the_tasks_of_the_readme_run(blocks: list[str], tmp_path: Path) -> None:
    """As a reader would: one program enqueues, another one works."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (mail,) = blocks
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
