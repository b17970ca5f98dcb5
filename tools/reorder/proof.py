"""Compares two trees of one module: they may differ in names of a table, in imports by the plan, and in texts by the plan."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable


class Differs(Exception):
    pass


def _imports(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    return imports, [each for each in body if not isinstance(each, ast.Import | ast.ImportFrom)]


def _set(
    imports: list[ast.stmt], symbol: Callable[[str, str], tuple[str, str]], known: set[str], module: Callable[[str], str]
) -> set[tuple[str, str]]:
    """What is imported: (module, name), without what it is bound to; the names are compared where they are used."""
    found = set()
    for node in imports:
        if isinstance(node, ast.Import):
            found |= {(module(alias.name), "") for alias in node.names}
        else:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    found.add(tuple(module(full).rpartition(".")[::2]))
                else:
                    found.add(symbol(node.module or "", alias.name))
    return found


class Proof:
    def __init__(self, plan, allowed: set[tuple[str, str]], texts: Callable[[str], set[str]]) -> None:
        self.plan, self.allowed = plan, allowed
        self.texts = texts
        self.pairs: Counter[tuple[str, str]] = Counter()

    def module(self, before: str, after: str) -> None:
        self._same(ast.parse(before), ast.parse(after), "")

    def _same(self, a, b, at: str) -> None:
        if type(a) is not type(b):
            raise Differs(f"{at}: {type(a).__name__} became {type(b).__name__}")
        if isinstance(a, list):
            if a and isinstance(a[0], ast.stmt) or b and isinstance(b[0], ast.stmt):
                (ia, a), (ib, b) = _imports(a), _imports(b)
                identity = lambda module, name: (module, name)  # noqa: E731
                old = _set(ia, self.plan.symbol, self.plan.known, self.plan.module)
                new = _set(ib, identity, {self.plan.module(each) for each in self.plan.known}, lambda each: each)
                if not self.imports_may_differ and old != new:
                    raise Differs(f"{at}: imports differ: {sorted(old ^ new)}")
            if len(a) != len(b):
                raise Differs(f"{at}: {len(a)} became {len(b)} of them")
            for x, y in zip(a, b, strict=True):
                self._same(x, y, at)
            return
        if isinstance(a, ast.AST):
            at = f"line {a.lineno}" if hasattr(a, "lineno") else at
            for name in a._fields:
                if name in ("kind", "type_comment"):
                    continue
                self._same(getattr(a, name, None), getattr(b, name, None), at)
            return
        if a == b:
            return
        if isinstance(a, str):
            if (a, b) in self.allowed:
                self.pairs[a, b] += 1
                return
            if b in self.texts(a) or self._worded(a, b):
                self.pairs["(text)", "(text)"] += 1
                return
        raise Differs(f"{at}: {a!r} became {b!r}")

    imports_may_differ = False

    def _worded(self, a: str, b: str) -> bool:
        """Texts that differ only in words of the table."""
        import re

        x, y = re.split(r"(\W+)", a), re.split(r"(\W+)", b)
        return len(x) == len(y) and all(p == q or (p, q) in self.allowed for p, q in zip(x, y, strict=True))
