"""Finds the route of a path, in time proportional to the length of the path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import TargetTooLong

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.doors.http.route import Route

#: The one parameter that may contain slashes: clients choose their own ids, and these arrive here decoded.
_SPANNING: Final = "id"


class _Node:
    """One segment of a path: its child segments, and the routes that end here, by method."""

    __slots__ = ("any_child", "children", "param", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.any_child: _Node | None = None
        self.param = ""
        self.routes: dict[str, Route] = {}


class _Pattern:
    """The compiled path of one route: the positions of its literals and its parameters.

    A position behind the parameter that may contain slashes is counted from the end of the path. So a path is compared with
    a pattern in as many steps as the pattern has segments, however long the path is.
    """

    __slots__ = ("_least", "_literals", "_params", "_span", "_tail", "order", "route")

    def __init__(self, route: Route) -> None:
        parts = route.path.split("/")[1:]
        spans = [at for at, part in enumerate(parts) if part == f"{{{_SPANNING}}}"]
        if len(spans) > 1:
            raise ValueError(f"{route.path} has two parameters {{{_SPANNING}}}: the end of the first cannot be determined")
        self.route = route
        self._least = len(parts)
        self._span = spans[0] if spans else None
        self._tail = 0 if self._span is None else len(parts) - self._span - 1
        self._literals: list[tuple[int, str]] = []
        self._params: list[tuple[int, str]] = []
        for at, part in enumerate(parts):
            place = at if self._span is None or at <= self._span else at - len(parts)
            if not part.startswith("{"):
                self._literals.append((place, part))
            elif at != self._span:
                self._params.append((place, part[1:-1]))
        # If several patterns match, the one wins that has a literal where the others have a parameter; the first such
        # position decides. Among patterns with the same beginning, the one with the shortest {id} wins.
        kinds = [part.startswith("{") for part in parts]
        head = len(parts) if self._span is None else self._span + 1
        self.order = (kinds[:head], -self._tail, kinds[head:])

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """Return the parameters of a path; None if it does not match."""
        count = len(segments)
        if count != self._least and (self._span is None or count < self._least):
            return None
        for at, text in self._literals:
            if segments[at] != text:
                return None
        params = {name: segments[at] for at, name in self._params}
        if self._span is not None:
            params[_SPANNING] = "/".join(segments[self._span : count - self._tail])
        return params


class Router:
    """A tree of path segments. A literal segment wins over a ``{parameter}``, unless it does not lead to a route.

    The tree finds almost all routes. The rest are paths whose id equals a literal of a path or contains slashes; they are
    compared with the patterns of their method and first segment.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._patterns: dict[str, dict[str, list[_Pattern]]] = {}  #: by method, then by first segment; "{": a parameter
        for route in routes:
            self._add(route)
        for by_first in self._patterns.values():
            for patterns in by_first.values():
                patterns.sort(key=lambda each: each.order)

    def _add(self, route: Route) -> None:
        node = self._root
        segments = route.path.split("/")[1:]
        for segment in segments:
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
        first = "{" if segments[0].startswith("{") else segments[0]
        self._patterns.setdefault(route.method, {}).setdefault(first, []).append(_Pattern(route))

    def find(self, method: str, path: str) -> tuple[Route | None, dict[str, str]]:
        """Return the route of a request and the values of its parameters; None if there is no such path or method.

        Raises TargetTooLong for more than ``limits.path_chars_max`` characters, or ``limits.path_segments_max`` segments.
        """
        if len(path) > limits.path_chars_max:
            raise TargetTooLong
        segments = path.split("/")[1:]
        node = self._root
        params: dict[str, str] = {}
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                child = node.any_child
                if child is None:
                    return self._search(method, segments)
                params[child.param] = segment
            node = child
        route = node.routes.get(method)
        return (route, params) if route is not None else self._search(method, segments)

    def _search(self, method: str, segments: list[str]) -> tuple[Route | None, dict[str, str]]:
        """Compare a path with the patterns it may match: an id may equal a literal of a path, or contain slashes."""
        if len(segments) > limits.path_segments_max:
            raise TargetTooLong(f"The path has too many segments (max {limits.path_segments_max}). Use shorter names.")
        by_first = self._patterns.get(method)
        if by_first is not None and segments:
            for first in (segments[0], "{"):
                for pattern in by_first.get(first, ()):
                    params = pattern.match(segments)
                    if params is not None:
                        return pattern.route, params
        return None, {}
