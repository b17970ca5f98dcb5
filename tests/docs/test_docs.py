"""The docs say what is true: generated parts are current, links lead somewhere, commands exist, examples run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2
import pytest

from penstock import config
from penstock.doors.http.errors import STATUS
from tests.docs.blocks import runs
from tests.docs.generate import EXAMPLE, ROOT, documents, every_setting, renew
from tests.docs.shapes import fits, shape
from tests.docs.shell import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
README = (ROOT / "README.md").read_text(encoding="utf-8")

each_document = pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))


@each_document
def test_generated_parts_are_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert renew(text) == text, "run: make docs"


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (path.parent / link).exists(), link


@each_document
def test_every_make_target_that_is_mentioned_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
    assert mentioned <= targets


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert records
    for record in records:
        title = record.read_text(encoding="utf-8").splitlines()[0].split(". ", 1)[1]
        assert f"({record.name}) | {title} |" in listed, record.name


def test_every_page_is_listed() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "recipes").glob("*.md")):
        assert f"]({page.relative_to(ROOT)})" in README, page.name


def test_every_status_of_an_error_is_explained_once() -> None:
    text = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| ([^|]*\d\d\d[^|]*) \|", text, re.MULTILINE)
    assert len(answers) == len(set(answers)) > 10
    for status in set(STATUS.values()):
        assert str(status) in text or 400 <= status < 500, status


@runs("docs/configuration.md", "yaml")
def test_the_example_of_a_configuration_file_is_valid(blocks: list[str], tmp_path: Path) -> None:
    (example,) = blocks
    file = tmp_path / "penstock.yaml"
    file.write_text(example)
    loaded = config.load({}, {}, file)
    assert loaded.auth_tokens == ("secret-token-1", "secret-token-2")


def test_the_file_with_every_setting_is_current_and_its_settings_are_the_defaults(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text == every_setting(), "run: make docs"
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    assert config.load({}, {}, file) == config.Config()  # all of it is a comment
    settings = [line.removeprefix("# ") for line in text.splitlines() if re.match(r"# [a-z0-9_]+: ", line)]
    assert [line.partition(":")[0] for line in settings] == list(config.SETTINGS)
    file.write_text("\n".join(settings))
    loaded = config.load({}, {}, file)
    assert set(loaded.origins) == set(config.SETTINGS)
    for name in config.SETTINGS:
        default = getattr(config.Config(), name)
        assert getattr(loaded, name) == default or default in (None, "", ()), name


@runs("README.md", "sh 2", "sh 3", "sh 4", "sh 5", "json")
def test_the_tour_of_the_readme_runs_word_by_word(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    push, pushed, pull, pulled, ack, acked, more = blocks
    said = Terminal(tmp_path, server.port).run(f"{push}echo ---\n{pull}echo ---\n{ack}echo ---\n{more}")  # in one shell
    replies = [[json.loads(line) for line in part.splitlines() if line] for part in said.split("---\n")]
    assert [len(each) for each in replies] == [1, 1, 2, 6]
    assert all(reply["ok"] is True for each in replies for reply in each)
    for each, shown in zip(replies, (pushed, pulled, acked), strict=False):
        for reply, example in zip(each, map(json.loads, shown.splitlines()), strict=True):
            assert fits(reply, example), (shape(reply), shape(example))


def test_the_worker_of_the_examples_works(server: ServerProcess) -> None:
    jobs = [{"data": "good"}, {"data": "bad", "maxAttempts": 1}, {"data": "better", "jobId": "a job/with an odd name?"}]
    ids = httpx2.post(f"{server.url}/queues/example/jobs/bulk", json={"jobs": jobs}).json()["ids"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "worker.py"), server.url, "example", "3"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["working on good", "working on bad", "working on better"]
    states = [httpx2.get(f"{server.url}/jobs/{quote(job_id, safe='')}/state").json()["state"] for job_id in ids]
    assert states == ["completed", "failed", "completed"]
    assert httpx2.get(f"{server.url}/jobs/{ids[0]}/result").json()["result"] == {"done": True}


def test_the_batches_of_the_examples_work(server: ServerProcess) -> None:
    for expected in (["enqueued 3", "working on Grace", "working on Ada", "working on Joan"], ["enqueued 3"]):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "batches.py"), server.url, "example-leads"],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout.splitlines() == expected
