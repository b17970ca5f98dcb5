"""The report: figures are those of the lake, the page is sound, and nothing of users gets into it as it is."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from penstock.cli.main import main
from penstock.lake.location import Lake
from penstock.lake.queries.api import Insights, Question
from penstock.lake.report.data import report_data_of
from penstock.lake.report.highlights import count, notes, percent, short, span
from penstock.lake.report.html import page
from penstock.lake.tables import FAILURES, MINUTES
from tests.support import lakes
from tests.support.lakes import DAY, HOUR, MINUTE, MONDAY, Business, rows_of

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>$\\frac{1}{2}$ \x07\x00"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Strict(HTMLParser):
    """Reads a page; insists that what is opened is closed, in order, that ids are unique and references lead there."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wanted: set[str] = set()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} says something twice: {names}"
        given = dict(attrs)
        self.tags.append((tag, given))
        if given.get("id"):
            self.ids.append(str(given["id"]))
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("aria-labelledby", "aria-describedby"):
                self.wanted.add(str(value))
            self.wanted.update(re.findall(r"url\(#([^)]+)\)", value or ""))
            if name == "href":
                assert str(value).startswith("#"), value
                self.wanted.add(str(value)[1:])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    @classmethod
    def read(cls, html: str) -> Strict:
        assert html.startswith("<!DOCTYPE html>\n")
        parser = cls()
        parser.feed(html)
        parser.close()
        assert parser.open == []
        assert len(parser.ids) == len(set(parser.ids))
        assert parser.wanted <= set(parser.ids)
        return parser


@pytest.fixture(scope="module")
def business() -> Business:
    return Business(minutes=400)


