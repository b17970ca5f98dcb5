"""Files that Spark's executors write are found by whoever looks for their rows, whatever by."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from penstock.lake.location import Lake, LakeMissing
from penstock.lake.queries.api import Insights, Question
from penstock.lake.tables import ATTEMPTS, EVENTS, MINUTES
from penstock.lake.writer import BATCH_MARK, PartWriter, commit, mark_of, shard_mark
from tests.support.lakes import MONDAY, rows_of

if TYPE_CHECKING:
    from pathlib import Path

MAIL = {"namespace": "default", "queue": "mail", "minute": MONDAY, "arrivals": 3}
SHOP = {"namespace": "shop", "queue": "ä" * 100, "minute": MONDAY + 60_000, "arrivals": 4}


def written(directory: Path, *rows: dict[str, Any]) -> Lake:
    lake = Lake(directory)
    writer = PartWriter(lake, MINUTES, "part")
    writer.write(rows_of(MINUTES, rows))
    assert commit(lake, MINUTES, writer.close(), marks={BATCH_MARK: 0}, now_ms=MONDAY)
    return lake


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (pc.field("namespace") == "default", 1),
        (pc.field("namespace") == "nobody", 0),
        (pc.field("queue") == "ä" * 100, 1),
        (pc.field("arrivals") > 3, 1),
        (pc.field("arrivals") > 4, 0),
        (pc.field("failures") == 0, 2),
        ((pc.field("namespace") == "shop") & (pc.field("arrivals") == 4), 1),
    ],
)
def test_rows_are_found_by_any_column(tmp_path: Path, wanted: pc.Expression, count: int) -> None:
    table = written(tmp_path, MAIL, SHOP).open(MINUTES)
    assert table is not None
    assert table.to_pyarrow_table(filters=wanted).num_rows == count


def test_columns_with_nothing_in_them_do_no_harm(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    writer = PartWriter(lake, ATTEMPTS, "part")
    writer.write(rows_of(ATTEMPTS, [{"namespace": "default", "outcome": "completed", "date": 5}]))
    commit(lake, ATTEMPTS, writer.close(), marks={BATCH_MARK: 0}, now_ms=MONDAY)
    table = lake.open(ATTEMPTS)
    assert table is not None
    assert table.to_pyarrow_table(filters=pc.field("outcome") == "completed").num_rows == 1
    assert table.to_pyarrow_table(filters=pc.field("error") == "x").num_rows == 0


def test_questions_about_one_namespace_and_how_far_the_lake_is(tmp_path: Path) -> None:
    lake = written(tmp_path, MAIL, SHOP)
    commit(lake, EVENTS, [], marks={BATCH_MARK: 0, shard_mark("0"): 17, shard_mark("3"): 4}, now_ms=MONDAY)
    assert mark_of(lake.open(EVENTS), shard_mark("0")) == 17
    insights = Insights(lake)
    (row,) = insights.ask("queues", Question(namespace="default")).rows.to_pylist()
    assert (row["queue"], row["arrivals"]) == ("mail", 3)
    assert insights.ask("overview", Question()).about["offsets"] == {"0": 17, "3": 4}


def test_a_lake_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """Its tables have the same versions as those before: nothing of these may be told."""
    insights = Insights(written(tmp_path, MAIL, SHOP))
    assert insights.ask("queues", Question(namespace="default")).rows["arrivals"].to_pylist() == [3]
    shutil.rmtree(tmp_path)
    with pytest.raises(LakeMissing):
        insights.ask("queues", Question(namespace="default"))
    written(tmp_path, MAIL | {"arrivals": 8})
    assert insights.ask("queues", Question(namespace="default")).rows["arrivals"].to_pylist() == [8]
    shutil.rmtree(tmp_path)
    written(tmp_path, MAIL | {"arrivals": 9})
    assert insights.ask("queues", Question(namespace="default")).rows["arrivals"].to_pylist() == [9]
