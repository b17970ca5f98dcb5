"""Rewrites one Python text for a plan of moved modules and renamed or moved names. Only the bytes of changed names are touched."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field

from scopes import Resolver, Scope

Key = tuple[str, str]


@dataclass
class Plan:
    """``modules``: old dotted name to new. ``symbols``: (old module, name) to (new module, new name).

    ``members``: (module, class) to {old method: new}, see members.py. ``known``: every old module; ``origin``: what a re-exported name is.
    """

    modules: dict[str, str]
    symbols: dict[Key, Key]
    known: set[str]
    origins: dict[Key, Key] = field(default_factory=dict)
    aliases: dict[str, str] = field(
        default_factory=dict
    )  # new dotted module: the name it is bound to where its own is taken
    paths: dict[str, str] = field(default_factory=dict)
    folders: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def module(self, old: str) -> str:
        return self.modules.get(old, old)

    def origin(self, module: str, name: str) -> Key:
        seen = set()
        key = (module, name)
        while key in self.origins and key not in seen:
            seen.add(key)
            key = self.origins[key]
        return key

    def symbol(self, module: str, name: str) -> Key:
        """Where ``from module import name`` finds it afterwards."""
        if (module, name) in self.symbols:
            return self.symbols[module, name]
        origin = self.origin(module, name)
        new = self.symbols[origin][1] if origin in self.symbols else name
        return self.module(module), new

    def dotted(self, text: str) -> str:
        """The new spelling of a dotted name: a module, or something in one."""
        parts = text.split(".")
        for length in range(len(parts), 0, -1):
            module = ".".join(parts[:length])
            if module in self.known:
                rest = parts[length:]
                if rest:
                    home, name = self.symbol(module, rest[0])
                    return ".".join([home, name, *rest[1:]])
                return self.module(module)
        return text


class Edits:
    def __init__(self, text: str) -> None:
        self.raw = text.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.made: dict[tuple[int, int], str] = {}

    def at(self, line: int, col: int) -> int:
        return self.starts[line - 1] + col

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def text(self, span: tuple[int, int]) -> str:
        return self.raw[span[0] : span[1]].decode()

    def put(self, span: tuple[int, int], new: str) -> None:
        assert self.made.get(span, new) == new, (span, self.made.get(span), new)
        self.made[span] = new

    def apply(self) -> str:
        out, last = [], 0
        for (start, end), new in sorted(self.made.items()):
            assert start >= last, "edits overlap"
            out += [self.raw[last:start], new.encode()]
            last = end
        out.append(self.raw[last:])
        return b"".join(out).decode()


LOGGERS = {"get_logger", "getLogger", "at_level", "set_level", "record_tuples"}
DOTTED = re.compile(r"\b(?:penstock|tests|bench)(?:\.[A-Za-z_]\w*)+")


def rewrite(text: str, plan: Plan, where: str, own: str | None) -> str:
    """``own``: the old dotted name of the module this is, if it is one. ``where``: for reports."""
    tree = ast.parse(text)
    names = Resolver(tree)
    edits = Edits(text)
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    #: (scope, name) to the new local name.
    local: dict[tuple[int, str], str] = {}
    #: (scope, name) to the old module that the name is.
    objects: dict[tuple[int, str], str] = {}
    uses_of: dict[tuple[int, str], list[tuple[ast.Name, Scope]]] = {}
    for node, scope in names.uses:
        home = names.find(node.id, scope)
        if home is not None:
            uses_of.setdefault((id(home), node.id), []).append((node, scope))

    def can_be(scope: Scope, old: str, new: str) -> bool:
        taken = [each for each in scope.bound.get(new, []) if not _same_import(each, parents, plan, new)]
        if taken or any(where_ == id(scope) and its == new and was != old for (where_, was), its in local.items()):
            return False
        return not any(names.captured(new, use, scope) for _, use in uses_of.get((id(scope), old), []))

    #: Attribute uses of a module object, by name.
    def attributes_of(scope: Scope, name: str) -> list[ast.Attribute]:
        found = []
        for node, _ in uses_of.get((id(scope), name), []):
            parent = parents.get(id(node))
            if isinstance(parent, ast.Attribute) and parent.value is node:
                found.append(parent)
        return found

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                new = plan.dotted(alias.name)
                if new != alias.name:
                    start, _ = edits.span(alias)
                    edits.put((start, start + len(alias.name)), new)
                    if alias.asname is None:
                        plan.problems.append(f"{where}:{node.lineno}: import {alias.name} without as: look at its uses")
        if not isinstance(node, ast.ImportFrom) or node.module is None or node.level:
            continue
        scope = names.in_scope[id(node)]
        wanted: dict[str, list[tuple[str, str | None]]] = {}
        changed = False
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            bound = alias.asname or alias.name
            if full in plan.known and (node.module, alias.name) not in plan.symbols:
                objects[id(scope), bound] = full
                new = plan.module(full)
                pieces = _targets(full, attributes_of(scope, bound), plan)
                home, _, leaf = new.rpartition(".")
                if pieces - {new}:  # a module that was split: one import for each part that is used
                    changed = True
                    for target in sorted(pieces):
                        its_home, _, its_leaf = target.rpartition(".")
                        wanted.setdefault(its_home, []).append((its_leaf, None))
                    for attribute in attributes_of(scope, bound):
                        its_home, name = plan.symbol(full, attribute.attr)
                        leaf_name = its_home.rpartition(".")[2]
                        use = names.in_scope[id(attribute)]
                        if names.captured(leaf_name, use, scope):
                            plan.problems.append(f"{where}:{attribute.lineno}: {leaf_name} is taken here")
                        edits.put(edits.span(attribute.value), leaf_name)
                        _rename_attribute(edits, attribute, name)
                    continue
                for attribute in attributes_of(scope, bound):
                    _, name = plan.symbol(full, attribute.attr)
                    if name != attribute.attr:
                        _rename_attribute(edits, attribute, name)
                asname = alias.asname
                if new != full:
                    changed = True
                    if asname == leaf:
                        asname = None
                    elif asname is None and leaf != alias.name:
                        choice = leaf
                        if not can_be(scope, alias.name, choice):
                            choice = plan.aliases.get(new, "")
                            if not choice or not can_be(scope, alias.name, choice):
                                plan.notes.append(f"{where}:{node.lineno}: {leaf} is taken here: imported as {alias.name}")
                                choice = alias.name
                            asname = choice
                        local[id(scope), alias.name] = choice
                wanted.setdefault(home, []).append((leaf, asname))
            else:
                home, name = plan.symbol(node.module, alias.name)
                asname = alias.asname
                if (home, name) != (node.module, alias.name):
                    changed = True
                    if asname == name:
                        asname = None
                    elif asname is None and name != alias.name:
                        if can_be(scope, alias.name, name):
                            local[id(scope), alias.name] = name
                        else:
                            plan.problems.append(f"{where}:{node.lineno}: {name} is taken here: imported as {alias.name}")
                            asname = alias.name
                if home == (plan.module(own) if own else None) and home != node.module:
                    plan.problems.append(f"{where}:{node.lineno}: {alias.name} would be imported from its own module")
                wanted.setdefault(home, []).append((name, asname))
        if changed:
            indent = " " * node.col_offset
            spelled = []
            for home, what in sorted(wanted.items()):
                listed = ", ".join(f"{name} as {asname}" if asname else name for name, asname in sorted(set(what), key=str))
                spelled.append(f"from {home} import {listed}")
            span = edits.span(node)
            if "#" in edits.text(span):
                plan.notes.append(f"{where}:{node.lineno}: a comment inside of an import was dropped: {edits.text(span)!r}")
            edits.put(span, f"\n{indent}".join(spelled))

    # Names that this module itself binds at its top level.
    if own is not None:
        for (module, name), (_, new) in plan.symbols.items():
            if module == own and new != name and name in names.top.bound and (id(names.top), name) not in local:
                if not can_be(names.top, name, new):
                    plan.problems.append(f"{where}: {name} -> {new}: the name is taken")
                    continue
                local[id(names.top), name] = new
                for binding in names.top.bound[name]:
                    _rename_definition(edits, binding, name, new)

    for (scope_id, old), new in local.items():
        for node, _ in uses_of.get((scope_id, old), []):
            edits.put(edits.span(node), new)

    top = {name: new for (scope_id, name), new in local.items() if scope_id == id(names.top)}
    _strings(tree, names, edits, plan, parents, top, where, objects)
    _comments(text, edits, plan, top)
    return edits.apply()


def _same_import(binding: ast.AST, parents: dict[int, ast.AST], plan: Plan, new: str) -> bool:
    """Whether a binding is an import that will be called the same as what it is compared with only because it is the same thing."""
    parent = parents.get(id(binding))
    if isinstance(binding, ast.alias) and isinstance(parent, ast.ImportFrom) and parent.module:
        full = f"{parent.module}.{binding.name}"
        if full in plan.known:
            return plan.module(full).rpartition(".")[2] != new  # it is renamed itself
        return plan.symbol(parent.module, binding.name)[1] != new
    return False


def _targets(full: str, attributes: list[ast.Attribute], plan: Plan) -> set[str]:
    return {plan.symbol(full, each.attr)[0] for each in attributes if f"{full}.{each.attr}" not in plan.known} or {
        plan.module(full)
    }


def _rename_attribute(edits: Edits, node: ast.Attribute, new: str) -> None:
    _, end = edits.span(node)
    edits.put((end - len(node.attr.encode()), end), new)


def _rename_definition(edits: Edits, node: ast.AST, old: str, new: str) -> None:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        start, _ = edits.span(node)
        word = r"class" if isinstance(node, ast.ClassDef) else r"def"
        found = re.compile(rf"\b{word}\s+({old})\b".encode()).search(edits.raw, start)
        assert found is not None
        edits.put(found.span(1), new)


def _is_annotation(node: ast.AST, parents: dict[int, ast.AST]) -> bool:
    """Whether a string stands where a type is expected."""
    child, parent = node, parents.get(id(node))
    while parent is not None:
        if isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is child:
            return True
        if (
            isinstance(parent, ast.AnnAssign)
            and parent.value is child
            and getattr(parent.annotation, "id", "") == "TypeAlias"
        ):
            return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is child:
            return True
        if isinstance(parent, ast.Subscript) and parent.slice is child:
            base = parent.value
            name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            if name == "Literal":
                return False
            if name[:1].isupper() or name in ("list", "dict", "tuple", "set", "frozenset", "type"):
                return True
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            if parent.func.id == "cast" and parent.args and parent.args[0] is child:
                return True
            if parent.func.id == "TypeVar" and child not in parent.args[:1]:
                return True
        if isinstance(parent, ast.stmt):
            return False
        child, parent = parent, parents.get(id(parent))
    return False


def _strings(tree, names, edits, plan, parents, top, where, objects) -> None:
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs.add(id(node.value))
    for node, _ in names.strings:
        parent = parents.get(id(node))
        if isinstance(parent, ast.JoinedStr):
            start, end = edits.span(parent)
            for match in DOTTED.finditer(edits.text((start, end))):
                if plan.dotted(match[0]) != match[0]:
                    before = len(edits.text((start, end))[: match.start()].encode())
                    edits.put((start + before, start + before + len(match[0].encode())), plan.dotted(match[0]))
            continue
        span = edits.span(node)
        source = edits.text(span)
        if id(node) in docs:
            new = plan_text(source, plan, top)
        elif _is_annotation(node, parents) and re.fullmatch(r"[\w\s.\[\],|'\"]+", node.value) and top:
            new = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: top.get(m[0], m[0]), source)
        elif isinstance(parent, ast.List | ast.Tuple) and _is_all(parent, parents):
            new = re.sub(r"\w+", lambda m: top.get(m[0], m[0]), source)
        else:
            call = parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
            name = (
                getattr(getattr(call, "func", None), "attr", getattr(getattr(call, "func", None), "id", ""))
                if isinstance(call, ast.Call)
                else ""
            )
            if name in LOGGERS:
                continue
            new = DOTTED.sub(lambda m: plan.dotted(m[0]), source)
            if name in ("setattr", "getattr", "delattr", "object") and len(call.args) > 1 and call.args[1] is node:
                new = _patched(call.args[0], node, names, plan, objects, source)
            if where.startswith(("tests", "bench", "deploy")):
                new = PATHS.sub(lambda m: plan_path(m[0], plan, bare=where.startswith("tests/architecture")), new)
            new = re.sub(
                r"\bfrom ((?:penstock|tests)[\w.]*) import (\w+)$",
                lambda m: _import_in_text(m, plan),
                new,
                flags=re.MULTILINE,
            )
            for match in re.finditer(r"\bfrom ((?:penstock|tests)[\w.]*) import ([\w, ]+)", source):
                if any(
                    plan.dotted(f"{match[1]}.{each.strip()}") != f"{match[1]}.{each.strip()}" for each in match[2].split(",")
                ):
                    plan.notes.append(f"{where}:{node.lineno}: an import of something moved inside of a text: {match[0]!r}")
        if new != source:
            edits.put(span, new)


def _patched(target, node, names, plan, objects, source) -> str:
    """``monkeypatch.setattr(module, "name", …)``."""
    if isinstance(target, ast.Name):
        home = names.find(target.id, names.in_scope[id(target)])
        module = objects.get((id(home), target.id)) if home is not None else None
        if module is not None:
            return source.replace(node.value, plan.symbol(module, node.value)[1])
    return source


def _import_in_text(match: re.Match[str], plan: Plan) -> str:
    home, _, name = plan.dotted(f"{match[1]}.{match[2]}").rpartition(".")
    return f"from {home} import {name}" if name == match[2] else f"from {home} import {name} as {match[2]}"


def _is_all(node, parents) -> bool:
    parent = parents.get(id(node))
    return isinstance(parent, ast.Assign) and any(
        isinstance(each, ast.Name) and each.id == "__all__" for each in parent.targets
    )


PATHS = re.compile(r"(?<![\w/.{-])(?:(?:[\w.-]+/)+[\w.-]*\w/?|\w+\.py\b)")
TICKED = re.compile(r"(?P<tick>`{1,2})(?P<name>[A-Za-z_][\w.]*)(?P<rest>(?:\([^`]*\))?)(?P=tick)")


def plan_path(path: str, plan: Plan, *, bare: bool = False) -> str:
    """The new spelling of a path of a file or folder; without a folder in it only if ``bare``."""
    if "/" not in path and not bare:
        return path
    if path in plan.paths:
        return plan.paths[path]
    if "/" in path:
        for old, new in plan.folders:
            if path == old or path.startswith(old + "/"):
                return new + path[len(old) :]
    return path


def plan_text(text: str, plan: Plan, top: dict[str, str]) -> str:
    """Prose: names of files, dotted modules, and renamed names in backticks."""
    text = PATHS.sub(lambda m: plan_path(m[0], plan, bare=True), text)
    text = DOTTED.sub(lambda m: plan.dotted(m[0].rstrip(".")) + ("." if m[0].endswith(".") else ""), text)

    def ticked(match: re.Match[str]) -> str:
        name = match["name"]
        new = name
        if name in top:
            new = top[name]
        elif "." in name:
            first, _, rest = name.partition(".")
            if f"penstock.{name}" in plan.known:
                new = plan.module(f"penstock.{name}").removeprefix("penstock.")
            elif first in top:
                new = f"{top[first]}.{rest}"
        return f"{match['tick']}{new}{match['rest']}{match['tick']}"

    return TICKED.sub(ticked, text)


def _comments(text: str, edits: Edits, plan: Plan, top: dict[str, str]) -> None:
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            new = plan_text(token.string, plan, top)
            if new != token.string:
                line = lines[token.start[0] - 1]
                start = edits.at(token.start[0], len(line[: token.start[1]].encode()))
                span = (start, start + len(token.string.encode()))
                if not any(s < span[1] and span[0] < e for s, e in edits.made):
                    edits.put(span, new)
