"""Who counts as one client of the HTTP server."""

from __future__ import annotations

import pytest

from provisioner.telemetry.connections import network_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_client_is_its_address_or_its_network_of_ipv6(host: str, network: str) -> None:
    assert network_of(host) == network
