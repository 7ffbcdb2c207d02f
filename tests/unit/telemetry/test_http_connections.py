"""The clients of the HTTP server, by address, and the server's limits as docs/status-page.md names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.telemetry import authentication, http_connections
from provisioner.telemetry.http_connections import network_of


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


@pytest.mark.parametrize(
    "words",
    [
        f"| TLS handshake and head of a request | {http_connections.HEAD_SECONDS:g} s,",
        f"| head of a request | {http_connections.HEAD_BYTES // 1024} kB |",
        f"| a line of the head | {http_connections.LINE_BYTES // 1024} kB |",
        f"has taken the response | {http_connections.RESPONSE_SECONDS:g} s |",
        f"have not taken yet | {http_connections.UNSENT_BYTES >> 20} MiB |",
        f"connections | the smaller of {http_connections.CONNECTIONS} and 1/{http_connections.SHARE} of",
        f"is {http_connections.LEAST_SECONDS:g} s old",
        f"more than {authentication.LOGINS} wrong tokens within {authentication.LOGIN_SECONDS:g} s",
        f"each after a pause of {authentication.WRONG_SECONDS:g} s",
    ],
)
def test_the_page_names_the_bounds_of_the_code(words: str) -> None:
    assert words in (Path(__file__).parents[3] / "docs" / "status-page.md").read_text()
