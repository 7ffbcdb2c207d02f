"""Our schemas of other projects' resources, such as ComputeClass.

Each value that the published schemas refuse must be refused by ours, too.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.definitions import differences, published
from tests.support.manifests import schemas

pytestmark = pytest.mark.kube

BY_HAND = {"ComputeClass", "PodMonitoring"}
"""Kinds whose definitions no module has: ``$comment`` of their schemas says by what they were compared."""


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    found = dict(published())
    if not found:
        pytest.skip("needs Go, to get the definitions")
    return found


def published_version(definitions: dict[str, Any], version: str, kind: str) -> dict[str, Any]:
    """Return the published definition of one version of a kind."""
    (one,) = [one for one in definitions[kind]["spec"]["versions"] if one["name"] == version.partition("/")[2]]
    return dict(one)


def theirs(definitions: dict[str, Any], version: str, kind: str) -> dict[str, Any]:
    """Return the published schema of a version's spec."""
    spec: dict[str, Any] = published_version(definitions, version, kind)["schema"]["openAPIV3Schema"]["properties"][
        "spec"
    ]
    return spec


HELD = [key for key in schemas() if key[1] not in BY_HAND]


@pytest.mark.parametrize(("version", "kind"), HELD, ids=str)
def test_a_kind_is_used_in_a_version_that_its_makers_keep(definitions: dict[str, Any], version: str, kind: str) -> None:
    """Our manifests must use a version of each kind that its makers still serve and have not deprecated. Otherwise a
    later server would refuse our manifests."""
    one = published_version(definitions, version, kind)

    assert one["served"]
    assert not one.get("deprecated", False)


@pytest.mark.parametrize(("version", "kind"), HELD, ids=str)
def test_our_schema_takes_nothing_that_the_published_one_refuses(
    definitions: dict[str, Any], version: str, kind: str
) -> None:
    ours = schemas()[version, kind]["properties"]["spec"]
    assert list(differences(ours, theirs(definitions, version, kind))) == []
