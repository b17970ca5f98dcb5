"""Charts: SVG with the colours of the page, so that it fits light and dark mode.

Matplotlib draws with placeholder colours, which are then replaced by the variables of the page's style.
"""

from __future__ import annotations

import io
import re
from math import isnan
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from penstock.lake.queries.window import DAY_MS, HOUR_MS, MINUTE_MS
from penstock.lake.report.highlights import count, moment, percent, short, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from penstock.lake.report.data import Burn, ReportData, Row

#: Placeholder colours for variables of the page.
INK, SOFT, GRID = "#010203", "#010204", "#010205"
BLUE, GREEN, RED, AMBER, VIOLET, TEAL = "#010206", "#010207", "#010208", "#010209", "#01020a", "#01020b"
VARIABLES: Final = {
    INK: "ink", SOFT: "soft", GRID: "grid", BLUE: "c1", GREEN: "c2", RED: "c3", AMBER: "c4", VIOLET: "c5", TEAL: "c6",
}  # fmt: skip
MANY: Final = (BLUE, AMBER, TEAL, VIOLET, GREEN, RED)
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "penstock",
    "font.size": 9, "axes.edgecolor": GRID, "axes.labelcolor": SOFT,
    "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": SOFT, "ytick.labelcolor": SOFT,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True, "xtick.major.size": 3, "ytick.major.size": 0,
    "legend.frameon": False, "legend.fontsize": 9, "lines.linewidth": 1.6, "lines.solid_capstyle": "round",
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
}  # fmt: skip
#: Width and height in inches, and the number of labels that fit on the bottom axis.
SIZES: Final = {"wide": (8.8, 2.7, 9), "narrow": (4.3, 2.9, 4)}
_STEPS: Final = (
    *(each * MINUTE_MS for each in (5, 10, 15, 30)), *(each * HOUR_MS for each in (1, 2, 3, 6, 12)),
    *(each * DAY_MS for each in (1, 2, 7, 14, 30)),
)  # fmt: skip
_LENGTHS: Final = (
    *(each * scale for scale in (1, 10, 100) for each in (1, 2, 5)), *(each * 1_000 for each in (1, 2, 5, 10, 20)),
    *(each * MINUTE_MS for each in (0.5, 1, 2, 5, 10, 20)), *(each * HOUR_MS for each in (0.5, 1, 2, 6, 12)),
    *(each * DAY_MS for each in (1, 2, 5, 10, 30)),
)  # fmt: skip


class Picture(NamedTuple):
    """A chart in two sizes; the width of the screen selects one."""

    wide: str
    narrow: str


