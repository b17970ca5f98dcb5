"""What connections of one client have in common."""

from __future__ import annotations

import pytest

from penstock.core.addresses import network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("unix:", "unix:"),
        ("a name", "a name"),
    ],
)
def test_a_network(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(("prefix", "network"), [(1, "::"), (56, "2001:db8:1:1200::"), (128, "2001:db8:1:1234:5:6:7:8")])
def test_the_prefix_decides(prefix: int, network: str) -> None:
    assert network_of("2001:db8:1:1234:5:6:7:8", prefix) == network
