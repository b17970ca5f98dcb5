"""The page: texts, charts and tables, in one file that loads nothing. Texts of users are escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from penstock.lake.queries.window import spell_length
from penstock.lake.report import figures
from penstock.lake.report.data import SHOWN_MAX
from penstock.lake.report.highlights import count, figure, moment, notes, percent, place_of, short, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.lake.report.data import ReportData, Row
    from penstock.lake.report.figures import Picture

#: Rows of the table below a chart; of longer tables, the last rows.
TABLE_MAX: Final = 500
_STYLE: Final = """
:root{color-scheme:light dark;--font:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif;
--paper:#fbfbf9;--card:#fff;--edge:#e4e4de;--ink:#1d2126;--soft:#5c646d;--grid:#e3e5e7;
--c1:#2b6cb0;--c2:#2f855a;--c3:#c53030;--c4:#b7791f;--c5:#6b46c1;--c6:#0f7f83;
--bad:#c53030;--warn:#9c5d0b;--good:#2f855a;--info:#2b6cb0}
@media(prefers-color-scheme:dark){:root{--paper:#12161b;--card:#1a2027;--edge:#2b333c;--ink:#e6e9ec;--soft:#a0a9b3;--grid:#2f3842;
--c1:#63a4f0;--c2:#5cc489;--c3:#f47c7c;--c4:#e3ac4f;--c5:#b197f2;--c6:#4fc6c8;
--bad:#f47c7c;--warn:#e3ac4f;--good:#5cc489;--info:#63a4f0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 var(--font)}
main,header,footer{max-width:60rem;margin:0 auto;padding:0 1rem}
header{padding-top:2.2rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .3rem;letter-spacing:-.01em}
h2{font-size:1.2rem;margin:0 0 .2rem}
p{margin:.4rem 0}
.soft{color:var(--soft);font-size:.92rem}
.card{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:1.1rem 1.2rem;margin:1rem 0}
.notes{list-style:none;margin:.5rem 0 0;padding:0}
.notes li{padding:.4rem 0 .4rem .9rem;border-left:4px solid var(--info);margin:.45rem 0;overflow-wrap:anywhere}
.notes .bad{border-color:var(--bad)}.notes .warn{border-color:var(--warn)}.notes .good{border-color:var(--good)}
.notes b{font-weight:600}.bad b{color:var(--bad)}.warn b{color:var(--warn)}.good b{color:var(--good)}.info b{color:var(--info)}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:.7rem;margin:1rem 0;padding:0}
.tiles div{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:.7rem .9rem}
.tiles dt{color:var(--soft);font-size:.82rem}
.tiles dd{margin:0;font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums}
figure{margin:.6rem 0 0}
figure svg{display:block;width:100%;height:auto;overflow:visible}
svg.narrow{display:none}
@media(max-width:40rem){.tiles{grid-template-columns:repeat(2,1fr)}
svg.wide{display:none}svg.narrow{display:block}.card{padding:.9rem .85rem}h1{font-size:1.4rem}}
details{margin-top:.6rem;font-size:.92rem}summary{cursor:pointer;color:var(--soft)}

.scroll{overflow:auto;max-height:26rem;margin-top:.5rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding-bottom:.3rem}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--edge);vertical-align:top}
th{font-weight:600;color:var(--soft);position:sticky;top:0;background:var(--card)}
td:first-child,th:first-child,.text{text-align:left}.text{overflow-wrap:anywhere;min-width:10.5rem}td:not(.text){white-space:nowrap}
.alarm{color:var(--bad);font-weight:600}
footer{color:var(--soft);font-size:.85rem;padding-bottom:2.5rem}
@media print{.card{break-inside:avoid}details{display:none}}
"""
_WEIGHTS: Final = {"bad": "Now", "warn": "Look", "good": "Good", "info": "Note"}


def page(facts: ReportData) -> str:
    """Return a report as HTML."""
    sections = [
        _queues(facts), _throughput(facts), _latency(facts), _backlog(facts), _failures(facts), _workers(facts),
        _objectives(facts), _tenants(facts),
    ]  # fmt: skip
    window = facts.window
    about = f"{moment(window.start)} – {moment(window.end)} UTC · steps of {spell_length(window.step)}"
    batch = "" if facts.last_batch is None else f" Last batch: {facts.last_batch}."
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<title>{escape(_scope(facts))} – Penstock report</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{escape(_scope(facts))}</h1>
<p class="soft">{about}</p>
</header>
<main>
<section class="card" aria-labelledby="noteworthy">
<h2 id="noteworthy">What is noteworthy</h2>
<ul class="notes">
{_notes(facts)}
</ul>
</section>
{_tiles(facts)}
{"".join(each for each in sections if each)}
</main>
<footer>
<p>Made by <code>penstock pipeline report</code> from the data of the lake until {moment(facts.known_until)} UTC.{batch}
Percentiles are off by 1&#8239;% at most.</p>
</footer>
</body>
</html>
"""


