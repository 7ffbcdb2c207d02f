"""Fingerprints that callers send back."""

from __future__ import annotations

import pytest

from provisioner.simulator.compute.fingerprints import check_fingerprint, fingerprint_of
from provisioner.simulator.compute.operations import ApiError


def test_a_fingerprint_changes_with_the_content_alone() -> None:
    assert fingerprint_of({"a": "1", "b": "2"}) == fingerprint_of({"b": "2", "a": "1"})
    assert fingerprint_of({"a": "1"}) != fingerprint_of({"a": "2"})
    assert fingerprint_of({}) == "42WmSpB8rSM=", "Google's own of nothing"


@pytest.mark.parametrize("given", ["e/l+R7QaTVA=", "e_l-R7QaTVA="], ids=["usual base64", "gcloud's base64"])
def test_a_fingerprint_is_known_in_either_base64(given: str) -> None:
    check_fingerprint(given, "e/l+R7QaTVA=", "changed")


@pytest.mark.parametrize("given", [None, "", "x", 1])
def test_another_fingerprint_is_412(given: object) -> None:
    with pytest.raises(ApiError, match="412 conditionNotMet: changed"):
        check_fingerprint(given, "e/l+R7QaTVA=", "changed")
