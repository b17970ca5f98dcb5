"""What the pages show of Spark runs as it stands there, with another address and fewer rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import runs
from tests.spark.chaos import counts

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

pytestmark = pytest.mark.slow


@runs("README.md", "python 2")
@pytest.mark.usefixtures("spark")
def test_the_readme(blocks: list[str], server: ServerProcess) -> None:
    (code,) = blocks
    for shown, here in (("http://localhost:6790", server.url), ("1_000_000", "1_000"), ('"numbers"', '"readme-numbers"')):
        assert shown in code
        code = code.replace(shown, here)
    exec(compile(code, "README.md", "exec"), {})
    assert counts(server, "readme-numbers")["waiting"] == 1_000