def _scope(facts: ReportData) -> str:
    if facts.queue is not None:
        return f"Queue {short(facts.queue, 200)}" + ("" if facts.namespace is None else f" of {facts.namespace}")
    return "All queues" if facts.namespace is None else f"All queues of {facts.namespace}"


def _notes(facts: ReportData) -> str:
    return "\n".join(
        f'<li class="{note.weight}"><b>{_WEIGHTS[note.weight]}</b> · {escape(note.text)}</li>' for note in notes(facts)
    )


def _tiles(facts: ReportData) -> str:
    def total(name: str) -> int:
        return sum(row[name] for row in facts.queues)

    bad, ended = total("failures") + total("stalls"), total("completions") + total("failures") + total("stalls")
    depth = facts.backlog[-1] if facts.backlog else {"depth": 0, "age_ms": 0}
    tiles = [
        ("Arrivals", count(total("arrivals"))),
        ("Completions", count(total("completions"))),
        ("Failed attempts", percent(bad / ended if ended else None)),
        ("Dead letters", count(total("dead"))),
        ("Wait, median", span(facts.wait_whole.get("p50"))),
        ("Wait, 99 %", span(facts.wait_whole.get("p99"))),
        ("Not finished", count(depth["depth"])),
        ("Oldest, about", span(depth["age_ms"]) if depth["depth"] else "–"),
    ]
    return f'<dl class="tiles">{"".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)}</dl>'


# Sections.


def _section(name: str, title: str, text: str, picture: Picture | None, *tables: str) -> str:
    drawn = "" if picture is None else f"<figure>{picture.wide}{picture.narrow}</figure>"
    return (
        f'<section class="card" aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>'
        f'<p class="soft">{escape(text)}</p>{drawn}{"".join(tables)}</section>\n'
    )


def _table(
    caption: str, columns: Sequence[tuple[str, Callable[[Row], str]]], rows: Sequence[Row], *, folded: bool = True
) -> str:
    """Return a table. A column whose name ends with a star holds text of users. ``folded``: hidden until opened."""
    heads = "".join(
        f'<th scope="col"{_kind(name)}>{escape(name.removesuffix("*"))}</th>' for name, _ in columns
    )  # fmt: skip
    shown = rows[-TABLE_MAX:] if folded else rows
    body = "".join(
        "<tr>" + "".join(f"<td{_kind(name)}>{escape(spell(row))}</td>" for name, spell in columns) + "</tr>" for row in shown
    )
    more = "" if len(shown) == len(rows) else f" (the last {TABLE_MAX} of {len(rows)})"
    table = (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(caption)}{more}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    return f"<details><summary>{escape(caption)}, as a table</summary>{table}</details>" if folded else table


def _kind(name: str) -> str:
    return ' class="text"' if name.endswith("*") else ""


def _at(row: Row) -> str:
    return moment(row["at"])


def _cell(name: str, spell: Callable[[Any], str] = count) -> Callable[[Row], str]:
    return lambda row: "–" if row.get(name) is None else spell(row[name])


def _queues(facts: ReportData) -> str:
    if not facts.queues:
        return _section("queues", "Queues", "Nothing happened in this time.", None)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("Queue*", place_of),
        ("Arrivals", _cell("arrivals")),
        ("Completed", _cell("completions")),
        ("Failed", _cell("failure_rate", percent)),
        ("Dead", _cell("dead")),
        ("Wait, mean", _cell("wait_ms_mean", span)),
        ("Run, mean", _cell("run_ms_mean", span)),
        ("Not finished", _cell("depth")),
    ]
    rows = facts.queues[:SHOWN_MAX]
    text = "" if len(rows) == len(facts.queues) else f"The busiest {len(rows)} of {len(facts.queues)}."
    return _section("queues", "Queues", text, None, _table("Queues in this time", columns, rows, folded=False))


def _throughput(facts: ReportData) -> str:
    table = _table(
        f"In steps of {spell_length(facts.window.step)}",
        [
            ("From (UTC)", _at),
            *((name.capitalize(), _cell(name)) for name in ("arrivals", "completions", "failures", "retries", "dead")),
        ],
        facts.series,
    )
    return _section("throughput", "What came and what was done", "Jobs a minute.", figures.throughput(facts), table)


def _latency(facts: ReportData) -> str:
    found = ""
    for name, title, text, rows, whole in (
        ("waits", "How long jobs waited", "From when a job was due until a worker got it.", facts.waits, facts.wait_whole),
        (
            "runs",
            "How long attempts took",
            "From when a worker got a job until it was done or had failed.",
            facts.runs,
            facts.run_whole,
        ),
    ):
        if not rows:
            continue
        quantiles = ("p50", "p95", "p99")
        table = _table(
            title, [("From (UTC)", _at), ("Attempts", _cell("n")), *((each, _cell(each, span)) for each in quantiles)], rows
        )
        summary = ", ".join(f"{each} {span(whole.get(each))}" for each in quantiles)
        found += _section(
            name, title, f"{text} Over the whole time: {summary}.", figures.latency(rows, facts, name, title), table
        )
    return found


