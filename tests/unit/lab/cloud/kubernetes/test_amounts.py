"""Amounts of resources as the embedded Kubernetes API reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from provisioner.lab.cloud.kubernetes.amounts import amount


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4),
        (2, 2),
        ("500m", Fraction(1, 2)),
        ("-1", -1),
        ("1.5", Fraction(3, 2)),
        ("8Gi", 8 * 2**30),
        ("1Ki", 1024),
        ("2k", 2000),
        ("3E", 3 * 10**18),
        ("1e3", 1000),
        ("100n", Fraction(1, 10**7)),
    ],
)
def test_an_amount_is_its_number(text: object, number: Fraction) -> None:
    assert amount(text) == number
