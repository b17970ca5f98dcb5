r"""Keeps webhooks away from what only this machine or its network may reach (server-side request forgery).

A URL is read strictly, by rules of our own: what other programs would bend into an address (``0x7f.1``, ``127.0.0.1.``,
``good.com\@10.0.0.1``) is not a URL here. Then its name is looked up before every attempt, every address it has is checked,
and the caller connects to one that was checked. Nothing is looked up twice, so an answer cannot change in between.

A look-up cannot be cut off, and a slow name server may take a minute for it. So there is a limited number of them at a time, of
which each namespace gets a share: one whose names are slow waits for itself.
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
#: A name that ends like this is taken for an IPv4 address by many programs.
_NUMERIC: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_NOT_PRINTABLE: Final = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")
_NAME_CHARS_MAX: Final = 253

_LOCAL_NAMES: Final = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "loopback"))
_METADATA_NAMES: Final = frozenset(("metadata", "instance-data"))
#: Ports of servers that speak something else and could be talked into something by a well-formed POST.
_OTHER_PORTS: Final = frozenset(
    (21, 22, 23, 25, 53, 110, 143, 389, 445, 465, 587, 993, 995, 2375, 3306, 5432, 6379, 9200, 11211, 27017)
)


class Target(NamedTuple):
    """A URL, taken apart."""

    is_tls: bool
    host: str  #: in lower case, without brackets
    port: int
    path: str  #: with the query, never empty

    @property
    def authority(self) -> str:
        """What belongs into the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


class Guard:
    """``allowed_hosts`` are hosts the operator vouches for, as they are written in URLs; their addresses are not checked."""

    def __init__(self, allowed_hosts: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(_plain(host) for host in allowed_hosts)
        self._resolve = resolve or addresses_of
        self._slots = Slots(limits.webhook_lookups_max)
        self._lookups: set[asyncio.Task[list[str]]] = set()

    def check(self, url: str) -> Target:
        """Take a URL apart. Raises InvalidInput for what may not be called, as far as that shows without looking it up."""
        target = parse(url)
        if target.host not in self._allowed:
            address = _literal(target.host)
            reason = _why_forbidden_name(target.host) if address is None else why_forbidden(address)
            if reason is not None:
                raise InvalidInput(f"Webhook URL cannot point to {reason}")
        return target

    def vouches_for(self, target: Target) -> bool:
        """Tell whether the operator vouches for a target's host."""
        return target.host in self._allowed

    @asynccontextmanager
    async def turn(self, target: Target, namespace: str) -> AsyncIterator[LookUp]:
        """Wait until a target may be looked up on behalf of a namespace, and return what does it, once.

        The wait is not bounded: a deadline for what is done with the address begins afterwards. A slot that is taken is free
        again when the look-up has ended, even if its caller did not wait for that.
        """
        if _literal(target.host) is not None:
            yield lambda: self._checked(target, None)
            return
        await self._slots.acquire(namespace)
        begun: list[asyncio.Task[list[str]]] = []

        async def look_up() -> list[str]:
            task = asyncio.get_running_loop().create_task(self._resolve(target.host, target.port))
            begun.append(task)
            self._lookups.add(task)  # the event loop itself keeps no task alive
            task.add_done_callback(lambda done: self._ended(done, namespace))
            return await self._checked(target, task)

        try:
            yield look_up
        finally:
            if not begun:
                self._slots.release(namespace)

    async def addresses(self, target: Target, namespace: str = "") -> list[str]:
        """Look a target up, when its turn comes, and return its addresses. Raises what a look-up raises."""
        async with self.turn(target, namespace) as look_up:
            return await look_up()

    def _ended(self, task: asyncio.Task[list[str]], namespace: str) -> None:
        self._lookups.discard(task)
        self._slots.release(namespace)
        if not task.cancelled():
            task.exception()  # its caller may be gone, and the event loop complains about errors that are not read

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

    It is looked up in a thread of its own, so that a slow name server holds up nothing else. The thread is a daemon, unlike
    those of an executor: a look-up cannot be cut off, and must not keep the server from ending.
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
    """Take a URL apart, strictly. Raises InvalidInput in the contract's words."""
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
    """Return a host in its one spelling. Raises InvalidInput for any other way to write an address."""
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
    """Return an allowed host in the spelling that ``parse`` gives."""
    literal = _literal(host.lower())
    return host.lower() if literal is None else str(literal)


def _why_forbidden_name(host: str) -> str | None:
    last = host.rpartition(".")[2]
    if host in _LOCAL_NAMES or last == "localhost":
        return "localhost"
    if last == "internal" or host in _METADATA_NAMES:
        return METADATA
    return None
