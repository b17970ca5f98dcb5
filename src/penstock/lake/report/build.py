"""Write the report of a lake to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lake.location import Lake
from penstock.lake.queries.api import Insights, Question
from penstock.lake.report.data import report_data_of
from penstock.lake.report.html import page

if TYPE_CHECKING:
    from pathlib import Path


def make_report(lake: str | Lake, out: Path, question: Question | None = None) -> int:
    """Write a report, and return its size in bytes. Raises LakeMissing, QuestionInvalid, ObjectivesInvalid.

    The report is about the last day of the lake, unless ``question`` has another window.
    """
    place = Lake(lake) if isinstance(lake, str) else lake
    text = page(report_data_of(Insights(place), question or Question()))
    return out.write_bytes(text.encode())
