"""Label and field selectors of the embedded Kubernetes API. A real API server reads them in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.cloud.kubernetes.errors import ApiError
from provisioner.lab.cloud.kubernetes.pods import KINDS
from provisioner.lab.cloud.kubernetes.selectors import selector
from provisioner.lab.cloud.kubernetes.store import Stored

PODS = next(kind for kind in KINDS if kind.resource == "pods")

POD: dict[str, Any] = {
    "metadata": {
        "name": "a",
        "namespace": "n",
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "grid", "slot": "000012", "hf-provisioner/pool": "main"},
    },
    "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "i"}], "hostNetwork": True},
    "status": {"phase": "Running", "podIP": "10.0.0.1"},
}


def matches(labels: str = "", fields: str = "") -> bool:
    match = selector("pods", labels, fields)
    return match is None or match(Stored(PODS, POD, 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("app=grid", True),
        ("app=other", False),
        ("app!=other", True),
        ("missing!=x", True),
        ("app in (grid, other)", True),
        ("app notin (other,else)", True),
        ("missing notin (x)", True),
        ("missing", False),
        ("!missing", True),
        ("slot>11", True),
        ("slot<12", False),
        ("hf-provisioner/pool=main,app in (grid,x),!missing", True),
        ("hf-provisioner/pool=main,app=x", False),
    ],
)
def test_label_selectors(text: str, expected: bool) -> None:
    assert matches(labels=text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metadata.name=a", True),
        ("metadata.name!=b,status.phase=Running", True),
        ("spec.nodeName=node-1,metadata.namespace=n", True),
        ("spec.nodeName=", False),
        ("status.nominatedNodeName=", True),
        ("spec.hostNetwork=true", True),
    ],
)
def test_field_selectors(text: str, expected: bool) -> None:
    assert matches(fields=text) is expected


@pytest.mark.parametrize(
    ("labels", "fields", "words"),
    [
        ("app in grid", "", "unable to parse requirement"),
        ("=x", "", "unable to parse requirement"),
        ("", "metadata.uid=u", "field label not supported: metadata.uid"),
        ("", "metadata.name", "invalid selector"),
    ],
)
def test_a_selector_that_means_nothing_is_a_bad_request(labels: str, fields: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        matches(labels, fields)
    assert caught.value.code == 400