def _backlog(facts: ReportData) -> str:
    text = "Waiting, delayed, being worked at or waiting for others."
    first = next(iter(facts.forecast), None)
    if first is not None and first["note"]:
        text += f" No forecast: {first['note']}."
    elif first is not None and first["model"] == "last-value":
        text += f" The best guess is that it stays as it is, which was off by {figure(first['error'])} jobs on average."
    elif first is not None:
        text += (
            f" The forecast ({first['model']}) was off by {figure(first['error'])} jobs on average when it was tried "
            f"on the past; the guess that nothing changes by {figure(first['naive_error'])}."
        )
    tables = [
        _table(
            "By step",
            [
                ("From (UTC)", _at),
                ("Not finished", _cell("depth")),
                ("Oldest, about", _cell("age_ms", span)),
                ("Added", _cell("added")),
                ("Taken away", _cell("taken")),
            ],
            facts.backlog,
        ),
        _table(
            "Queues",
            [
                ("Queue*", place_of),
                ("Not finished", _cell("depth")),
                ("A minute", lambda row: f"{row['net_per_minute']:+.3g}"),
                ("Empty by (UTC)", _cell("drained_at", moment)),
                ("Earliest", _cell("drained_earliest", moment)),
                ("Latest", _cell("drained_latest", moment)),
                ("Error, jobs", _cell("error", figure)),
            ],
            facts.forecasts[:SHOWN_MAX],
        ),
    ]  # fmt: skip
    return _section("backlog", "Backlog and forecast", text, figures.backlog(facts), *tables)


def _failures(facts: ReportData) -> str:
    if not facts.failures:
        return _section("failures", "Failures", "None.", None)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("What*", lambda row: short(row["pattern"] or row["fingerprint"], 300)),
        ("Queue*", place_of),
        ("Times", _cell("n")),
        ("First seen (UTC)", _cell("first_seen", moment)),
        ("Last seen (UTC)", _cell("last_seen", moment)),
        ("Example*", lambda row: short(row["example"] or "", 300)),
    ]
    table = _table("Kinds of failures", columns, facts.failures[:SHOWN_MAX])
    text = "Errors that differ in ids, numbers and quoted words only are one. Whole days."
    return _section("failures", "What failed", text, figures.failing(facts), table)


def _workers(facts: ReportData) -> str:
    if not facts.workers:
        return ""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("From (UTC)", _at),
        ("At once", _cell("busy", figure)),
        ("Places", _cell("places")),
        ("Used", _cell("utilisation", percent)),
        ("Attempts ended", _cell("attempts")),
    ]
    table = _table("By step", columns, facts.workers)
    text = (
        "How many jobs were worked at at once, on average, and how many the workers that introduced themselves could take."
    )
    return _section("workers", "Workers", text, figures.utilisation(facts), table)


def _objectives(facts: ReportData) -> str:
    if not facts.slo:
        return ""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("Objective*", lambda row: short(row["objective"], 200)),
        ("Queue*", place_of),
        ("Promised", _cell("target", percent)),
        ("Kept", _cell("attained", percent)),
        ("Room for errors left", _cell("budget_left", percent)),
        ("Burn, 1 h", _cell("burn_1h", figure)),
        ("6 h", _cell("burn_6h", figure)),
        ("3 d", _cell("burn_3d", figure)),
        ("Alarm", lambda row: row["alarm"] or "–"),
    ]
    rows = sorted(facts.slo, key=lambda row: 1 if row["budget_left"] is None else row["budget_left"])[:SHOWN_MAX]
    table = _table("Objectives", columns, rows, folded=False)
    text = "With a burn rate of 1, the room for errors lasts exactly as long as the objective's window."
    picture = figures.burning(facts, facts.burns) if facts.burns else None
    return _section("objectives", "Objectives", text, picture, table)


def _tenants(facts: ReportData) -> str:
    if facts.namespace is not None or len(facts.tenants) < 2:
        return ""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("Namespace*", lambda row: short(row["namespace"], 200)),
        ("Work", _cell("share_busy_ms", percent)),
        ("Arrivals", _cell("arrivals")),
        ("Completions", _cell("completions")),
        ("Served", _cell("served", percent)),
        ("Wait, mean", _cell("wait_ms_mean", span)),
    ]
    index = facts.jain.get("busy_ms")
    even = (
        ""
        if index is None
        else f" Jain's index is {index:.2f}: 1 if all get the same, {1 / len(facts.tenants):.2f} if one gets everything."
    )
    table = _table("Namespaces", columns, facts.tenants[:SHOWN_MAX])
    return _section("tenants", "Who gets how much", f"Shares of the time of workers.{even}", figures.shares(facts), table)
