"""``penstock spark doctor``: check the requirements of a pipeline, and report problems with their remedies."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.client.errors import PenstockError
from penstock.spark.session import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable
    from pyarrow import DataType

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table

INSTALL = "pip install 'penstock-queue[spark]'"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``remedy``: what to do, if it is not ``ok``."""

    what: str
    ok: bool
    text: str
    remedy: str = ""


def examine(*, url: str | None = None, lake: str | None = None, start: bool = False) -> Iterator[Finding]:
    """Check Java, the packages and the source; a server and a lake, if given; and the start of Spark, if ``start`` is set."""
    yield Finding("Python", sys.version_info >= (3, 11), sys.version.split()[0], "Spark 4 needs Python 3.11 or newer")
    java = _java()
    yield java
    packages = [_package("pyspark", "4.2"), _package("pyarrow", "18"), _package("deltalake", "1.6")]
    yield from packages
    yield _pandas()
    yield _source()
    if os.environ.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        yield Finding(
            "PYSPARK_PYTHON",
            ok=Path(os.environ["PYSPARK_PYTHON"]).exists(),
            text=f"{os.environ['PYSPARK_PYTHON']}, not this Python",
            remedy="unset it, or point it to a Python with penstock-queue[spark]",
        )
    if url is not None:
        yield _server(url)
    if lake is not None:
        yield from _lake(lake)
    if start:
        yield _start() if java.ok and all(each.ok for each in packages) else Finding("Spark", ok=False, text="not started")


def _java() -> Finding:
    try:
        found = find_java()
    except PenstockError as error:
        return Finding("Java", ok=False, text="none that Spark runs on", remedy=str(error))
    return Finding("Java", ok=True, text=f"{found.version}, from {found.found} ({found.home})")


def _package(name: str, least: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, ok=False, text="is not installed", remedy=INSTALL)
    new_enough = _numbers(version) >= _numbers(least)
    return Finding(name, ok=new_enough, text=version, remedy=f"{least} or newer: {INSTALL}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _pandas() -> Finding:
    try:
        version = metadata.version("pandas")
    except metadata.PackageNotFoundError:
        return Finding("pandas", ok=True, text="is not installed, and not needed")
    return Finding(
        "pandas",
        ok=_numbers(version) < (3,),
        text=version,
        remedy="pyspark.testing and pyspark.pandas need pip install 'pandas<3'",
    )


def _source() -> Finding:
    if importlib.util.find_spec("pyspark_penstock") is None:
        return Finding(
            "source",
            ok=False,
            text="pyspark_penstock cannot be imported",
            remedy="install penstock as a package: pip install .",
        )
    try:
        name = import_module("pyspark_penstock").DefaultSource.name()
    except ImportError as error:
        return Finding("source", ok=False, text=f"pyspark_penstock cannot be imported: {error}", remedy=INSTALL)
    return Finding("source", ok=True, text=f'format("{name}") is found automatically')


def _server(url: str) -> Finding:
    from penstock.spark import options  # noqa: PLC0415, missing packages were reported above
    from penstock.spark.http_client import BulkClient  # noqa: PLC0415

    try:
        with BulkClient(options.for_batch({"url": url, "table": "jobs", "retryFor": "0", "timeout": "5s"})) as wire:
            found = wire.get("/bulk")
    except PenstockError as error:
        return Finding(
            "server",
            ok=False,
            text=f"{url}: {error}",
            remedy="is it running, and may PENSTOCK_TOKEN or PENSTOCK_API_KEY look?",
        )
    return Finding("server", ok=True, text=f"{url}: version {found['version']}, {len(found['shards'])} shards")


def _lake(address: str) -> Iterator[Finding]:
    """Check the location of a lake, then its tables."""
    if "://" not in address:
        place = Path(address)
        if place.exists() and not place.is_dir():
            yield Finding("lake", ok=False, text=f"{place} is a file", remedy="a lake is a directory: choose another place")
            return
        there = place if place.exists() else next(each for each in place.absolute().parents if each.exists())
        may_write = os.access(there, os.W_OK)
        text = f"{place}" if place.exists() else f"{place} is not there yet"
        yield Finding("lake", ok=may_write, text=text, remedy=f"{there} cannot be written to")
        if not place.exists():
            return
    try:
        from penstock.lake.location import Lake  # noqa: PLC0415, missing packages were reported above
        from penstock.lake.tables import TABLES  # noqa: PLC0415
    except ImportError as error:
        yield Finding("lake", ok=False, text=f"cannot be opened: {error}", remedy=INSTALL)
        return
    yield from _tables(Lake(address), TABLES)


def _tables(lake: Lake, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Open every table, and compare their last batches."""
    from penstock.lake.writer import mark_of  # noqa: PLC0415

    opened, batches = [], {}
    for path, table in tables.items():
        try:
            found = lake.open(table)
            if found is None:
                continue
            opened.append(path)
            batches[path] = mark_of(found)
            wrong = _differing(found, table)
        except Exception as error:  # noqa: BLE001, any error is a result of the check
            yield Finding(
                path,
                ok=False,
                text=f"cannot be opened: {str(error).splitlines()[0]}",
                remedy=f"may this user read {lake.shown}/{table.path}? What is in bronze can be made again: remove the "
                "directory, and run the pipeline",
            )
            continue
        if wrong:
            yield Finding(path, ok=False, text=f"columns of other types: {wrong}", remedy="it was made by a newer version")
    if not opened:
        yield Finding("tables", ok=True, text="none yet: penstock pipeline run makes them")
        return
    last = max((batch for batch in batches.values() if batch is not None), default=None)
    behind = [f"{path} has {batch}" for path, batch in batches.items() if batch is not None and last and batch < last - 1]
    yield Finding(
        "tables",
        ok=not behind,
        text=f"{len(opened)} of {len(tables)}, last batch {'none' if last is None else last}"
        + (f"; behind: {', '.join(behind)}" if behind else ""),
        remedy=f"penstock pipeline run --lake {lake.shown} --once brings them up to date",
    )


def _differing(found: DeltaTable, table: Table) -> str:
    """Return the names of columns with wrong types. The next run adds a missing column."""
    import pyarrow as pa  # noqa: PLC0415

    here = {field.name: field.type for field in pa.schema(found.schema().to_arrow())}
    return ", ".join(
        f"{field.name} ({here[field.name]})"
        for field in table.schema
        if field.name in here and not _alike(here[field.name], field.type)
    )


def _alike(one: DataType, other: DataType) -> bool:
    """Compare types, but ignore the width of offsets in texts, and the spelling of a time zone."""
    return _plain(one) == _plain(other)


def _plain(kind: DataType) -> str:
    return str(kind).replace("large_", "").replace("_view", "").replace("tz=+00:00", "tz=UTC")


def _start() -> Finding:
    from penstock.spark.session import session  # noqa: PLC0415

    try:
        spark = session("local[1]", name="doctor", settings={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
        count = spark.range(10).count()
        version = spark.version
        spark.stop()
    except Exception as error:  # noqa: BLE001, any error is a result of the check
        return Finding("Spark", ok=False, text=str(error).splitlines()[0], remedy="see above; the log of Spark has more")
    return Finding("Spark", ok=count == 10, text=f"{version} starts and counts")
