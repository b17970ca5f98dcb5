"""``penstock pipeline report``: one HTML file about the state of the queues."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from penstock.cli.lake import LAKE
from penstock.core import limits
from penstock.core.errors import ConfigInvalid
from penstock.core.timestamps import from_rfc3339

_UNITS: Final = {"m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS}


class _Moment(click.ParamType[int]):
    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = f"{value}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else value
        found = int(text) if re.fullmatch(r"\d{1,15}", text) else from_rfc3339(text)
        if found is None:
            self.fail(f"{value!r}: expected 2026-01-31, 2026-01-31T12:00:00Z, or milliseconds since 1970", param, ctx)
        return found


class _Step(click.ParamType[int]):
    name = "length"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,6})([mhd])", value)
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r}: expected minutes, hours or days, such as 5m, 1h or 1d", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.command()
@LAKE
@click.option("--namespace", metavar="NAME", help="the namespace of the queues; default: all namespaces")
@click.option("--queue", metavar="NAME", help="one queue; default: all queues")
@click.option("--from", "start", type=_Moment(), help="start of the window; default: a day before --to")
@click.option("--to", "end", type=_Moment(), help="end of the window; default: the end of the lake's data")
@click.option("--step", type=_Step(), help="length of a step: 1m, 5m, 1h or 1d; default: by the length of the window")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default="report.html",
    show_default=True,
    help="the file to write",
)
def report(
    lake: str, *, namespace: str | None, queue: str | None, start: int | None, end: int | None, step: int | None, out: Path
) -> None:
    """Write a report about the queues: one HTML file with charts, without other files.

    It needs no Spark, no Java and no server: pip install 'penstock-queue[lake]'.
    """
    # Other commands do not import these modules.
    try:
        from penstock.lake.location import Lake, LakeMissing  # noqa: PLC0415
        from penstock.lake.queries.api import Question  # noqa: PLC0415
        from penstock.lake.report.build import make_report  # noqa: PLC0415
    except ImportError as error:
        raise ConfigInvalid(f"A report needs {error.name}. Install it with: pip install 'penstock-queue[lake]'.") from None
    asked = Question(namespace=namespace, queue=queue, start=start, end=end, step=step)
    try:
        size = make_report(lake, out, asked)
    except LakeMissing:
        if Lake(lake).exists():
            raise ConfigInvalid(f"The lake in {lake} has no events yet, so there is nothing to report.") from None
        raise ConfigInvalid(f"There is no lake in {lake}. Build one with: penstock pipeline run --lake {lake}") from None
    except ValueError as error:  # an invalid question, or invalid objectives
        raise ConfigInvalid(f"{error}.") from None
    except OSError as error:
        raise ConfigInvalid(f"{out} cannot be written ({error.strerror}).") from None
    click.echo(f"{out}: {size:,} bytes")
