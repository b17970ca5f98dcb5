"""The host names that an open server accepts. A page that points another name at the server is refused."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{0,5}))?", re.ASCII)
#: Allows every name.
EVERY: Final = "*"


class Host(NamedTuple):
    """A host from a request: lower case, without brackets and a final dot; the port, if given."""

    name: str
    port: int | None


def parse_host(text: str) -> Host | None:
    """Parse the value of a ``Host`` header, or the authority of an origin; None if it is neither."""
    found = _HOST.fullmatch(text.strip().lower())
    if found is None:
        return None
    name = found[1] or found[2].removesuffix(".")
    port = int(found[3]) if found[3] else None
    return Host(name, port) if name and (port is None or port < 65_536) else None


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a host; None if it is a name. An IPv4 address within IPv6 gives the IPv4 address."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


class AllowedHosts:
    """The hosts that requests may name. ``listening``: the hosts of the listeners; ``configured``: further names.

    ``*.NAME`` in ``configured`` allows all names below it; ``*`` allows all. Loopback names and addresses are always
    allowed. A listener on all addresses accepts every address, because it cannot find out which ones lead to it,
    and the name of the machine: no page of another site has these as its origin.
    """

    def __init__(self, listening: Iterable[str], configured: Iterable[str]) -> None:
        own = [host.name for each in listening if (host := parse_host(f"[{each}]" if ":" in each else each)) is not None]
        addresses = {name: address_of(name) for name in own}
        self._every_address = any(address is not None and address.is_unspecified for address in addresses.values())
        self._addresses = {address for address in addresses.values() if address is not None}
        self._names = {name for name, address in addresses.items() if address is None} | {"localhost"}
        if self._every_address:
            self._names.add(socket.gethostname().lower())
        self._every_name = False
        self._suffixes: tuple[str, ...] = (".localhost",)
        for each in configured:
            self._allow(each.lower())

    def _allow(self, configured: str) -> None:
        if configured == EVERY:
            self._every_name = True
        elif configured.startswith("*."):
            self._suffixes += (configured[1:],)
        elif (address := address_of(configured)) is not None:
            self._addresses.add(address)
        else:
            self._names.add(configured.removesuffix("."))

    def allows(self, text: str) -> bool:
        """Return whether the host of a request is one of the server's. Its port does not matter."""
        if self._every_name:
            return True
        host = parse_host(text)
        if host is None:
            return False
        address = address_of(host.name)
        if address is not None:
            return self._every_address or address.is_loopback or address in self._addresses
        return host.name in self._names or host.name.endswith(self._suffixes)
