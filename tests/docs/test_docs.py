"""The docs say what is true: generated parts are current, links lead somewhere, commands exist, examples run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import pytest

from penstock import config
from penstock.doors.http.errors import STATUS
from tests.docs.generate import EXAMPLE, ROOT, documents, every_setting, renew

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
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


def test_every_status_of_an_error_is_explained() -> None:
    text = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    for status in set(STATUS.values()):
        assert str(status) in text or 400 <= status < 500, status


def test_the_example_of_a_configuration_file_is_valid(tmp_path: Path) -> None:
    (example,) = (body for kind, body in BLOCK.findall((ROOT / "docs/configuration.md").read_text()) if kind == "yaml")
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
    settings = [line.removeprefix("# ") for line in text.splitlines() if re.match(r"# [a-z_]+: ", line)]
    assert [line.partition(":")[0] for line in settings] == list(config.SETTINGS)
    file.write_text("\n".join(settings))
    loaded = config.load({}, {}, file)
    assert set(loaded.origins) == set(config.SETTINGS)
    for name in config.SETTINGS:
        default = getattr(config.Config(), name)
        assert getattr(loaded, name) == default or default in (None, "", ()), name


def shape(value: Any) -> Any:
    """Return what a reply looks like, without what changes from run to run."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return type(value).__name__


def fits(reply: Any, example: Any) -> bool:
    """Tell whether a reply has everything the example shows; examples may leave fields out."""
    if isinstance(example, dict):
        return isinstance(reply, dict) and all(key in reply and fits(reply[key], item) for key, item in example.items())
    return type(reply) is type(example)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_tour_of_the_readme_runs_word_by_word(server: ServerProcess, tmp_path: Path) -> None:
    blocks = [(kind, body) for kind, body in BLOCK.findall(README) if kind in ("sh", "json")]
    # What is printed is what is run, in one shell. Where that port leads, and that mistakes are errors, curl reads here.
    rules = f'connect-to = "localhost:6790:127.0.0.1:{server.port}"\nfail\nwrite-out = "\\n"\n'
    (tmp_path / ".curlrc").write_text(rules, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-e"], input="echo ---\n".join(body for kind, body in blocks if kind == "sh"),
        env={"CURL_HOME": str(tmp_path), "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    said = [[json.loads(line) for line in part.splitlines() if line] for part in done.stdout.split("---\n")]
    assert [len(replies) for replies in said] == [1, 1, 2, 6]
    assert all(reply["ok"] is True for replies in said for reply in replies)
    step = -1
    for kind, body in blocks:
        if kind == "sh":
            step += 1
            continue
        for reply, example in zip(said[step], map(json.loads, body.splitlines()), strict=True):
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
