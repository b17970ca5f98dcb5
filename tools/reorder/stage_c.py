"""Stage C: splits and merges modules by table_splits.py."""

from __future__ import annotations

import ast
import builtins
import subprocess
from collections import Counter

import table_splits as table
from proof import Differs, Proof
from reorder import (
    DOTTED,
    PATHS,
    PLAIN,
    SRC,
    TEXTS,
    Repo,
    commit,
    make_plan,
    module_of,
    plan_path,
    plan_text,
    rewrite,
    rewrite_text,
    shorten,
)
from scopes import Resolver
from stage_b import _bound


def chunks(text: str) -> list[tuple[ast.stmt, str]]:
    """Top-level statements with the comments above them."""
    tree, rows = ast.parse(text), text.split("\n")
    found, last = [], 0
    for node in tree.body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) - 1
        start = first
        while start > last and rows[start - 1].startswith("#"):
            start -= 1
        found.append((node, "\n".join(rows[start : node.end_lineno])))
        last = node.end_lineno
    return found


def is_typing(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom) or is_typing(node)


def is_doc(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class Module:
    """The parts of a module: docstring, imports, imports for types, and the rest."""

    def __init__(self, text: str) -> None:
        self.doc, self.imports, self.types, self.body = "", [], [], []
        for index, (node, part) in enumerate(chunks(text)):
            if index == 0 and is_doc(node):
                self.doc = part
            elif is_typing(node):
                rows = text.split("\n")
                self.types += [_dedent(rows[each.lineno - 1 : each.end_lineno]) for each in node.body]
            elif is_import(node) and not self.body:
                self.imports.append(part)
            else:
                self.body.append((node, part))

    def text(self) -> str:
        unique = list(dict.fromkeys(each for each in self.imports if each != "from __future__ import annotations"))
        types = list(dict.fromkeys(each for each in self.types if each not in unique))
        out = [self.doc, "", "from __future__ import annotations", "", *unique]
        if types:
            out += ["", "if TYPE_CHECKING:", *("\n".join("    " + row for row in each.split("\n")) for each in types)]
            if not any("TYPE_CHECKING" in each for each in unique):
                out.insert(4, "from typing import TYPE_CHECKING")
        for _, part in self.body:
            out += ["", "", part]
        return "\n".join(out) + "\n"


def _dedent(rows: list[str]) -> str:
    return "\n".join(row[4:] for row in rows)


def types_only(tree: ast.Module, name: str) -> bool:
    """Whether a name is used in annotations only."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        for each in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(each, ast.AST):
                inside |= {id(below) for below in ast.walk(each)}
    return all(id(node) in inside for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name)


def missing(text: str) -> set[str]:
    resolver = Resolver(ast.parse(text))
    return {
        node.id for node, scope in resolver.uses if resolver.find(node.id, scope) is None and not hasattr(builtins, node.id)
    } - {"__file__", "__name__"}


def stage_c(repo: Repo, report: list[str], *, commits: bool) -> None:
    groups: dict[str, list] = {}
    for row in table.MOVES:
        groups.setdefault(row[1] if row[2] == "*" else row[0], []).append(row)
    for key, group in groups.items():
        group = [row for row in group if SRC + row[0] in repo.files]
        if group:
            one(repo, report, group)
            if commits:
                names = group[0][0] if group[0][2] != "*" else key
                title = (
                    f"Split {names} by topic"
                    if group[0][2] != "*"
                    else f"Merge {', '.join(row[0].rpartition('/')[2] for row in group)} into {names}"
                )
                commit(repo, f"{names.split('/')[0].capitalize()}: {title[0].lower()}{title[1:]}")
            repo.load()
    for old, new in table.PASSED_ON:
        if SRC + old in repo.files:
            pass_on(repo, report, SRC + old, SRC + new)
            if commits:
                commit(repo, f"Doors: drop {old}, which only passes on {new}")
            repo.load()


def pass_on(repo: Repo, report: list[str], old: str, new: str) -> None:
    a, b = module_of(old), module_of(new)
    symbols = {
        (a, name): (b, name)
        for node in ast.parse(repo.text[old]).body
        if isinstance(node, ast.ImportFrom) and node.module == b
        for name in [each.name for each in node.names]
    }
    texts = rewritten(repo, report, symbols, {old: new}, skip={old})
    module = Module(texts[new])
    module.doc = Module(repo.text[old]).doc
    texts[new] = module.text()
    write(repo, texts, gone={old})


def rewritten(
    repo: Repo, report: list[str], symbols: dict, paths: dict[str, str], skip: set[str] = frozenset()
) -> dict[str, str]:
    plan = make_plan(repo, {}, symbols)
    for old, new in paths.items():
        plan.paths[old], plan.paths[old.removeprefix(SRC)] = new, new.removeprefix(SRC)
    own = {each for pair in symbols.items() for each in (pair[0][0], pair[1][0])}
    texts = {path: rewrite(repo.text[path], plan, path, None) for path in repo.python if path not in skip}
    for path in repo.files:
        if path.endswith((*TEXTS, *PLAIN)):
            text = (repo.root / path).read_text(encoding="utf-8")
            if (new := rewrite_text(path, text, plan)) != text:
                texts[path] = new
    leaves = {(old[0].rpartition(".")[2], new[0].rpartition(".")[2]) for old, new in symbols.items()}
    proof = Proof(
        plan,
        leaves,
        lambda text: {
            plan_text(text, plan, {}),
            PATHS.sub(lambda m: plan_path(m[0], plan, bare=True), DOTTED.sub(lambda m: plan.dotted(m[0]), text)),
        },
    )
    proof.imports_may_differ = True
    for path in repo.python:
        if path not in skip:
            try:
                proof.module(repo.text[path], texts[path])
            except Differs as error:
                report.append(f"PROBLEM {path}: the proof fails at {error}")
    report.extend(
        f"PROBLEM {each}"
        for each in plan.problems
        if not any(f"{each.partition(':')[0]}" == repo.modules.get(module) for module in own)
    )
    report.extend(f"note {each}" for each in plan.notes)
    return texts


def one(repo: Repo, report: list[str], group: list) -> None:
    symbols, paths, homes = {}, {}, {}
    for old, new, names, _ in group:
        a, b = module_of(SRC + old), module_of(SRC + new)
        body = Module(repo.text[SRC + old]).body
        top = {name for node, _ in body for name in _bound(node)}
        wanted = top if names == "*" else set(names.split()) & top
        if names != "*" and set(names.split()) - top:
            report.append(f"GONE {old}: {sorted(set(names.split()) - top)}")
        if names != "*":  # private helpers that only these use go along
            while True:
                used = {
                    name: {
                        owner
                        for node, _ in body
                        for owner in _bound(node)
                        if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))
                    }
                    - {name}
                    for name in top
                    if name.startswith("_")
                }
                more = {
                    name
                    for name, owners in used.items()
                    if owners
                    and owners <= wanted
                    and name not in wanted
                    and not any(name in row[2].split() for row in group)
                }
                if not more:
                    break
                wanted |= more
        else:
            paths[SRC + old] = SRC + new
        for name in wanted:
            symbols[a, name] = (b, name)
            homes[name] = b
    involved = {SRC + each for row in group for each in row[:2]}
    before = statements(repo.text[path] for path in involved if path in repo.text)
    texts = rewritten(repo, report, symbols, paths)
    parts = {path: Module(texts[path]) for path in involved if path in texts}
    gone = set()
    for old, new, names, doc in group:
        source, path = parts[SRC + old], SRC + new
        if path not in parts:
            parts[path] = Module(f'"""{doc}"""\n')
        target = parts[path]
        a = module_of(SRC + old)
        moved = [
            each
            for each in source.body
            if {symbols[a, name][0] for name in _bound(each[0]) if (a, name) in symbols} == {module_of(path)} or names == "*"
        ]
        imported = f"from {a} import" in repo.text.get(path, "")
        target.imports += source.imports
        target.types += source.types
        target.body = [*moved, *target.body] if imported else [*target.body, *moved]
        source.body = [each for each in source.body if each not in moved]
        if names == "*":
            gone.add(SRC + old)
            del parts[SRC + old]
    copies: Counter = Counter()
    where = {name: module_of(path) for path, part in parts.items() for node, _ in part.body for name in _bound(node)}
    for path, part in parts.items():
        own = module_of(path)
        part.imports = [each for each in part.imports if f"from {own} import" not in each]
        part.types = [each for each in part.types if f"from {own} import" not in each]
        tree = ast.parse(part.text())
        for name in sorted(missing(part.text())):
            if name == "log" and name in where:  # each module has its own line for the logger
                chunk = next(each for other in parts.values() for each in other.body if name in _bound(each[0]))
                part.body.insert(0, chunk)
                copies[ast.dump(chunk[0])] += 1
            elif name in where and where[name] != own:
                line = f"from {where[name]} import {name}"
                (part.types if types_only(tree, name) else part.imports).append(line)
            elif name != "TYPE_CHECKING":
                report.append(f"PROBLEM {path}: {name} is not defined")
        texts[path] = part.text()
    after = statements(texts[path] for path in parts) - copies
    if before != after and not _renamed(before, after, symbols):
        report.append(
            f"PROBLEM {group[0][0]}: other statements than before: {[each[:120] for each in (before - after) + (after - before)][:4]}"
        )
    else:
        report.append(f"proof: {sum(before.values())} statements of {len(involved)} modules are the same, in other places")
    write(repo, texts, gone)


def _renamed(before: Counter, after: Counter, symbols: dict) -> bool:
    """Uses through a module object name another module now."""
    pairs = {(old[0].rpartition(".")[2], new[0].rpartition(".")[2]) for old, new in symbols.items()}
    rest = Counter()
    for text, count in (before - after).items():
        for a, b in pairs:
            text = text.replace(f"Name(id='{a}'", f"Name(id='{b}'")
        rest[text] += count
    return rest == after - before


def statements(texts) -> Counter:
    return Counter(ast.dump(node) for text in texts for node, _ in Module(text).body)


def write(repo: Repo, texts: dict[str, str], gone: set[str]) -> None:
    for path, text in texts.items():
        if path in gone:
            continue
        target = repo.root / path
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
    for path in gone:
        repo.git("rm", "-qf", path)
    repo.git("add", "-A")
    ruff = repo.root / ".venv/bin/ruff"
    for _ in range(2):
        subprocess.run(
            [ruff, "check", "-q", "--fix", "--unsafe-fixes", "--select", "I,F401,F811,TC,RUF022", "src"],
            cwd=repo.root,
            check=False,
            capture_output=True,
        )
        subprocess.run(
            [ruff, "check", "-q", "--fix", "--unsafe-fixes", "--select", "I,TC", "tests", "bench"],
            cwd=repo.root,
            check=False,
            capture_output=True,
        )
    subprocess.run([ruff, "format", "-q", "."], cwd=repo.root, check=False)
    shorten(repo)
