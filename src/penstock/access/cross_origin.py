"""Cross-origin checks. A browser sends requests for every page that it shows, from inside the user's network.

Without authentication, the origin of a request is the only thing that can be checked. Then only pages of the server itself,
and the page named by ``cors_allow_origin``, may send requests, and only to a name of the server (another name may have been
pointed at it: DNS rebinding). Programs that are not browsers send neither ``Origin`` nor ``Sec-Fetch-Site``, and are not
affected. With authentication, a page without a token gets nothing, and ``cors_allow_origin`` decides which pages may read
answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.access.allowed_hosts import parse_host
from penstock.core import limits
from penstock.core.errors import HostRefused, OriginRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from granian.rsgi import Scope

    from penstock.access.allowed_hosts import AllowedHosts
    from penstock.access.authenticator import Authenticator
    from penstock.access.rate_limit import ClientAddress

log = structlog.get_logger("penstock.access")

#: A page can send this header instead of ``Content-Type: application/json`` with a POST.
REQUEST_HEADER: Final = "penstock-request"
#: The values of ``Sec-Fetch-Site`` for requests by pages of the same origin, and by the user directly.
_OWN_SITES: Final = ("same-origin", "none")
#: Body types that a page of any origin can send without a preflight request. A missing type is one of them.
_FORM_TYPES: Final = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
#: Paths that links on other sites may lead to: they show public content, and change nothing.
_LINKED: Final = frozenset({"/", "/docs"})
_PORTS: Final = {"http": 80, "https": 443}


class Origins:
    """Checks the hosts and origins of requests.

    ``allow_origin`` is the page that may send requests from a browser (``*``: every page, when there is authentication;
    empty: none). ``hosts`` are the names of the server. ``address`` decides which proxies are trusted to name the original
    host.
    """

    def __init__(
        self, authenticator: Authenticator, hosts: AllowedHosts, address: ClientAddress, *, allow_origin: str
    ) -> None:
        self._authenticator = authenticator
        self._hosts = hosts
        self._address = address
        self._allow_origin = allow_origin
        self._accepted: set[str] = set()  #: hosts that were checked and are ours, so that most requests cost one lookup
        self._refused: set[str] = set()  #: hosts that were logged

    @property
    def allowed(self) -> tuple[str, str]:
        """Return the allowed origin for answers: with authentication, and without."""
        return self._allow_origin, "" if self._allow_origin == "*" else self._allow_origin

    def check(self, scope: Scope, headers: Any) -> None:
        """Raise HostRefused or OriginRefused for a request that a page of another site may have sent to an open server.

        ``headers`` are those of the scope.
        """
        if not self._authenticator.is_open:
            return
        named = headers.get_all("host")
        authority = scope.authority
        if authority is not None:
            named.append(authority)
        if len(named) != 1 or named[0] not in self._accepted or "x-forwarded-host" in headers:
            named = self._check_hosts(scope, named, headers.get("x-forwarded-host"))
        if "origin" in headers or "sec-fetch-site" in headers:
            self._check_page(scope, headers, named)

    def check_handshake(self, scope: Scope) -> None:
        """Raise HostRefused or OriginRefused for the handshake of a WebSocket that a page may not open."""
        if self._authenticator.is_open:
            self.check(scope, scope.headers)
            return
        headers: Any = scope.headers
        origin = headers.get("origin", "" if "origin" in headers else None)
        if origin is None or self._allow_origin in ("*", origin):
            return
        named = headers.get_all("host") + ([] if scope.authority is None else [scope.authority])
        if _is_repeated(headers) or not _is_own(
            origin, scope, named + self._forwarded(scope, headers.get("x-forwarded-host"))
        ):
            raise OriginRefused

    # Checks of the host.

    def _forwarded(self, scope: Scope, forwarded: str | None) -> list[str]:
        """Return the hosts in the request that a trusted proxy received."""
        if forwarded is None or not self._address.trusts(scope):
            return []
        return [each.strip() for each in forwarded.split(",")]

    def _check_hosts(self, scope: Scope, named: list[str], forwarded: str | None) -> list[str]:
        """Return all hosts that a request names, each of which must be ours. Raises HostRefused.

        Headers of a proxy never replace ``Host``: a page whose name was pointed at this server can send both.
        """
        named = named + self._forwarded(scope, forwarded)
        for each in named:
            if each not in self._accepted:
                if not self._hosts.allows(each):
                    self._refuse(each)
                if len(self._accepted) >= limits.accepted_hosts_max:
                    self._accepted.clear()
                self._accepted.add(each)
        if not named and "host" in scope.headers:  # it is present but not readable: it is not ASCII
            self._refuse("?")
        return named  # none: an HTTP/1.0 program, not a browser

    def _refuse(self, host: str) -> None:
        shown = ascii(host[: limits.shown_host_chars_max])
        if shown not in self._refused and len(self._refused) < limits.accepted_hosts_max:
            self._refused.add(shown)
            log.warning(
                "a request was refused for its Host; if that is a name of this server, add it to allowed_hosts", host=shown
            )
        raise HostRefused(
            f"This server requires no token, so the Host header must name it, and {shown} is not one of its names. "
            "Add it to allowed_hosts (PENSTOCK_ALLOWED_HOSTS, --allowed-hosts), or set AUTH_TOKENS."
        )

    # Checks of the page.

    def _check_page(self, scope: Scope, headers: Any, named: Sequence[str]) -> None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site is None and "origin" not in headers:  # it is present but not readable
            return
        if _is_repeated(headers):
            raise OriginRefused
        method = scope.method if scope.proto == "http" else "GET"
        if not origin or origin != self._allow_origin:
            if site is not None and site not in _OWN_SITES:
                if origin is None and method == "GET" and _is_link(scope):
                    return
                raise OriginRefused
            if (origin is not None or "origin" in headers) and not _is_own(origin or "", scope, named):
                raise OriginRefused
        if method == "POST" and REQUEST_HEADER not in headers:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind in _FORM_TYPES:
                raise OriginRefused(
                    "A web page must send this request with Content-Type: application/json, or with the header "
                    "Penstock-Request: 1. A form of another site cannot."
                )


def _is_repeated(headers: Any) -> bool:
    """Return whether a request names several pages. No browser does that."""
    return len(headers.get_all("origin")) > 1


def _is_link(scope: Scope) -> bool:
    """Return whether the user followed a link to public content."""
    get = scope.headers.get
    return scope.path in _LINKED and get("sec-fetch-mode") == "navigate" and get("sec-fetch-dest") == "document"


def _is_own(origin: str, scope: Scope, named: Sequence[str]) -> bool:
    """Return whether an origin is the server itself, by one of the names in the request.

    Behind a proxy that ends TLS, the page has https and the request has not. The opposite case is another site.
    """
    scheme, _, authority = origin.lower().partition("://")
    page = parse_host(authority)
    default = _PORTS.get(scheme)
    if page is None or default is None or (scope.scheme in ("https", "wss") and scheme != "https"):
        return False
    for each in named:
        own = parse_host(each)
        if own is not None and own.name == page.name and (own.port or default) == (page.port or default):
            return True
    return False
