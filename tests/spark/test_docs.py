"""What the pages show of Spark runs as it stands there, with another address and fewer rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import runs
from tests.spark.chaos import counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server import ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def program(page: str, sign: str) -> str:
    """Return the one Python block of a page that has a line in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if sign in each]
    assert isinstance(found, str)
    return found


@runs("README.md", "python 2")
@pytest.mark.usefixtures("spark")
def test_the_readme(blocks: list[str], server: ServerProcess) -> None:
    (code,) = blocks
    for shown, here in (("http://localhost:6790", server.url), ("1_000_000", "1_000"), ('"numbers"', '"readme-numbers"')):
        assert shown in code
        code = code.replace(shown, here)
    exec(compile(code, "README.md", "exec"), {})
    assert counts(server, "readme-numbers")["waiting"] == 1_000


def test_the_page_on_spark(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    code = program("docs/spark.md", "squares.trigger")
    for shown, here in (("http://127.0.0.1:6790", server.url), ("/tmp/squares", str(tmp_path / "squares"))):
        assert shown in code
        code = code.replace(shown, here)
    names: dict[str, object] = {}
    exec(compile(code, "spark.md", "exec"), names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.awaitTermination()
    assert counts(server, "squares")["waiting"] == 1_000
    assert counts(server, "numbers")["completed"] == 1_000