@pytest.fixture(scope="module")
def lake(business: Business, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = business.write(tmp_path_factory.mktemp("report") / "lake", pieces=2)
    evil = {"namespace": "default", "queue": EVIL, "minute": business.start + HOUR}
    lakes.write(made, MINUTES, rows_of(MINUTES, [{**evil, "arrivals": 999_999, "failures": 90, "waits": 1, "wait_ms": 5}]))
    failure = {"fingerprint": "evil", "pattern": EVIL, "example": EVIL, "n": 90, "date": MONDAY // DAY, "example_job": EVIL}
    seen = {"first_seen": business.end - MINUTE, "last_seen": business.end}
    lakes.write(made, FAILURES, rows_of(FAILURES, [{**evil, **failure, **seen}]))
    return made


def test_the_page_is_sound_and_its_figures_are_those_of_the_lake(lake: Lake, business: Business, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["pipeline", "report", "--lake", lake.address, "--out", str(out)])
    assert done.exit_code == 0, done.output
    html = out.read_text(encoding="utf-8")
    assert done.output == f"{out}: {out.stat().st_size:,} bytes\n"
    read = Strict.read(html)
    text = " ".join(read.text)

    def total(name: str, queue: str) -> int:
        return sum(row[name] for row in business.rows[MINUTES] if row["queue"] == queue)

    for queue in ("mail", "payments", "images"):
        assert count(total("arrivals", queue)) in text
        assert count(total("completions", queue)) in text
    assert (
        count(sum(row["n"] for row in business.rows[FAILURES] if row["queue"] == "mail" and "timed out" in row["pattern"]))
        in text
    )
    # Pictures: two of each, with a title; tables behind them.
    pictures = [given for tag, given in read.tags if tag == "svg"]
    assert len(pictures) == 16
    assert all(given["role"] == "img" and given["aria-labelledby"] for given in pictures)
    assert sum(tag == "details" for tag, _ in read.tags) >= 8
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg)
        assert not re.search(r"#0102\w\w", svg), "a colour that stands for another was left"


def test_nothing_is_fetched_and_nothing_of_users_is_taken_for_the_page(lake: Lake) -> None:
    html = page(report_data_of(Insights(lake), Question()))
    read = Strict.read(html)
    assert not {tag for tag, _ in read.tags} & {"script", "img", "link", "iframe", "object", "embed", "a", "image"}
    assert not re.search(r"(https?:)?//", re.sub(r"<title.*?</title>", "", html)), "an address"
    assert not re.search(r"url\((?!#)|@import", html)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x00" not in html
    assert "\x07" not in html
    assert "$\\frac{1}{2}$" in " ".join(read.text), "no formula was made of it"
    assert "Content-Security-Policy" in html


def test_it_says_what_is_noteworthy(lake: Lake) -> None:
    facts = report_data_of(Insights(lake), Question())
    said = [note.text for note in notes(facts)]
    assert notes(facts)[0].weight in ("bad", "warn")
    assert any("a new kind of failure" in each for each in said)
    assert (
        any(each.startswith("default/mail: ") and "jobs are not finished" in each for each in said)
        or facts.backlog[-1]["depth"] == 0
    )


def test_when_all_is_well_it_says_so(tmp_path: Path) -> None:
    lake = Business(minutes=30, queues=(("default", "images", 2.0),)).write(tmp_path)
    facts = report_data_of(Insights(lake), Question())
    assert notes(facts)[0].weight == "good"
    assert "Who gets how much" not in page(facts)  # there is one namespace only


def test_one_queue_of_one_namespace_for_some_time(lake: Lake, business: Business, tmp_path: Path) -> None:
    out = tmp_path / "q.html"
    asked = [
        "--namespace",
        "shop",
        "--queue",
        "images",
        "--from",
        "2026-11-02",
        "--to",
        "2026-11-02T02:00:00Z",
        "--step",
        "1h",
    ]
    done = CliRunner().invoke(main, ["pipeline", "report", "--lake", lake.address, "--out", str(out), *asked])
    assert done.exit_code == 0, done.output
    html = out.read_text(encoding="utf-8")
    assert "Queue images of shop" in html
    assert "mail" not in html
    rows = [row for row in business.rows[MINUTES] if row["queue"] == "images" and row["minute"] < MONDAY + 2 * HOUR]
    assert count(sum(row["arrivals"] for row in rows)) in html


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--from", "yesterday"], "expected 2026-01-31, 2026-01-31T12:00:00Z, or milliseconds since 1970"),
        (["--step", "5s"], "expected minutes, hours or days"),
        (["--from", "5", "--to", "4"], "from must be before to"),
        (["--out", "/proc/no/report.html"], "cannot be written"),
    ],
)
def test_wrong_arguments_are_told(lake: Lake, arguments: list[str], error: str) -> None:
    done = CliRunner().invoke(main, ["pipeline", "report", "--lake", lake.address, *arguments])
    assert done.exit_code == 2
    assert error in done.output


def test_a_lake_without_events_is_no_missing_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.ensure(MINUTES)
    done = CliRunner().invoke(main, ["pipeline", "report", "--lake", lake.address])
    assert done.exit_code == 2
    assert "has no events yet" in done.output


def test_without_a_lake_it_says_how_to_build_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pipeline", "report", "--lake", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "penstock pipeline run --lake" in done.output


@pytest.mark.parametrize(
    ("spell", "value", "text"),
    [
        (percent, 0.99, "99\N{NARROW NO-BREAK SPACE}%"),
        (percent, 0.99999, ">100\N{NARROW NO-BREAK SPACE}%"),
        (percent, 0.0051, "0.51\N{NARROW NO-BREAK SPACE}%"),
        (percent, None, "–"),
        (span, 950, "950\N{NARROW NO-BREAK SPACE}ms"),
        (span, 90_000, "1.5\N{NARROW NO-BREAK SPACE}min"),
        (span, 36 * HOUR, "1.5\N{NARROW NO-BREAK SPACE}d"),
        (count, 1_234_567, "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567"),
        (lambda text: short(text, 5), "abc\n\x00defg", "abc …"),
    ],
)
def test_how_things_are_spelled(spell: Any, value: Any, text: str) -> None:
    assert spell(value) == text
