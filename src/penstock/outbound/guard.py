r"""Protects against server-side request forgery: webhooks must not reach this machine or its private network.

URLs are parsed strictly, by rules of this module. Text that other programs would turn into an address (``0x7f.1``,
``127.0.0.1.``, ``good.com\@10.0.0.1``) is not a valid URL here. Then the name is looked up before every attempt, all its
addresses are checked, and the caller connects to a checked address. There is no second lookup, so the answer cannot change
in between.

A lookup cannot be cancelled, and may take a minute with a slow name server. So the number of concurrent lookups is limited,
and each namespace has a share of it: a namespace with slow names delays only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.pool_shares import Slots
from penstock.outbound.addresses import METADATA, why_forbidden

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
    from typing import Any

    #: Looks up a name and returns its addresses. Raises OSError.
    Resolve = Callable[[str, int], Coroutine[Any, Any, list[str]]]
    #: Returns the addresses of a target. Raises InvalidInput if one of them is forbidden, or OSError.
    LookUp = Callable[[], Awaitable[list[str]]]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<target>[^#]*)(?:#.*)?\Z")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?\Z")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
#: Many programs read a name with this ending as an IPv4 address.
_NUMERIC: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_NOT_PRINTABLE: Final = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")
_NAME_CHARS_MAX: Final = 253

_LOCAL_NAMES: Final = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "loopback"))
_METADATA_NAMES: Final = frozenset(("metadata", "instance-data"))
#: Ports of servers of other protocols, which a well-formed POST could abuse.
_OTHER_PORTS: Final = frozenset(
    (21, 22, 23, 25, 53, 110, 143, 389, 445, 465, 587, 993, 995, 2375, 3306, 5432, 6379, 9200, 11211, 27017)
)


class Target(NamedTuple):
    """The parts of a URL."""

    is_tls: bool
    host: str  #: lower case, without brackets
    port: int
    path: str  #: including the query, never empty

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


class Guard:
    """Checks URLs and addresses. The addresses of ``allowed_hosts``, written as in URLs, are not checked."""

    def __init__(self, allowed_hosts: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(_plain(host) for host in allowed_hosts)
        self._resolve = resolve or addresses_of
        self._slots = Slots(limits.webhook_lookups_max)
        self._lookups: set[asyncio.Task[list[str]]] = set()

    def check(self, url: str) -> Target:
        """Parse a URL. Raises InvalidInput if it must not be called, as far as this is known without a lookup."""
        target = parse(url)
        if target.host not in self._allowed:
            address = _literal(target.host)
            reason = _why_forbidden_name(target.host) if address is None else why_forbidden(address)
            if reason is not None:
                raise InvalidInput(f"Webhook URL cannot point to {reason}")
        return target

    def vouches_for(self, target: Target) -> bool:
        """Return whether the operator allows a target's host."""
        return target.host in self._allowed

    @asynccontextmanager
    async def turn(self, target: Target, namespace: str) -> AsyncIterator[LookUp]:
        """Wait until a target may be looked up for a namespace, and return the function that does it, once.

        The wait has no limit: the deadline of the request starts afterwards. A slot is free again when its lookup has ended,
        even if its caller did not wait for that.
        """
        if _literal(target.host) is not None:
            yield lambda: self._checked(target, None)
            return
        await self._slots.acquire(namespace)
        begun: list[asyncio.Task[list[str]]] = []

        async def look_up() -> list[str]:
            task = asyncio.get_running_loop().create_task(self._resolve(target.host, target.port))
            begun.append(task)
            self._lookups.add(task)  # the event loop keeps only weak references to tasks
            task.add_done_callback(lambda done: self._ended(done, namespace))
            return await self._checked(target, task)

        try:
            yield look_up
        finally:
            if not begun:
                self._slots.release(namespace)

    async def addresses(self, target: Target, namespace: str = "") -> list[str]:
        """Look up a target when a slot is free, and return its addresses. Raises the error of the lookup."""
        async with self.turn(target, namespace) as look_up:
            return await look_up()

    def _ended(self, task: asyncio.Task[list[str]], namespace: str) -> None:
        self._lookups.discard(task)
        self._slots.release(namespace)
        if not task.cancelled():
            task.exception()  # its caller may be gone, and the event loop logs errors that are not retrieved

    async def _checked(self, target: Target, looking: asyncio.Task[list[str]] | None) -> list[str]:
        found = [target.host] if looking is None else await asyncio.shield(looking)
        if not found:
            raise OSError(f"{target.host} has no address")
        if target.host not in self._allowed:
            for each in found:
                reason = why_forbidden(ip_address(each))
                if reason is not None:
                    raise InvalidInput(f"Webhook URL cannot point to {reason}")
        return found[: limits.webhook_addresses_max]


