"""Addresses of clients."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final

#: Prefix length in bits of the network that one IPv6 client usually has.
IPV6_PREFIX: Final = 64


def network_of(address: str, ipv6_prefix: int = IPV6_PREFIX) -> str:
    """Return the address that connections of a client are counted by.

    It is an IPv4 address, or the network of an IPv6 address.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    rest = found.max_prefixlen - ipv6_prefix
    return str(found.ipv4_mapped or IPv6Address(int(found) >> rest << rest))
