"""Secrets of the operator: they are in no log, no error and no listing, and those that are kept badly are told at the start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.bulkwork import lake_queries
from penstock.client import Client
from penstock.core.errors import StorageFailed
from penstock.lake.queries.api import Insights
from penstock.masking import masked, without_password
from tests.support import postgres
from tests.support.issuer import certificate
from tests.support.server import ServerProcess
from tests.support.shards import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def database() -> Iterator[str]:
    url = run(postgres.make_database())
    yield url
    run(postgres.drop_database(url))


LONG = "a-token-of-enough-characters"


def penstock(*args: str, **env: str) -> str:
    """Run a command, and return everything that it said."""
    command = [sys.executable, "-m", "penstock", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **env})
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hidden@db:5432/x?password=hidden&sslmode=require", "postgresql://u@db:5432/x"),
        ("postgresql://u:hid/den@db/x", "postgresql://u@db/x"),
        ("postgresql://u:hid#den@db/x", "postgresql://u@db/x"),
        ("postgresql://u:hid?den@db/x", "postgresql://***"),
        ("postgresql://u:hid@den@db/x", "postgresql://u@db/x"),
        ("postgresql://db/x?password=hidden@1", "postgresql://***"),
        ("redis://:hidden@cache:6379/0", "redis://cache:6379/0"),
        ("sentinel://:hidden@a:1,b:2/main?sentinel_password=hidden", "sentinel://a:1,b:2/main"),
        ("s3://AKIAABCDEFGHIJKLMNOP:hid/den@bucket/lake", "s3://AKIA***@bucket/lake"),
        ("s3://bucket/lake?aws_secret_access_key=hidden", "s3://bucket/lake"),
        ("abfss://container@account.dfs.example/lake?sas=hidden", "abfss://container@account.dfs.example/lake"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("/var/lib/penstock/lake", "/var/lib/penstock/lake"),
        ("sqlite:/data", "sqlite:/data"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open postgresql://u:hidden@db/x now", "cannot open postgresql://u:***@db/x now"),
        ("cannot open 's3://k:hid/den@bucket/x'", "cannot open 's3://k:***@bucket/x'"),
        ("GET https://b.example/x?X-Amz-Signature=hidden&part=1", "GET https://b.example/x?X-Amz-Signature=***&part=1"),
        ("options: {'aws_secret_access_key': 'hidden'}", "options: {'aws_secret_access_key': '***'}"),
        ('{"password": "hidden", "n": 1}', '{"password": "***", "n": 1}'),
        ("AWS_SECRET_ACCESS_KEY=hidden in the environment", "AWS_SECRET_ACCESS_KEY=*** in the environment"),
        ("key AKIAABCDEFGHIJKLMNOP", "key AKIA***"),
        ("http://127.0.0.1:6790/queues/a@b is fine", "http://127.0.0.1:6790/queues/a@b is fine"),
        ("expected a token: letters and digits", "expected a token: letters and digits"),
    ],
)
def test_a_text_is_shown_without_credentials(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_settings_are_shown_without_credentials(tmp_path: Path) -> None:
    said = penstock(
        "config", "show", "--data", str(tmp_path), "--lake", "s3://AKIAABCDEFGHIJKLMNOP:hidden@bucket/lake?token=hidden",
        PENSTOCK_STORES="postgresql://u:hid/den@db/x?password=hidden", PENSTOCK_REDIS="redis://:hidden@cache/0",
        AUTH_TOKENS=f"{LONG}-hidden", JWT_JWKS="https://u:hidden@id.example/keys?token=hidden",
    )  # fmt: skip
    assert "hid" not in said.replace("*** hidden", "")
    assert "lake: s3://AKIA***@bucket/lake" in said
    assert "jwt_jwks: https://u@id.example/keys" in said


@pytest.mark.parametrize(
    ("flag", "url"),
    [
        ("--store", "postgresql://u:hid/den@127.0.0.1:1/x"),
        ("--store", "postgresql://u:hid:den@127.0.0.1:1x/x"),
        ("--redis", "redis://:hid/den@127.0.0.1:1/0"),
    ],
)
def test_errors_and_logs_of_a_start_hold_no_part_of_a_password(tmp_path: Path, database: str, flag: str, url: str) -> None:
    store = () if flag == "--store" else ("--store", database)
    with pytest.raises(AssertionError) as refused:
        ServerProcess(tmp_path / "data", *store, flag, url).start()
    assert f"The address given by {flag} " in str(refused.value), "it was looked at"
    assert "hid" not in str(refused.value)
    assert "den" not in str(refused.value)


LAKE_ENVIRONMENT = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "x", "AWS_ALLOW_HTTP": "true"}


@pytest.mark.parametrize(
    "lake",
    [
        "s3://AKIAABCDEFGHIJKLMNOP:hidden@bucket/lake?aws_secret_access_key=hidden",
        "s3://key:hid@hidden@bucket\n/lake",
        "abfss://container:hidden@account/lake",
    ],
)
def test_errors_of_the_lake_hold_no_credentials(tmp_path: Path, lake: str) -> None:
    with ServerProcess(tmp_path / "data", "--lake", lake, env=LAKE_ENVIRONMENT) as running, running.client() as client:
        reply = client.get("/insights")
        assert reply.status_code == 503
        assert "The lake cannot be read (" in reply.text, "it is an error of what reads the lake"
        assert "hid" not in reply.text
    assert "hid" not in running.log()


def test_what_reads_the_lake_may_name_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its errors say, the reply has no credentials."""

    def fail(*_args: object) -> None:
        raise OSError("Unable to recognise URL s3://AKIAABCDEFGHIJKLMNOP:hidden@bucket/lake?token=hidden")

    monkeypatch.setattr(Insights, "ask", fail)
    with pytest.raises(StorageFailed) as failed:
        lake_queries.answer(lake="s3://bucket/lake", insight="overview", question={})
    assert "Unable to recognise URL s3://AKIA" in str(failed.value)
    assert "hidden" not in str(failed.value)