async def addresses_of(host: str, port: int) -> list[str]:
    """Return all addresses of a name. Raises OSError.

    The lookup runs in its own thread, so that a slow name server delays nothing else. The thread is a daemon, unlike those
    of an executor, because a lookup cannot be cancelled and must not delay the exit of the server.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def finish(addresses: list[str], error: OSError | None) -> None:
        if not found.done():
            found.set_result(addresses) if error is None else found.set_exception(error)

    def work() -> None:
        addresses, error = _look_up(host, port)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, addresses, error)

    threading.Thread(target=work, name="penstock-resolve", daemon=True).start()
    return await found


def _look_up(host: str, port: int) -> tuple[list[str], OSError | None]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return [], OSError(f"{host} cannot be looked up: {error}")
    return list(dict.fromkeys(str(each[4][0]) for each in found)), None


def parse(url: str) -> Target:
    """Parse a URL strictly. Raises InvalidInput with the text of the contract."""
    if not url:
        raise InvalidInput("Webhook URL is required")
    if len(url) > limits.webhook_url_chars_max:
        raise InvalidInput(f"Webhook URL too long (max {limits.webhook_url_chars_max} characters)")
    if _NOT_PRINTABLE.search(url) is not None:
        raise InvalidInput("Invalid URL format")
    scheme = _SCHEME.match(url)
    if scheme is not None and scheme[0].lower() not in ("http:", "https:"):
        raise InvalidInput("Webhook URL must use http or https protocol")
    parts = _URL.match(url)
    authority = None if parts is None else _AUTHORITY.match(parts["authority"])
    if parts is None or authority is None:
        raise InvalidInput("Invalid URL format")
    is_tls = parts["scheme"].lower() == "https"
    host = _host(authority["six"], authority["name"])
    port = (443 if is_tls else 80) if authority["port"] is None else int(authority["port"])
    if not 0 < port < 65_536:
        raise InvalidInput("Invalid URL format")
    if port in _OTHER_PORTS:
        raise InvalidInput(f"Webhook URL cannot use port {port}")
    path = parts["target"]
    return Target(is_tls, host, port, path if path.startswith("/") else f"/{path}")


def _host(six: str | None, name: str | None) -> str:
    """Return a host in its normal form. Raises InvalidInput for an address in any other form."""
    try:
        if six is not None:
            return str(IPv6Address(six))
        host = str(name).lower()
        labels = host.split(".")
        if _NUMERIC.match(labels[-1]) is not None:
            return str(IPv4Address(host))  # four decimal numbers without leading zeros, nothing else
    except ValueError:
        raise InvalidInput("Invalid URL format") from None
    if len(host) > _NAME_CHARS_MAX or not all(_LABEL.match(label) for label in labels):
        raise InvalidInput("Invalid URL format")
    return host


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _plain(host: str) -> str:
    """Return an allowed host in the form that ``parse`` returns."""
    literal = _literal(host.lower())
    return host.lower() if literal is None else str(literal)


def _why_forbidden_name(host: str) -> str | None:
    last = host.rpartition(".")[2]
    if host in _LOCAL_NAMES or last == "localhost":
        return "localhost"
    if last == "internal" or host in _METADATA_NAMES:
        return METADATA
    return None
