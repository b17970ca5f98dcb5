"""Where members of some classes are used and defined, by mypy's types: prints [[path, line, end column or -1, old, new], …]. Run with the repository's Python."""

import json
import os
import sys

from mypy import build
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.nodes import ClassDef, Decorator, FuncDef, MemberExpr, Node, SuperExpr
from mypy.options import Options
from mypy.types import CallableType, Instance, TupleType, TypeType, TypeVarType, UnionType, get_proper_type

sys.setrecursionlimit(20000)
wanted = json.loads(sys.argv[1])
options = Options()
parse_config_file(options, lambda: None, "pyproject.toml", sys.stderr, sys.stderr)
options.incremental = False
options.cache_dir = os.devnull
options.export_types = True
options.preserve_asts = True
options.show_traceback = True
sources = create_source_list(list(options.files), options)
result = build.build(sources, options)


def mros(kind):
    kind = get_proper_type(kind)
    if isinstance(kind, Instance):
        yield from (each.fullname for each in kind.type.mro)
    elif isinstance(kind, UnionType):
        for each in kind.items:
            yield from mros(each)
    elif isinstance(kind, TypeType):
        yield from mros(kind.item)
    elif isinstance(kind, TypeVarType):
        yield from mros(kind.upper_bound)
    elif isinstance(kind, TupleType):
        yield from mros(kind.partial_fallback)
    elif isinstance(kind, CallableType) and kind.is_type_obj():
        yield from mros(kind.ret_type)


LEAVES = {
    "info",
    "node",
    "type",
    "unanalyzed_type",
    "def_var",
    "names",
    "type_vars",
    "metaclass_type",
    "declared_metaclass",
    "local_definitions",
    "alias_deps",
    "plugin_deps",
}


def attributes(node):
    for kind in type(node).__mro__:
        yield from getattr(kind, "__mypyc_attrs__", ())


def walk(node, path, out, seen):
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, MemberExpr):
        kind = result.types.get(node.expr)
        if kind is not None:
            for name in mros(kind):
                new = wanted.get(name, {}).get(node.name)
                if new:
                    out.append([path, node.end_line, node.end_column, node.name, new])
                    break
    elif isinstance(node, SuperExpr):
        for each in node.info.mro if node.info else ():
            new = wanted.get(each.fullname, {}).get(node.name)
            if new:
                out.append([path, node.end_line, node.end_column, node.name, new])
                break
    elif isinstance(node, ClassDef):
        names = {}
        for each in reversed(node.info.mro):
            names.update(wanted.get(each.fullname, {}))
        for each in node.defs.body:
            each = each.func if isinstance(each, Decorator) else each
            if isinstance(each, FuncDef) and each.name in names:
                out.append([path, each.line, -1, each.name, names[each.name]])
    for name in set(attributes(node)) - LEAVES:
        value = getattr(node, name, None)
        follow(value, path, out, seen)


def follow(value, path, out, seen):
    if isinstance(value, Node):
        walk(value, path, out, seen)
    elif isinstance(value, list | tuple):
        for each in value:
            follow(each, path, out, seen)


found = []
for state in result.graph.values():
    if state.tree is not None and state.path and not state.path.startswith("/") and "site-packages" not in state.path:
        follow(state.tree.defs, state.path, found, set())
print(json.dumps(found))
