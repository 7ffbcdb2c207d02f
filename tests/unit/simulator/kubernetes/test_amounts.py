"""Amounts of resources as the embedded Kubernetes API reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from provisioner.simulator.kubernetes.amounts import amount, amount_causes, check_amounts
from provisioner.simulator.kubernetes.errors import ApiError


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


@pytest.mark.parametrize("text", ["lots", "", "1 Gi", "1gi", "m"])
def test_what_is_no_amount_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_amounts("Pod", {"requests": {"cpu": text}})
    assert caught.value.code == 400


def test_nothing_negative_and_no_more_than_the_limit_may_be_asked_for() -> None:
    resources = {
        "requests": {"cpu": "2", "memory": "1Gi", "disk": "-1"},
        "limits": {"cpu": "1500m", "memory": "1024Mi"},
    }
    causes = {cause.field: cause.message for cause in amount_causes("spec.containers[0].resources", resources)}
    assert causes == {
        "spec.containers[0].resources.requests": 'Invalid value: "2": must be less than or equal to cpu limit of 1500m',
        "spec.containers[0].resources.requests[disk]": 'Invalid value: "-1": must be greater than or equal to 0',
    }
