"""A pipeline of its own that a test can kill: ``python -m tests.spark.lake_driver URL LAKE BATCH_EVENTS [DIE_AT]``.

With DIE_AT (the name of a moment, see Builder) it kills itself there, as SIGKILL would.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from penstock.lake.location import Lake
from penstock.spark import options
from penstock.spark.pipeline.run import Builder, locked, run
from penstock.spark.session import session


def main(url: str, address: str, batch_events: str, die_at: str = "") -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }

    def fault(moment: str) -> None:
        print(moment, flush=True)
        if moment == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = session("local[2]", name="lake driver", settings=settings)
    lake = Lake(address)
    given = options.for_batch({"url": url, "table": "journal", "namespace": "*"})
    with locked(lake):
        builder = Builder(spark, lake, given, batch_events=int(batch_events), fault=fault)
        run(builder, lake, every_ms=None, stop=threading.Event(), tell=print)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
