"""Finds the route of a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.doors.http.route import Route


class _Node:
    """One segment of a path: what may follow it, and what ends here, by method."""

    __slots__ = ("any_child", "children", "param", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.any_child: _Node | None = None
        self.param = ""
        self.routes: dict[str, Route] = {}


#: The one parameter that may hold slashes: people's own ids are theirs to spell, and arrive here decoded.
_SPANNING = "id"


class Router:
    """A tree of path segments. A literal segment wins over a ``{parameter}``, unless it leads nowhere."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                if node.any_child is None:
                    node.any_child = _Node()
                    node.any_child.param = segment[1:-1]
                node = node.any_child
                if node.param != segment[1:-1]:
                    raise ValueError(f"{route.path} names a parameter {segment} that another route calls {{{node.param}}}")
            else:
                node = node.children.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"{route.method} {route.path} is routed twice")
        node.routes[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route | None, dict[str, str]]:
        """Return the route of a request and the values of its parameters; None if there is no such path or method."""
        segments = path.split("/")[1:]
        node = self._root
        params: dict[str, str] = {}
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                child = node.any_child
                if child is None:
                    return self._search(self._root, method, segments) or (None, params)
                params[child.param] = segment
            node = child
        route = node.routes.get(method)
        return (route, params) if route is not None else self._search(self._root, method, segments) or (None, params)

    def _search(self, node: _Node, method: str, segments: list[str]) -> tuple[Route, dict[str, str]] | None:
        """Try every way through the tree: for an id that is spelled like a part of a path, or holds slashes."""
        if not segments:
            route = node.routes.get(method)
            return None if route is None else (route, {})
        child = node.children.get(segments[0])
        if child is not None and (found := self._search(child, method, segments[1:])) is not None:
            return found
        child = node.any_child
        if child is not None:
            for span in range(1, len(segments) + 1 if child.param == _SPANNING else 2):
                if (found := self._search(child, method, segments[span:])) is not None:
                    found[1][child.param] = "/".join(segments[:span])
                    return found
        return None
