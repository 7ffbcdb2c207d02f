"""Dates of HTTP. ``tests/integration/test_kube_connection.py`` has the tests with connections."""

from __future__ import annotations

import pytest

from provisioner.state.kube.connection import epoch_of


@pytest.mark.parametrize(
    ("date", "at"),
    [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199.0),
        ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200.0),
        ("Tue, 31 Dec 2030 12:00:01 GMT", 1_924_948_801.0),
        ("Fri, 27 Nov 2026 15:43:14 GMT", 1_795_794_194.0),
    ],
)
def test_epoch_of_http_dates(date: str, at: float) -> None:
    assert epoch_of(date) == at
    with pytest.raises(ValueError):
        epoch_of("2026-11-27")
