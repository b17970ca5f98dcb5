"""Decides which addresses are on the public internet, and why the others are forbidden.

The standard library's ``is_global`` is not enough: it accepts an address that contains another one (NAT64, 6to4), and it
does not include metadata services. In IPv6, allowed ranges are listed, and everything else is forbidden.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

#: Metadata services, where clouds give credentials to their machines. One of them is a public address.
_METADATA: Final = frozenset(
    map(ip_address, ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254"))
)
METADATA: Final = "cloud metadata endpoints"

_FORBIDDEN_4: Final = [
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "unspecified IP"),
        ("127.0.0.0/8", "loopback IP"),
        ("10.0.0.0/8", "private IP"),
        ("172.16.0.0/12", "private IP"),
        ("192.168.0.0/16", "private IP"),
        ("169.254.0.0/16", "link-local IP"),
        ("100.64.0.0/10", "carrier-grade NAT IP"),
        ("192.0.0.0/24", "reserved IP"),
        ("192.0.2.0/24", "documentation IP"),
        ("198.51.100.0/24", "documentation IP"),
        ("203.0.113.0/24", "documentation IP"),
        ("192.88.99.0/24", "reserved IP"),
        ("198.18.0.0/15", "benchmark IP"),
        ("224.0.0.0/4", "multicast IP"),
        ("240.0.0.0/4", "reserved IP"),
    )
]
_FORBIDDEN_6: Final = [
    (IPv6Network(network), reason)
    for network, reason in (
        ("::/128", "unspecified IP"),
        ("::1/128", "loopback IP"),
        ("fc00::/7", "private IP"),
        ("fec0::/10", "private IP"),
        ("fe80::/10", "link-local IP"),
        ("ff00::/8", "multicast IP"),
        ("2001:2::/48", "benchmark IP"),
        ("2001:db8::/32", "documentation IP"),
        ("3fff::/20", "documentation IP"),
        ("2001::/23", "reserved IP"),
    )
]
_GLOBAL_6: Final = IPv6Network("2000::/3")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_TEREDO: Final = IPv6Network("2001::/32")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")


def why_forbidden(address: IPv4Address | IPv6Address) -> str | None:
    """Return why an address is forbidden, or None if it is on the public internet."""
    if address in _METADATA:
        return METADATA
    if isinstance(address, IPv4Address):
        return next((reason for network, reason in _FORBIDDEN_4 if address in network), None)
    if address.scope_id is not None:
        return "link-local IP"
    return _why_forbidden_6(address)


def _why_forbidden_6(address: IPv6Address) -> str | None:
    number = int(address)
    if address in _MAPPED or address in _NAT64:  # a translator calls the inner address, which may be allowed
        return why_forbidden(IPv4Address(number & 0xFFFFFFFF))
    for network, reason in _FORBIDDEN_6[:2]:
        if address in network:
            return reason
    for tunnel, within in (
        (_COMPATIBLE, number),
        (_TRANSLATED, number),
        (_NAT64_LOCAL, number),
        (_SIX_TO_FOUR, number >> 80),
        (_TEREDO, ~number),
    ):
        if address in tunnel:  # obsolete, so forbidden with any inner address
            return why_forbidden(IPv4Address(within & 0xFFFFFFFF)) or "reserved IP"
    reason_6 = next((reason for network, reason in _FORBIDDEN_6 if address in network), None)
    return reason_6 if reason_6 is not None or address in _GLOBAL_6 else "reserved IP"
