"""One Spark session for all tests here, and servers for it to talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.spark.session import session
from tests.spark.fake import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "2m",  # a busy machine takes its time to start a Python
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # these are short runs
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    found = session("local[2]", name="tests", settings=settings)
    yield found
    found.stop()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running
