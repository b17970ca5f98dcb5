"""One operation of the OpenAPI document, generated from its route."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core import limits
from penstock.doors.http.errors import CODE_HEADER, ErrorReply
from penstock.doors.http.field_check import WARNING_HEADER
from penstock.doors.http.route import JSON, Route
from penstock.doors.http.schemas import query_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.doors.http.schemas import Schemas

ARROW: Final = "application/vnd.apache.arrow.stream"
TEXT: Final = "text/plain"
_STRING: Final = {"type": "string"}
_BYTES: Final = {"type": "string", "format": "binary"}
_ERRORS: Final = {
    400: "The request is not valid, or the job is not in a state for this.",
    401: "A token is required, or the token is not valid.",
    403: "The token does not have the right, or not in this namespace. Without authentication: the request comes from a web "
    "page of another site, or the Host is not a name of this server.",
    404: "The job, queue, namespace or route does not exist.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    414: "The path or the query string is too long.",
    429: "Too many requests, or too many jobs for the namespace. Retry-After is the time to wait.",
    500: "The outcome is unknown, or only a part was done: see the text.",
    503: "The server cannot do this now. Retry in a moment.",
    507: "The disk is full.",
}
_OF_BODIES: Final = (408, 413)
_OF_ACCESS: Final = (401,)
#: A probe is always answered. These errors remain: an internal failure, or a refused origin of a web page.
_OF_PROBES: Final = (403, 500)
_PATH: Final[dict[str, dict[str, Any]]] = {"part": {"type": "integer", "minimum": 0}}
_NAME: Final = "A-Za-z0-9_.:-"
_IDEMPOTENCY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Requests with the same key count as one request: it is executed once, and each gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": limits.idempotency_key_chars_max},
}
_LAST_EVENT: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last received event: the stream begins with the next one. 0: with the oldest.",
    "schema": _STRING,
}


def shapes_in(route: Route) -> Iterator[Any]:
    """Return the shapes of a route's requests, without its query string."""
    if route.body is not None:
        yield route.body.shape


def shapes_out(route: Route) -> Iterator[Any]:
    """Return the shapes of a route's replies."""
    yield from route.replies
    yield from (_list_of(each) for each in (route.listed, route.listed_too) if each is not None)
    yield from (shape for _, shape in route.also if shape is not str)


def error_responses(schemas: Schemas) -> dict[str, Any]:
    """Return the errors that operations share, by name: as JSON, and as a line of text."""
    as_json, as_text = {JSON: {"schema": schemas.of(ErrorReply)}}, {TEXT: {"schema": _STRING}}
    return {
        _error_name(status, plain=plain): {
            "description": text,
            "headers": _error_headers(status),
            "content": as_text if plain else as_json,
        }
        for plain in (False, True)
        for status, text in _ERRORS.items()
    }


def operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    """Describe a route."""
    found: dict[str, Any] = {
        "summary": route.summary,
        "tags": [route.tag],
        "operationId": _operation_id(route),
        "parameters": parameters(route),
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        found["requestBody"] = _body(route, JSON, schemas.of(route.body.shape))
    elif route.takes:
        found["requestBody"] = _body(route, route.takes, _BYTES)
    if is_public(route):
        found["security"] = []
    else:
        found["x-right"] = (route.right.name or "").lower()
    return found


def is_public(route: Route) -> bool:
    """Return whether a route needs no authentication."""
    return (route.public and not route.of_all) or route.probe


def parameters(route: Route) -> list[dict[str, Any]]:
    """Return the parameters of a route: those of its path, of its query string, and headers."""
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _PATH.get(name, _STRING | {"minLength": 1})}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.query is not None:
        found += query_parameters(route.query.shape)
    if route.namespaced:
        found.append(_namespace(route))
    if route.repeatable:
        found.append(_IDEMPOTENCY)
    if route.resumable:
        found.append(_LAST_EVENT)
    return found


def _namespace(route: Route) -> dict[str, Any]:
    text, pattern = "The namespace of the queues and jobs.", f"^[{_NAME}]+$"
    if route.anywhere:
        text, pattern = f"{text} * means all namespaces.", rf"^([{_NAME}]+|\*)$"
    schema = {
        "type": "string",
        "default": "default",
        "pattern": pattern,
        "minLength": 1,
        "maxLength": limits.namespace_chars_max,
    }
    return {"name": "X-Namespace", "in": "header", "required": False, "description": text, "schema": schema}


