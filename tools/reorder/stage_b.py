"""Stage B: renames classes, functions and methods by table_renames.py."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import table_renames as table
from reorder import SRC, Repo, commit, execute, literals, module_of, tidy


def lines(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    found = []
    for line in text.splitlines():
        if line.strip():
            where, _, pairs = line.rpartition(": ")
            found.append((where, [tuple(each.strip().split(" -> ")) for each in pairs.split(",")]))
    return found


def classes(repo: Repo) -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in repo.python:
        if path.startswith(SRC) and "/_sync/" not in path:
            for node in ast.parse(repo.text[path]).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(path)
    return found


def stage_b(repo: Repo, report: list[str], *, commits: bool) -> None:
    by_package: dict[str, dict] = defaultdict(dict)
    for where, pairs in lines(table.SYMBOLS):
        path = SRC + where
        if path not in repo.files:
            report.append(f"GONE {where}: its renames are left out")
            continue
        top = {name for node in ast.parse(repo.text[path]).body for name in _bound(node)}
        for old, new in pairs:
            if old not in top:
                if new not in top:
                    report.append(f"GONE {where}: no {old}")
                continue
            module = module_of(path)
            by_package[where.split("/")[0]][module, old] = (module, new)
    for package, symbols in by_package.items():
        report.append(f"== {package}: {len(symbols)} names")
        execute(repo, {}, symbols, report, [])
        tidy(repo)
        repo.load()
        if commits:
            commit(repo, f"{package.capitalize()}: plain names of classes and functions")
    members(repo, report)
    literals(repo, table.LITERAL, report, late=True)
    moments(repo)
    tidy(repo)
    repo.load()
    if commits:
        commit(repo, "Engine: plain names of methods of the unit of work and the event feed")
    same = set(table.SAME.split())
    for name, paths in sorted(classes(repo).items()):
        if len(paths) > 1 and name not in same:
            report.append(f"DUPLICATE class {name}: {', '.join(each.removeprefix(SRC) for each in paths)}")


def moments(repo: Repo) -> None:
    """``"Record:before"``: where tests/support/dying_server.py dies, by the class of a command."""
    names = {old: new for where, pairs in lines(table.SYMBOLS) if where.startswith("engine/") for old, new in pairs}
    for path in repo.python:
        if path.startswith("tests/"):
            target = repo.root / path
            text = target.read_text(encoding="utf-8")
            new = re.sub(r'"([A-Z]\w+):(before|after)"', lambda m: f'"{names.get(m[1], m[1])}:{m[2]}"', text)
            if new != text:
                target.write_text(new, encoding="utf-8")


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {each.id for each in node.targets if isinstance(each, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def members(repo: Repo, report: list[str]) -> None:
    wanted: dict[str, dict[str, str]] = {}
    for where, pairs in lines(table.MEMBERS):
        path, _, name = where.partition(":")
        wanted[f"{module_of(SRC + path)}.{name}"] = dict(pairs)
    here = Path(__file__).parent
    done = subprocess.run(
        [repo.root / ".venv/bin/python", here / "members_mypy.py", json.dumps(wanted)],
        cwd=repo.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        report.append(f"PROBLEM members: {done.stderr[-2000:]}")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    by_file: dict[str, set] = defaultdict(set)
    for path, line, end, old, new in found:
        by_file[path].add((line, end, old, new))
    count = 0
    for path, places in by_file.items():
        target = repo.root / path
        rows = target.read_text(encoding="utf-8").split("\n")
        for line, end, old, new in sorted(places, reverse=True):
            text = rows[line - 1]
            if end < 0:  # a definition
                changed = re.sub(rf"\bdef {old}\b", f"def {new}", text, count=1)
            else:
                raw = text.encode()
                if raw[end - len(old) : end].decode(errors="replace") != old:
                    report.append(f"PROBLEM {path}:{line}: {old} is not where mypy says")
                    continue
                changed = (raw[: end - len(old)] + new.encode() + raw[end:]).decode()
            if changed == text:
                report.append(f"PROBLEM {path}:{line}: {old} not renamed")
            rows[line - 1] = changed
            count += 1
        target.write_text("\n".join(rows), encoding="utf-8")
    report.append(f"== members: {count} places in {len(by_file)} files")
    everything = {old: new for each in wanted.values() for old, new in each.items()}
    for path in repo.python:
        text = (repo.root / path).read_text(encoding="utf-8")
        for old, new in everything.items():
            if len(old) > 4:
                text = re.sub(rf"(``?)((?:\w+\.)?){old}(``?)", rf"\g<1>\g<2>{new}\g<3>", text)
            if re.search(rf"setattr\([^)]*[\"']{old}[\"']", text):
                report.append(f"note {path}: setattr of {old}: look at it")
        if text != (repo.root / path).read_text(encoding="utf-8"):
            (repo.root / path).write_text(text, encoding="utf-8")
