"""A client that looks at every reply it gets: is it what the OpenAPI document says?"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import httpx2
import jsonschema_rs


class Description:
    """What an OpenAPI document says of replies."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]
        self._operations = [
            (_pattern(path), method.upper(), f"{method.upper()} {path}", self._responses(operation))
            for path, item in sorted(document["paths"].items(), key=_vagueness)
            for method, operation in item.items()
        ]
        self._validator = cache(self._make_validator)

    def _responses(self, operation: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for status, response in operation["responses"].items():
            name = response.get("$ref", "").rpartition("/")[2]
            found[status] = self._components["responses"][name] if name else response
        return found

    def complaint(self, response: httpx2.Response) -> str | None:
        """Return what is wrong with a reply; None if the document describes it, or does not know its request."""
        request = response.request
        for number, (pattern, method, name, responses) in enumerate(self._operations):
            if method == request.method and pattern.fullmatch(request.url.path):
                wrong = self._compare(number, responses, response)
                return wrong and f"{name} answered {response.status_code} {response.text[:500]}: {wrong}"
        return None

    def _compare(self, number: int, responses: dict[str, Any], response: httpx2.Response) -> str | None:
        status = str(response.status_code)
        if status not in responses:
            return "the status is not in the OpenAPI document"
        content = responses[status].get("content")
        if content is None:
            return "it should have no body" if response.content else None
        media = response.headers.get("content-type", "").partition(";")[0]
        if media not in content:
            return f"{media!r} is not in the OpenAPI document"
        if media != "application/json":
            return None
        return "; ".join(
            f"{error.instance_path}: {error.message}"
            for error in self._validator(number, status).iter_errors(response.json())
        )[:1_000]

    def _make_validator(self, number: int, status: str) -> Any:
        schema = self._operations[number][3][status]["content"]["application/json"]["schema"]
        return jsonschema_rs.Draft202012Validator({**schema, "components": self._components})


def _vagueness(path_and_item: tuple[str, Any]) -> tuple[int, int]:
    literal = re.sub(r"{\w+}", "", path_and_item[0])
    return path_and_item[0].count("{"), -len(literal)


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"{(\w+)}", path)
    return re.compile(
        "".join(re.escape(part) if n % 2 == 0 else (".+" if part == "id" else "[^/]*") for n, part in enumerate(parts))
    )


class Current:
    """The document that replies are compared with; None: they are not compared."""

    description: Description | None = None


class DescribedClient(httpx2.Client):
    """Compares replies, unless they are streams or come from elsewhere than ``main_port``."""

    main_port = 0

    def request(self, method: str, url: httpx2.URL | str, **more: Any) -> httpx2.Response:
        response = super().request(method, url, **more)
        if Current.description is not None and response.url.port == self.main_port:
            complaint = Current.description.complaint(response)
            assert not complaint, complaint
        return response