def test_the_doctor_shows_no_credentials(tmp_path: Path) -> None:
    said = penstock("spark", "doctor", "--lake", "abfss://container:hidden@account/lake", **LAKE_ENVIRONMENT)
    assert "account/lake" in said, "it names the lake"
    assert "hidden" not in said


def test_a_client_is_shown_without_its_password() -> None:
    with Client("http://user:hidden@127.0.0.1:1") as client:
        assert "hidden" not in repr(client) + repr(client.settings)


# What is kept badly.


def test_short_secrets_are_told_at_the_start(tmp_path: Path) -> None:
    environment = {"AUTH_TOKENS": f"{LONG},guess-me", "PENSTOCK_AUTH_API_KEY": "guess-me"}
    with ServerProcess(tmp_path / "short" / "data", env=environment) as running:
        pass
    for name, origin in (("auth_tokens", "$AUTH_TOKENS"), ("api_key", "$PENSTOCK_AUTH_API_KEY")):
        assert f"{name} (from {origin}) has a secret of fewer than 16 characters" in running.log()
    assert "guess-me" not in running.log()
    with ServerProcess(tmp_path / "long" / "data", env={"AUTH_TOKENS": LONG}) as running:
        pass
    assert "fewer than" not in running.log()


def test_files_with_secrets_that_others_may_read_are_told_at_the_start(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    file, data = tmp_path / "penstock.yaml", tmp_path / "data"
    file.write_text(f"auth_tokens: [{LONG}]\n")
    data.mkdir()
    flags = ("--config", str(file), "--cert", str(cert), "--key", str(key))
    file.chmod(0o644)
    key.chmod(0o604)
    data.chmod(0o770)
    with ServerProcess(data, *flags) as running:
        pass
    for mode, path in (("0644", file), ("0604", key)):
        assert f"other users may read or change {path} (mode {mode}). Run: chmod 600 {path}" in running.log()
    assert f"Other users may replace files in the data directory {data} (mode 0770). Run: chmod 700 {data}" in running.log()
    running.log_path.unlink()
    file.chmod(0o640)
    key.chmod(0o600)
    data.chmod(0o700)
    with running:
        pass
    assert "chmod" not in running.log()
    running.log_path.unlink()
    file.write_text("durability: always\n")
    file.chmod(0o644)
    with running:
        pass
    assert "chmod" not in running.log(), "there is no secret in it"
