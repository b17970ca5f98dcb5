"""The router against a plain model of it: every way through the tree of routes, tried in order."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from penstock.core import limits
from penstock.core.errors import TargetTooLong
from penstock.doors.http.route import Route
from penstock.doors.http.router import Router
from tests.doors.test_isolation import LISTENERS

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(2**32)))
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


async def _nothing(_req: Any) -> None: ...


def routes_of(listener: str) -> list[Route]:
    rows = (row.split() for row in LISTENERS[listener])
    return [Route(method, path, _nothing, "", "") for method, path in rows]


Tree = dict[str, Any]


def tree_of(routes: list[Route]) -> Tree:
    root: Tree = {}
    for route in routes:
        node = root
        for segment in route.path.split("/")[1:]:
            node = node.setdefault(segment, {})
        node.setdefault("", {})[route.method] = route
    return root


def first_way(node: Tree, method: str, segments: list[str]) -> tuple[Route, dict[str, str]] | None:
    """Try a literal before a parameter, and a short ``{id}`` before a long one. It may take very long."""
    if not segments:
        route = node.get("", {}).get(method)
        return None if route is None else (route, {})
    if segments[0] in node and segments[0] and not segments[0].startswith("{"):
        found = first_way(node[segments[0]], method, segments[1:])
        if found is not None:
            return found
    for name in (each for each in node if each.startswith("{")):
        for span in range(1, len(segments) + 1 if name == "{id}" else 2):
            found = first_way(node[name], method, segments[span:])
            if found is not None:
                found[1][name[1:-1]] = "/".join(segments[:span])
                return found
    return None


@pytest.mark.parametrize("listener", LISTENERS)
def test_the_same_route_is_found_as_by_trying_every_way(listener: str) -> None:
    routes = routes_of(listener)
    router, tree = Router(routes), tree_of(routes)
    rng = random.Random(SEED)
    words = sorted({word for route in routes for word in route.path.split("/")[1:] if word and "{" not in word})
    found = 0
    for _ in range(5_000):
        segments: list[str] = []
        for part in rng.choice(routes).path.split("/")[1:]:
            odd = part.startswith("{") or rng.random() < 0.1
            segments += rng.choices([*words, "x", "7"], k=rng.choice((1, 1, 2, 3))) if odd else [part]
        if rng.random() < 0.1:
            segments.append(rng.choice(words))
        method = rng.choice(METHODS)
        route, params = router.find(method, "/" + "/".join(segments))
        wanted = first_way(tree, method, segments)
        if route is not None and route.path == "/":
            continue  # an empty path, which the model has no words for
        assert (route and (route, params)) == wanted, f"{method} {segments} (PENSTOCK_TEST_SEED={SEED})"
        found += route is not None
    assert found > 100


class Counted(list[str]):
    """Segments that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += not isinstance(at, slice)
        return super().__getitem__(at)


def test_a_path_is_compared_with_a_pattern_in_as_many_steps_as_the_pattern_has_segments() -> None:
    router = Router(routes_of("http"))
    looks = []
    for count in (10, 1_000):
        segments = Counted(["jobs", "custom", *["x"] * count])
        assert router._search("PATCH", segments) == (None, {})
        assert router._search("POST", segments) == (None, {})
        looks.append(segments.looks)
    assert looks[0] == looks[1]


def test_too_many_segments_and_too_many_characters_are_refused() -> None:
    router = Router(routes_of("http"))
    longest = "/" * limits.key_chars_max
    route, params = router.find("GET", f"/jobs/custom/{longest}")
    assert (route and route.path, params) == ("/jobs/custom/{id}", {"id": longest})
    with pytest.raises(TargetTooLong, match="too many segments"):
        router.find("GET", "/jobs/custom" + "/" * (limits.path_segments_max + 1))
    with pytest.raises(TargetTooLong):
        router.find("GET", "/" + "x" * limits.path_chars_max)


def test_routes_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="two parameters"):
        Router([Route("GET", "/a/{id}/b/{id}", _nothing, "", "")])
    with pytest.raises(ValueError, match="routed twice"):
        Router([Route("GET", "/a", _nothing, "", "")] * 2)
    with pytest.raises(ValueError, match="another route calls"):
        Router([Route("GET", "/a/{x}", _nothing, "", ""), Route("GET", "/a/{y}", _nothing, "", "")])
