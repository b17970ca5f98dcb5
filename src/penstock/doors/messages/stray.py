"""What the listener of the messages door says where it has no route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from penstock.core.errors import MethodRefused, RouteNotFound
from penstock.doors.http.router import Router

if TYPE_CHECKING:
    from penstock.doors.http.request import Request
    from penstock.doors.http.route import Handler, Route


def stray_among(routes: list[Route]) -> Handler:
    """Return what answers requests that are none of some routes: the path has other methods, or there is no such path."""
    router, methods = Router(routes), sorted({route.method for route in routes})

    async def stray(req: Request, **_params: str) -> Never:
        allowed = [method for method in methods if router.find(method, req.scope.path)[0] is not None]
        if allowed:
            raise MethodRefused(allow=", ".join(allowed))
        raise RouteNotFound

    return stray