def drawn(name: str, title: str, draw: Callable[[Axes, int], None], *, height: float = 1.0) -> Picture:
    """Draw a chart in all sizes. ``draw`` gets the axes, and the number of labels that fit on the bottom axis."""
    found = {}
    for size, (width, tall, labels) in SIZES.items():
        with mpl.rc_context(cast("Any", _STYLE)):
            figure = Figure(figsize=(width, tall * height), layout="constrained")
            axes = figure.subplots()
            draw(axes, labels)
            told = io.StringIO()
            figure.savefig(told, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
        found[size] = _inline(told.getvalue(), f"{name}-{size}", title)
    return Picture(**found)


def _inline(svg: str, prefix: str, title: str) -> str:
    """Prepare an SVG for a page: no declarations, unique ids, colours and fonts of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', lambda found: f"{found[1]}{prefix}-", svg).replace("xlink:href", "href")
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"font: ([^;\"]*?)([0-9.]+)px [^;\"]*", r"font: \1\2px var(--font)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1), count=1)
    kind = prefix.rpartition("-")[2]
    svg = svg.replace("<svg", f'<svg role="img" aria-labelledby="{prefix}-title" class="{kind}"', 1)
    end = svg.index(">") + 1
    return f'{svg[:end]}<title id="{prefix}-title">{title}</title>{svg[end:]}'.strip()


# Axes.


def _time(axes: Axes, start: int, end: int, labels: int) -> None:
    """Label the bottom axis with moments (UTC)."""
    step = next((each for each in _STEPS if (end - start) / each <= labels), _STEPS[-1])
    ticks = list(range(-(-start // step) * step, end + 1, step))
    with_hours = step < DAY_MS

    def spell(at: int) -> str:
        return moment(at, "%H:%M" if with_hours and at % DAY_MS else "%b %d")

    axes.set_xlim(start, max(end, start + 1))
    axes.set_xticks(ticks, [spell(each) for each in ticks])


def _whole(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))


def _lengths(axes: Axes) -> None:
    """Label the side axis with durations in common units."""
    low, high = axes.get_ylim()
    inside = [each for each in _LENGTHS if low <= each <= high]
    few = inside[:: max(1, -(-len(inside) // 5))] or [low, high]
    axes.yaxis.set_major_locator(FixedLocator(few))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: span(value)))


def _legend(axes: Axes, columns: int = 4) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderaxespad=0.2, handlelength=1.2, columnspacing=1.4
    )


def _dense(rows: Sequence[Row], name: str, at: Sequence[int], missing: float | None = 0) -> list[float]:
    """Return a value for each step; ``missing`` for steps without a row."""
    known = {row["at"]: row[name] for row in rows}
    nothing = float("nan") if missing is None else missing
    return [nothing if known.get(each) is None else known[each] for each in at]


# The charts.


def throughput(facts: ReportData) -> Picture:
    """Draw arrivals, completions and failures per minute."""
    at = list(facts.window.moments())
    by_minute = facts.window.step / MINUTE_MS

    def draw(axes: Axes, labels: int) -> None:
        for name, label, colour in (
            ("arrivals", "arrivals", BLUE),
            ("completions", "completions", GREEN),
            ("failures", "failures", RED),
        ):
            values = [each / by_minute for each in _dense(facts.series, name, at)]
            axes.plot(at, values, color=colour, label=label)
            if name == "failures":
                axes.fill_between(at, values, color=colour, alpha=0.18, linewidth=0)
        _time(axes, facts.window.start, facts.window.end, labels)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        _legend(axes)

    return drawn("throughput", "Arrivals, completions and failures a minute", draw)


def latency(rows: Sequence[Row], facts: ReportData, name: str, title: str) -> Picture:
    """Draw percentiles over time, on a logarithmic scale."""
    at = list(facts.window.moments())

    def draw(axes: Axes, labels: int) -> None:
        for quantile, colour, width in (("p99", RED, 1.2), ("p95", AMBER, 1.4), ("p50", BLUE, 1.8)):
            values = [max(each, 1) for each in _dense(rows, quantile, at, None)]
            axes.plot(at, values, color=colour, label=quantile, linewidth=width)
        axes.set_yscale("log")
        _lengths(axes)
        _time(axes, facts.window.start, facts.window.end, labels)
        _legend(axes)

    return drawn(name, title, draw)


def backlog(facts: ReportData) -> Picture:
    """Draw the backlog and its forecast."""
    at = [row["at"] + facts.window.step for row in facts.backlog]
    depth = [row["depth"] for row in facts.backlog]
    ahead = [row for row in facts.forecast if row["expected"] is not None]

    def draw(axes: Axes, labels: int) -> None:
        axes.plot(at, depth, color=BLUE, label="jobs not finished")
        axes.fill_between(at, depth, color=BLUE, alpha=0.15, linewidth=0)
        end = facts.window.end
        if ahead:
            first = ahead[0]
            then = [first["made_at"], *(row["at"] for row in ahead)]
            lines = [[first["depth"], *(row[name] for row in ahead)] for name in ("expected", "lowest", "highest")]
            axes.fill_between(then, lines[1], lines[2], color=VIOLET, alpha=0.18, linewidth=0, label="90 % of cases")
            axes.plot(then, lines[0], color=VIOLET, linestyle=(0, (4, 2)), label="expected")
            end = max(end, then[-1])
            axes.axvline(first["made_at"], color=SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
        _time(axes, facts.window.start, end, labels)
        _whole(axes)
        _legend(axes)

    return drawn("backlog", "Jobs that are not finished, and what is to be expected", draw)


def bars(
    name: str, title: str, labels: Sequence[str], values: Sequence[float], *, spell: Callable[[float], str], colour: str
) -> Picture:
    """Draw a bar for each item, the first on top."""
    height = max(0.45, 0.16 * len(values) + 0.15)

    def draw(axes: Axes, ticks: int) -> None:
        most = 44 if ticks > 5 else 20
        places = range(len(values))
        axes.barh(list(places), list(values), color=colour, height=0.62, alpha=0.85)
        shown = [short(each, most) for each in labels]
        axes.set_yticks(list(places), shown)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xlim(0, (max(values, default=0) or 1) * 1.18)
        for place, value in zip(places, values, strict=True):
            axes.annotate(spell(value), (value, place), xytext=(4, 0), textcoords="offset points", va="center", color=SOFT)

    return drawn(name, title, draw, height=height)


def utilisation(facts: ReportData) -> Picture:
    """Draw the number of running jobs, and the capacity."""
    at = list(facts.window.moments())
    has_places = any(row["places"] is not None for row in facts.workers)

    def draw(axes: Axes, labels: int) -> None:
        busy = _dense(facts.workers, "busy", at)
        axes.plot(at, busy, color=TEAL, label="jobs worked at at once")
        axes.fill_between(at, busy, color=TEAL, alpha=0.18, linewidth=0)
        if has_places:
            axes.step(
                at,
                _dense(facts.workers, "places", at, None),
                color=SOFT,
                linewidth=1.1,
                where="post",
                label="places of workers",
            )
        _time(axes, facts.window.start, facts.window.end, labels)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        _legend(axes)

    return drawn("workers", "How busy workers were", draw)


def burning(facts: ReportData, burns: Sequence[Burn]) -> Picture:
    """Draw the burn rates of objectives."""

    def draw(axes: Axes, labels: int) -> None:
        most = 1.5
        for burn, colour in zip(burns, MANY, strict=False):
            rates = [float("nan") if each is None else each for each in burn.rate]
            most = max([most, *(each for each in rates if not isnan(each))])
            axes.plot(burn.at, rates, color=colour, label=short(burn.name, 80 if labels > 5 else 44))
        axes.axhline(1, color=RED, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.annotate(
            "1: just as fast as it may", (facts.window.start, 1), xytext=(2, 3), textcoords="offset points", color=RED
        )
        _time(axes, facts.window.start, facts.window.end, labels)
        axes.set_ylim(0, most * 1.15)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        _legend(axes, columns=1)

    return drawn("burn", "How fast the room for errors was used up, hour by hour", draw, height=1.1)


def shares(facts: ReportData) -> Picture:
    """Draw the shares of namespaces."""
    rows = facts.tenants[:12]
    values = [row["share_busy_ms"] or 0 for row in rows]
    return bars(
        "tenants",
        "Shares of namespaces in all work",
        [row["namespace"] for row in rows],
        values,
        spell=percent,
        colour=AMBER,
    )


def failing(facts: ReportData) -> Picture:
    """Draw the most frequent kinds of failures."""
    rows = facts.failures[:8]
    labels = [row["pattern"] or row["fingerprint"] for row in rows]
    return bars("failures", "The most frequent failures", labels, [row["n"] for row in rows], spell=count, colour=RED)
