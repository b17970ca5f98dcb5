"""The OpenAPI document, made from the routes, and a page for people to read it."""

from __future__ import annotations

import html
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from penstock import __version__
from penstock.core import limits
from penstock.doors.http.errors import CODE_HEADER, ErrorReply
from penstock.doors.http.route import JSON, Plain, Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.doors.http.route import Shaped

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "The request is not valid, or the job is not in a state for this.",
    "401": "A token is needed, or the one shown is not good.",
    "403": "The token may not do this, or not in this namespace.",
    "404": "There is no such thing.",
    "411": "The body's length is needed.",
    "413": "The body is too large.",
    "429": "Too many requests, or too many jobs for the namespace. Retry-After says when to come back.",
    "500": "It may or may not have happened, or only a part of it: see the text.",
    "503": "The server cannot do this now. Retry in a moment.",
    "507": "The disk is full.",
}
_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "A token of the server, an API key, or a JSON Web Token. What it must allow is in the operation's x-right.",
}
_KEY: Final = {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same, shown in another header."}
_NAMESPACE: Final = {
    "name": "X-Namespace",
    "in": "header",
    "required": False,
    "description": "Whose queues and jobs are meant.",
    "schema": {"type": "string", "default": "default", "pattern": "^[A-Za-z0-9_.:-]+$", "minLength": 1, "maxLength": 128},
}
_IDEMPOTENCY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Requests with the same key are the same request: it is done once, and answered alike.",
    "schema": {"type": "string", "minLength": 1, "maxLength": limits.idempotency_key_chars_max},
}
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1b2733;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #d5dde5}summary{cursor:pointer;padding:.3rem 0}
code,pre{font:13px/1.5 ui-monospace,monospace}pre{background:#f3f6f9;padding:.8rem;overflow:auto;border-radius:6px}
b{display:inline-block;width:4.5rem;color:#0b6}b.DELETE{color:#c33}b.PUT{color:#a60}b.GET{color:#06c}
@media(prefers-color-scheme:dark){body{background:#10161c;color:#d7e0e8}pre{background:#1b242d}h2{border-color:#33414e}}
"""


_ARROW = "application/vnd.apache.arrow.stream"


class OpenApi:
    """Describes a list of routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    def routes(self) -> list[Route]:
        """Return the routes under which the description is found."""
        return [
            Route("GET", "/openapi.json", self.document, "OpenAPI document", "Documentation", public=True),
            Route("GET", "/docs", self.page, "API reference", "Documentation", public=True),
            Route("GET", "/", self.page, "API reference", "Documentation", public=True),
        ]

    async def document(self, _req: object) -> Plain:
        """Answer with the document."""
        return Plain(msgspec.json.encode(self.content), JSON)

    async def page(self, _req: object) -> Plain:
        """Answer with the page."""
        return Plain(self._page.encode(), "text/html; charset=utf-8")

    @cached_property
    def content(self) -> dict[str, Any]:
        """The document."""
        shapes = [ErrorReply, *(shape for route in self._routes for shape in _shapes(route))]
        _, components = msgspec.json.schema_components(dict.fromkeys(shapes), ref_template=_REF)
        paths: dict[str, dict[str, Any]] = {}
        for route in self._routes:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        return {
            "openapi": "3.1.0",
            "info": {"title": "Penstock", "version": __version__, "description": "One queue server with four front doors."},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": _TOKEN, "key": _KEY},
            },
            "security": [{}, {"token": []}, {"key": []}],
        }

    @cached_property
    def _page(self) -> str:
        schemas = self.content["components"]["schemas"]
        sections: dict[str, list[str]] = {}
        for route in self._routes:
            parts = []
            for shape in _shapes(route):
                text = msgspec.json.format(msgspec.json.encode(schemas[shape.__name__]), indent=2).decode()
                parts.append(
                    f"<p><code>{shape.__name__}</code>: {html.escape(_first_line(shape))}</p><pre>{html.escape(text)}</pre>"
                )
            sections.setdefault(route.tag, []).append(
                f"<details><summary><b class={route.method}>{route.method}</b> <code>{html.escape(route.path)}</code> "
                f"{html.escape(route.summary)}</summary>{''.join(parts)}</details>"
            )
        body = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(items)}" for tag, items in sections.items())
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Penstock API</title><style>{_STYLE}</style>"
            f"<h1>Penstock API {__version__}</h1><p>Machine-readable: <a href=openapi.json>openapi.json</a></p>{body}</html>"
        )


def _shapes(route: Route) -> Iterable[Any]:
    """Return all structs of a route, those in lists too."""
    for reader in (route.body, route.query):
        if reader is not None:
            yield _struct_of(reader.shape)
    for listed in (route.listed, route.listed_too):
        if _is_struct(listed):
            yield listed
    yield from route.replies


def _is_struct(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, msgspec.Struct)


def _struct_of(shape: Any) -> Any:
    return shape if _is_struct(shape) else get_args(shape)[0]


def _schema(shape: Any) -> dict[str, Any]:
    """Return how a shape is described: a struct by its name, a list by what is in it."""
    (schema,), _ = msgspec.json.schema_components([shape], ref_template=_REF)
    return schema


def _first_line(shape: type) -> str:
    return (shape.__doc__ or "").splitlines()[0]


def _operation(route: Route) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    if route.query is not None:
        parameters += _query_parameters(route.query)
    if route.namespaced:
        parameters.append(_NAMESPACE)
    if route.repeatable:
        parameters.append(_IDEMPOTENCY)
    operation: dict[str, Any] = {
        "summary": route.summary,
        "tags": [route.tag],
        "operationId": _operation_id(route),
        "parameters": parameters,
        "responses": {str(route.status): _reply(route)}
        | {status: _error(text, plain=route.plain_errors) for status, text in _ERRORS.items()}
        | {str(status): _shape(shape) for status, shape in route.also},
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {JSON: {"schema": _schema(route.body.shape)}},
        }
    if route.takes:
        operation["requestBody"] = {"content": {route.takes: {"schema": {"type": "string", "format": "binary"}}}}
    if (route.public and not route.of_all) or route.probe:
        operation["security"] = [{}]
    else:
        operation["x-right"] = (route.right.name or "").lower()
    return operation


def _operation_id(route: Route) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", route.path.lower()).strip("_")
    return f"{route.method.lower()}_{words}"


def _query_parameters(reader: Shaped) -> list[dict[str, Any]]:
    definition = msgspec.json.schema(reader.shape)["$defs"][reader.shape.__name__]
    required = definition["required"]
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in definition["properties"].items()
    ]


