"""Commands of pages that need Spark, run in the process of the tests: they use its session instead of starting one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from click.testing import CliRunner

from penstock.cli.main import main
from tests.docs.shell import check_install

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


class Console:
    """Runs ``penstock`` commands as they are printed. ``url``: of the server where a command names none."""

    def __init__(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, url: str | None = None) -> None:
        monkeypatch.setattr("penstock.cli.lake._session", lambda *_given: spark)
        monkeypatch.setattr(type(spark), "stop", lambda _self: None)  # other tests need it
        self._env = {"PENSTOCK_URL": url}

    def run(self, command: str) -> str:
        """Run a command; return what it prints. Of ``pip install`` only the extra is checked."""
        words = shlex.split(command, comments=True)
        if words[0] == "pip":
            check_install(command)
            return ""
        assert words[0] == "penstock", command
        done = CliRunner().invoke(main, words[1:], env=self._env)
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
        return done.output
