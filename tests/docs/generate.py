"""``make docs``: writes the parts of the docs that are made from the code, between their markers."""

from __future__ import annotations

import re
from pathlib import Path

import click
from bench import billion

from penstock import config
from penstock.cli.options import FLAGS
from penstock.cli.serve import serve
from penstock.config.settings import SPELLED
from penstock.core import lifecycle
from penstock.doors.jobs.events import PAYLOADS
from penstock.lake.tables import TABLES
from penstock.spark.options import OPTIONS

ROOT = Path(__file__).parents[2]
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def default_of(name: str) -> str:
    value = getattr(config.Config(), name)
    if value is None:
        return "off" if name in ("tcp", "resp", "metrics", "batches", "topics", "messages") else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple) and not isinstance(value, config.Listener):
        return ", ".join(map(str, value)) or "none"
    return config.spell(name, value) or "empty" if name in SPELLED else str(value) or "empty"


def settings() -> str:
    flags = {option.name for option in serve.params}
    lines = ["| setting | default | environment | flag | what it is for |", "|---|---|---|---|---|"]
    for name, setting in config.SETTINGS.items():
        env = ", ".join(f"`{variable}`" for variable in setting.env) or "–"
        flag = f"`{config.flag_of(name)}`" if name in flags else "–"
        lines.append(f"| `{name}` | {default_of(name)} | {env} | {flag} | {setting.help} |")
    return "\n".join(lines)


def lifecycle_part() -> str:
    return f"```mermaid\n{lifecycle.diagram()}\n```\n\n{lifecycle.table()}"


def serve_help() -> str:
    context = click.Context(serve, info_name="penstock serve", max_content_width=110, terminal_width=110)
    return f"```text\n{serve.get_help(context)}\n```"


def events() -> str:
    rows = [f"| `{kind.wire_name}` | {', '.join(fields)} |" for kind, fields in PAYLOADS.items()]
    return "\n".join(["| event | data |", "|---|---|", *rows])


def spark_options() -> str:
    rows = [f"| `{name}` | {', '.join(each.modes)} | {each.default} | {each.help} |" for name, each in OPTIONS.items()]
    return "\n".join(["| option | for | default | what it is for |", "|---|---|---|---|", *rows])


def lake_tables() -> str:
    parts = []
    for table in TABLES.values():
        rows = [
            f"| `{each.name}` | {each.type} | {each.help} | {'' if each.fold == 'row' else each.fold} |"
            for each in table.columns
        ]
        parts.append("\n".join([f"### {table.path}\n", f"{table.help[0].upper()}{table.help[1:]}.\n",
                                "| column | type | what it is | folds |", "|---|---|---|---|", *rows]))  # fmt: skip
    return "\n\n".join(parts)


def billion_jobs() -> str:
    return billion.text(billion.Measured())


PARTS = {
    "lifecycle": lifecycle_part,
    "settings": settings,
    "serve": serve_help,
    "events": events,
    "spark_options": spark_options,
    "lake_tables": lake_tables,
    "billion": billion_jobs,
}


#: The file with every setting, made by ``penstock config example``.
EXAMPLE = ROOT / "deploy" / "penstock.yaml"


def every_setting() -> str:
    return "\n".join([*config.example(frozenset(FLAGS)), ""])


def renew(text: str) -> str:
    """Return a document with its generated parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[3]}", text)


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


if __name__ == "__main__":
    EXAMPLE.write_text(every_setting(), encoding="utf-8")
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = renew(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print("renewed", path.relative_to(ROOT))