def _reply(route: Route) -> dict[str, Any]:
    if route.listed is not None:
        text = _first_line(route.listed) if _is_struct(route.listed) else "A list."
        return {"description": text, "content": {JSON: _list(route.listed)}}
    if route.reply is None:
        text = "Plain text." if route.media == "text/plain" else "A stream that goes on."
        if "arrow" in route.media:
            text = "An Arrow IPC stream, then PNSTROWS and the number of rows in 8 bytes, lowest first."
        content: dict[str, Any] = {route.media: {"schema": {"type": "string"}}}
        if route.listed_too is not None:
            text = f"{text} Or: {_first_line(route.listed_too)}"
            content[JSON] = _list(route.listed_too)
        return {"description": text, "content": content}
    schemas = [{"$ref": _REF.format(name=reply.__name__)} for reply in route.replies]
    text = " Or: ".join(map(_first_line, route.replies))
    content = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
    if route.arrow_too:
        text = f"{text} With Accept: {_ARROW}, the rows as Arrow, and PNSTROWS and their number in 8 bytes, lowest first."
        content[_ARROW] = {"schema": {"type": "string"}}
    return {"description": text, "content": content}


def _list(item: Any) -> dict[str, Any]:
    return {"schema": {"type": "array", "items": _schema(item)}}


def _shape(shape: type) -> dict[str, Any]:
    return {"description": _first_line(shape), "content": {JSON: {"schema": {"$ref": _REF.format(name=shape.__name__)}}}}


def _error(text: str, *, plain: bool) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}} if plain else {JSON: {"schema": _schema(ErrorReply)}}
    return {
        "description": text,
        "headers": {CODE_HEADER: {"description": "A stable code for the error.", "schema": {"type": "string"}}},
        "content": content,
    }
