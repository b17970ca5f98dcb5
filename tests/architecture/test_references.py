"""Docstrings and comments name modules, classes and attributes of ours that exist.

A reader follows such a name to the code. After a module is renamed, nothing else finds the texts that have the old name.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}

#: Packages that a reference begins with. ``client``, ``lake`` and ``spark`` are also names of objects in texts
#: (``client.jobs``, ``spark.read``), so they are checked only after ``penstock``.
PACKAGES = frozenset(name.split("/")[0] for name in FILES if "/" in name) - {"client", "lake", "spark"}
#: Modules that texts name without their package.
SHORT = {"contract": "store.contract", "lifecycle": "core.lifecycle", "limits": "core.limits"}

QUOTED = re.compile(r"``(\w+(?:\.\w+)+)(?:\(\))?``")
#: Without quotes, ``config.data`` or ``engine.run`` may be an object in a piece of code.
_PLAIN = "|".join(sorted(PACKAGES - {"config", "engine", "server", "store"}))
BARE = re.compile(rf"(?<![\w./`])((?:{_PLAIN})(?:\.[A-Za-z_]\w*)+)")
PYTHON_FILE = re.compile(r"(?<![\w/.*])((?:\w+/)*\w+\.py)\b")


class Module(NamedTuple):
    """What a module has: its names, and the names of its classes."""

    names: frozenset[str]
    classes: dict[str, ast.ClassDef]


@cache
def module(name: str) -> Module | None:
    """Read a module or package by its dotted name without ``penstock``; None if there is none."""
    path = name.replace(".", "/")
    found = FILES.get(f"{path}.py") or FILES.get(f"{path}/__init__.py")
    if found is None:
        return None
    tree = ast.parse(found.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):  # names of functions count too: a few more than the module has, and none less
        match node:
            case ast.ClassDef(name=own) | ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own):
                names.add(own)
            case ast.Name(id=own, ctx=ast.Store()):
                names.add(own)
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                names.update(each.asname or each.name for each in imported)
            case _:
                pass
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return Module(frozenset(names), classes)


@cache
def classes() -> dict[str, ast.ClassDef]:
    """All classes by their names, which are unique (``test_rules.py``), but for those of the synchronous client."""
    every = (module(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")) for name in reversed(FILES))
    return {name: node for each in every if each is not None for name, node in each.classes.items()}


def members(name: str) -> set[str] | None:
    """Return the names that a class defines or inherits; None if a base of it is not ours."""
    found: set[str] = set()
    node = classes()[name]
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own):
                found.add(own)
            case ast.Name(id=own, ctx=ast.Store()) | ast.Attribute(value=ast.Name(id="self"), attr=own, ctx=ast.Store()):
                found.add(own)
            case ast.Constant(value=str(own)):  # __slots__
                found.add(own)
            case _:
                pass
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        spelled = plain.attr if isinstance(plain, ast.Attribute) else plain.id if isinstance(plain, ast.Name) else ""
        if spelled in ("Protocol", "Generic", "NamedTuple", "StrEnum", "IntEnum", "IntFlag", "Enum", "Struct", "ABC"):
            continue
        inherited = members(spelled) if spelled in classes() and spelled != name else None
        if inherited is None:
            return None
        found |= inherited
    return found


def exists(reference: str) -> bool | None:
    """Return whether a dotted reference leads to something of ours; None if it does not look like one."""
    first, *rest = reference.removeprefix("penstock.").split(".")
    if first in classes():
        own = members(first)
        return None if own is None else rest[0] in own
    if reference.startswith("penstock.") and f"{first}/__init__.py" not in FILES:
        return None  # a file, or a logger
    if first not in PACKAGES and first not in SHORT and not reference.startswith("penstock."):
        return None
    at = SHORT.get(first, first)
    while rest and module(f"{at}.{rest[0]}") is not None:
        at = f"{at}.{rest.pop(0)}"
    if not rest:
        return True
    there = module(at)
    assert there is not None
    if rest[0] not in there.names:
        return False
    if len(rest) > 1 and rest[0] in classes():
        own = members(rest[0])
        return own is None or rest[1] in own
    return True


def has_file(reference: str, reader: str) -> bool:
    """Return whether a file is there: by its whole path, or in the package of the module that names it."""
    package = PurePosixPath(reader).parts[0]
    parts = PurePosixPath(reference).parts
    return reference in FILES or any(
        name.startswith(f"{package}/") and PurePosixPath(name).parts[-len(parts) :] == parts for name in FILES
    )


def texts(source: str) -> str:
    """Return the comments, docstrings and other texts of a module."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    wanted = (tokenize.COMMENT, tokenize.STRING)
    return "\n".join(token.string for token in tokens if token.type in wanted)


def broken(source: str, reader: str) -> list[str]:
    text = texts(source)
    dotted = {each for each in (*QUOTED.findall(text), *BARE.findall(text)) if not each.endswith(".py")}
    wrong = sorted(each for each in dotted if exists(each) is False)
    return wrong + sorted(each for each in set(PYTHON_FILE.findall(text)) if not has_file(each, reader))


def test_references_lead_somewhere() -> None:
    found = {name: broken(path.read_text(encoding="utf-8"), name) for name, path in FILES.items()}
    assert {name: references for name, references in found.items() if references} == {}


def test_a_wrong_reference_is_found() -> None:
    wrong = {}
    for text in (
        '"""See ``core.names``."""',
        "# see core.names",
        '"""See ``core.lifecycle.walk``."""',
        '"""See ``limits.no_such_limit``, ``Engine.no_such_thing`` and ``contract.Nothing``."""',
        "# see groups_of_jobs.py, core/names.py",
    ):
        wrong[text] = broken(text, "core/job.py")
    assert list(wrong.values()) == [
        ["core.names"],
        ["core.names"],
        ["core.lifecycle.walk"],
        ["Engine.no_such_thing", "contract.Nothing", "limits.no_such_limit"],
        ["core/names.py", "groups_of_jobs.py"],
    ]
    right = '"""``core.lifecycle.State.label``, ``limits.slice_ms``, lifecycle.py, ``ssl.SSLContext``, ``Engine.run``."""'
    assert broken(right, "core/job.py") == []
