"""The OpenAPI document, generated from the routes, and a page that displays it."""

from __future__ import annotations

import asyncio
import html
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import __version__
from penstock.core.time_slices import in_slices
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.operations import error_responses, first_line, operation, parameters, shapes_in, shapes_out
from penstock.doors.http.route import JSON, Plain, Route
from penstock.doors.http.schemas import Schemas, structs_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.time_slices import Steps

_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "A token of the server, an API key, or a JSON Web Token. The operation's x-right is the required right.",
}
_KEY: Final = {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same token in another header."}
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1b2733;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #d5dde5}summary{cursor:pointer;padding:.3rem 0}
code,pre{font:13px/1.5 ui-monospace,monospace}pre{background:#f3f6f9;padding:.8rem;overflow:auto;border-radius:6px}
b{display:inline-block;width:4.5rem;color:#0b6}b.DELETE{color:#c33}b.PUT{color:#a60}b.GET{color:#06c}
@media(prefers-color-scheme:dark){body{background:#10161c;color:#d7e0e8}pre{background:#1b242d}h2{border-color:#33414e}}
"""


class OpenApi:
    """Describes a list of routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._making = asyncio.Lock()
        self._document: bytes | None = None
        self._page: bytes | None = None

    def routes(self) -> list[Route]:
        """Return the routes of the document and of the page."""
        return [
            Route("GET", "/openapi.json", self.document, "OpenAPI document", "Documentation", public=True),
            Route("GET", "/docs", self.page, "API reference", "Documentation", public=True),
            Route("GET", "/", self.page, "API reference", "Documentation", public=True),
        ]

    async def document(self, _req: object) -> Plain:
        """Answer with the OpenAPI document."""
        if self._document is None:
            await self._make()
        return Plain(self._document or b"", JSON)

    async def page(self, _req: object) -> Plain:
        """Answer with the page."""
        if self._page is None:
            await self._make()
        return Plain(self._page or b"", "text/html; charset=utf-8")

    async def _make(self) -> None:
        """Build the document and the page once, in slices."""
        async with self._making:
            if self._page is None:
                self._document, self._page = await in_slices(self._steps())

    def _steps(self) -> Steps[tuple[bytes, bytes]]:
        requests = [shape for route in self._routes for shape in shapes_in(route)]
        replies = [ErrorReply, *(shape for route in self._routes for shape in shapes_out(route))]
        schemas = yield from Schemas.steps(requests, replies)
        content = yield from self._content(schemas)
        document = msgspec.json.encode(content)
        yield
        page = yield from self._shown(schemas)
        return document, page

    def _content(self, schemas: Schemas) -> Steps[dict[str, Any]]:
        paths: dict[str, dict[str, Any]] = {}
        for route in self._routes:
            paths.setdefault(route.path, {})[route.method.lower()] = operation(route, schemas)
            yield
        return {
            "openapi": "3.1.0",
            "info": {"title": "Penstock", "version": __version__, "description": "A queue server with four APIs."},
            "paths": paths,
            "components": {
                "schemas": schemas.components,
                "responses": error_responses(schemas),
                "securitySchemes": {"token": _TOKEN, "key": _KEY},
            },
            "security": [{}, {"token": []}, {"key": []}],
        }

    def _shown(self, schemas: Schemas) -> Steps[bytes]:
        sections: dict[str, list[str]] = {}
        for route in self._routes:
            sections.setdefault(route.tag, []).append(
                f"<details><summary><b class={route.method}>{route.method}</b> <code>{html.escape(route.path)}</code> "
                f"{html.escape(route.summary)}</summary>{self._parameters(route)}{_shapes(schemas, route)}</details>"
            )
            yield
        body = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(items)}" for tag, items in sections.items())
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Penstock API</title><style>{_STYLE}</style>"
            f"<h1>Penstock API {__version__}</h1><p>Machine-readable: <a href=openapi.json>openapi.json</a></p>{body}</html>"
        ).encode()

    @staticmethod
    def _parameters(route: Route) -> str:
        lines = [
            f"<li><code>{each['name']}</code> ({each['in']}{', required' if each['required'] else ''}): "
            f"<code>{html.escape(msgspec.json.encode(each['schema']).decode())}</code></li>"
            for each in parameters(route)
        ]
        return f"<ul>{''.join(lines)}</ul>"


def _shapes(schemas: Schemas, route: Route) -> str:
    parts = []
    for struct in structs_in([*shapes_in(route), *shapes_out(route)], deep=False):
        text = msgspec.json.format(msgspec.json.encode(schemas.definition(struct)), indent=2).decode()
        about = html.escape(first_line(struct))
        parts.append(f"<p><code>{struct.__name__}</code>: {about}</p><pre>{html.escape(text)}</pre>")
    return "".join(parts)