def _body(route: Route, media: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": route.body_required, "content": {media: {"schema": schema}}}


def _operation_id(route: Route) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", route.path.lower()).strip("_")
    return f"{route.method.lower()}_{words}"


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {str(route.status): _reply(route, schemas)}
    for status in _error_statuses(route):
        found[str(status)] = {"$ref": f"#/components/responses/{_error_name(status, plain=route.plain_errors)}"}
    for status in dict.fromkeys(status for status, _ in route.also):
        found[str(status)] = _other(route, status, schemas)
    return found


def _error_statuses(route: Route) -> list[int]:
    if route.probe:
        return list(_OF_PROBES)
    left_out: tuple[int, ...] = () if route.body is not None or route.takes else _OF_BODIES
    if is_public(route):
        left_out += _OF_ACCESS
    return [status for status in _ERRORS if status not in left_out]


def _error_name(status: int, *, plain: bool) -> str:
    return f"{'PlainError' if plain else 'Error'}{status}"


def _error_headers(status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {CODE_HEADER: {"description": "A stable code for the error.", "schema": _STRING}}
    if status in (429, 503):
        headers["retry-after"] = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}}
    if status == 401:
        headers["www-authenticate"] = {"schema": _STRING}
    return headers


def _other(route: Route, status: int, schemas: Schemas) -> dict[str, Any]:
    """Describe an answer with another status and its own shape."""
    found = [shape for each, shape in route.also if each == status]
    shapes = [shape for shape in found if shape is not str]
    content = {JSON: _any_of(shapes, schemas)} if shapes else {}
    if str in found:
        content[TEXT] = {"schema": _STRING}
    return {"description": _texts(shapes) or "A line of text.", "headers": _error_headers(status), "content": content}


def _reply(route: Route, schemas: Schemas) -> dict[str, Any]:
    """Describe a successful answer."""
    described = _content(route, schemas)
    if route.warned:
        about = {"description": "Unknown fields, which were ignored.", "schema": _STRING}
        described["headers"] = {WARNING_HEADER: about}
    return described


def _content(route: Route, schemas: Schemas) -> dict[str, Any]:
    if route.status == 204:
        return {"description": "Done."}
    if route.listed is not None:
        return {"description": _text_of_list(route.listed), "content": {JSON: _list(route.listed, schemas)}}
    if route.reply is None:
        return _unshaped(route, schemas)
    text = _texts(route.replies)
    content = {JSON: _any_of(route.replies, schemas)}
    if route.arrow_too:
        text = f"{text} With Accept: {ARROW}, the rows as Arrow, and PNSTROWS and their number in 8 bytes, lowest first."
        content[ARROW] = {"schema": _BYTES}
    if route.text_too:
        text = f"{text} With Accept: {TEXT}, {route.text_too}."
        content[TEXT] = {"schema": _STRING}
    return {"description": text, "content": content}


def _unshaped(route: Route, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {route.media: {"schema": _BYTES if route.media == ARROW else _STRING}}
    if route.media == ARROW:
        text = "An Arrow IPC stream, then PNSTROWS and the number of rows in 8 bytes, lowest first."
    else:
        text = "Plain text." if route.media == TEXT else "A stream without an end."
    if route.listed_too is not None:
        text = f"{text} Or: {_text_of_list(route.listed_too)}"
        content[JSON] = _list(route.listed_too, schemas)
    return {"description": text, "content": content}


def _any_of(shapes: Any, schemas: Schemas) -> dict[str, Any]:
    found = [schemas.of(shape) for shape in shapes]
    return {"schema": found[0] if len(found) == 1 else {"anyOf": found}}


def _list(item: Any, schemas: Schemas) -> dict[str, Any]:
    return {"schema": schemas.of(_list_of(item))}


def _list_of(item: Any) -> Any:
    return list[item]


def _text_of_list(item: Any) -> str:
    return first_line(item) if isinstance(item, type) and issubclass(item, msgspec.Struct) else "A list."


def _texts(shapes: Any) -> str:
    return " Or: ".join(dict.fromkeys(map(first_line, shapes)))


def first_line(shape: type) -> str:
    """Return the first line of a struct's docstring."""
    return (shape.__doc__ or "").splitlines()[0]
