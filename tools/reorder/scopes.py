"""Which binding a name means: a small resolver of Python's scopes, on ast."""

from __future__ import annotations

import ast


class Scope:
    def __init__(self, node: ast.AST, parent: Scope | None) -> None:
        self.node, self.parent = node, parent
        self.bound: dict[str, list[ast.AST]] = {}
        self.free: set[str] = set()  # global or nonlocal here
        self.is_class = isinstance(node, ast.ClassDef)
        self.children: list[Scope] = []
        if parent is not None:
            parent.children.append(self)

    @property
    def top(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


class Resolver(ast.NodeVisitor):
    """``uses``: every ast.Name with the scope it is in. ``scope_of(name node)``: the scope that binds it, or None (builtin)."""

    def __init__(self, tree: ast.Module) -> None:
        self.top = Scope(tree, None)
        self.now = self.top
        self.uses: list[tuple[ast.Name, Scope]] = []
        self.in_scope: dict[int, Scope] = {}
        self.strings: list[tuple[ast.Constant, Scope]] = []
        for each in tree.body:
            self.visit(each)

    def visit(self, node: ast.AST) -> None:
        self.in_scope[id(node)] = self.now
        super().visit(node)

    def bind(self, name: str, node: ast.AST, scope: Scope | None = None) -> None:
        scope = scope or self.now
        scope.bound.setdefault(name, []).append(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.append((node, self.now))
        if isinstance(node.ctx, ast.Store | ast.Del):
            self.bind(node.id, node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.strings.append((node, self.now))

    def visit_Global(self, node: ast.Global) -> None:
        self.now.free |= set(node.names)

    visit_Nonlocal = visit_Global

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.bind(alias.asname or alias.name.split(".")[0], alias)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.bind(alias.asname or alias.name, alias)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bind(node.name, node)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.bind(node.name, node)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self.bind(node.name, node)

    def _arguments(self, arguments: ast.arguments, scope: Scope) -> None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [each for each in (arguments.vararg, arguments.kwarg) if each]
        for each in every:
            self.in_scope[id(each)] = scope
            self.bind(each.arg, each, scope)
            if each.annotation:
                self.visit(each.annotation)
        for each in [*arguments.defaults, *arguments.kw_defaults]:
            if each:
                self.visit(each)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name, node)
        for each in node.decorator_list:
            self.visit(each)
        inner = Scope(node, self.now)
        self._arguments(node.args, inner)
        if node.returns:
            self.visit(node.returns)
        self._inside(inner, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        inner = Scope(node, self.now)
        self._arguments(node.args, inner)
        self._inside(inner, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bind(node.name, node)
        for each in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(each)
        self._inside(Scope(node, self.now), node.body)

    def _inside(self, scope: Scope, body: list[ast.AST]) -> None:
        before, self.now = self.now, scope
        for each in body:
            self.visit(each)
        self.now = before

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first, *rest = node.generators
        self.visit(first.iter)
        inner = Scope(node, self.now)
        before, self.now = self.now, inner
        self.visit(first.target)
        for each in first.ifs:
            self.visit(each)
        for each in rest:
            self.visit(each)
        for each in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(each)
        self.now = before

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        scope = self.now
        while isinstance(scope.node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            assert scope.parent
            scope = scope.parent
        self.uses.append((node.target, self.now))
        self.bind(node.target.id, node.target, scope)
        self.visit(node.value)

    def find(self, name: str, scope: Scope) -> Scope | None:
        """Return the scope that binds a name used in a scope."""
        first, at = True, scope
        while at is not None:
            if name in at.free:
                # nonlocal finds an enclosing function; global the module. Modules here use neither for what is renamed.
                at = at.parent
                while at is not None and (at.is_class or name not in at.bound):
                    at = at.parent
                return at
            if name in at.bound and (first or not at.is_class):
                return at
            first, at = False, at.parent
        return None

    def captured(self, new: str, use_scope: Scope, home: Scope) -> bool:
        """Whether ``new``, used in ``use_scope``, would not mean ``home``'s any more."""
        at = use_scope
        first = True
        while at is not None and at is not home:
            if new in at.bound and (first or not at.is_class):
                return True
            first, at = False, at.parent
        return False
