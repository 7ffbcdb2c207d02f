"""Patches of the embedded Kubernetes API: merge, strategic and JSON patch."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.cloud.kubernetes.errors import ApiError
from provisioner.lab.cloud.kubernetes.patch import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, apply_patch

OLD: dict[str, Any] = {
    "metadata": {"labels": {"a": "1", "b": "2"}},
    "spec": {"containers": [{"name": "x", "image": "1"}, {"name": "y", "image": "1"}]},
}


@pytest.mark.parametrize(
    ("kind", "patch", "path", "expected"),
    [
        (MERGE_PATCH, {"metadata": {"labels": {"a": None, "c": "3"}}}, ("metadata", "labels"), {"b": "2", "c": "3"}),
        (
            STRATEGIC_PATCH,
            {"spec": {"containers": [{"name": "y", "image": "2"}]}},
            ("spec", "containers"),
            [{"name": "x", "image": "1"}, {"name": "y", "image": "2"}],
        ),
        (
            STRATEGIC_PATCH,
            {"spec": {"containers": [{"name": "x", "$patch": "delete"}]}},
            ("spec", "containers"),
            [{"name": "y", "image": "1"}],
        ),
        (STRATEGIC_PATCH, {"metadata": {"$patch": "replace", "x": 1}}, ("metadata",), {"x": 1}),
        (
            JSON_PATCH,
            [{"op": "replace", "path": "/spec/containers/1/image", "value": "3"}],
            ("spec", "containers"),
            [{"name": "x", "image": "1"}, {"name": "y", "image": "3"}],
        ),
        (
            JSON_PATCH,
            [
                {"op": "test", "path": "/metadata/labels/a", "value": "1"},
                {"op": "remove", "path": "/metadata/labels/a"},
            ],
            ("metadata", "labels"),
            {"b": "2"},
        ),
        (
            JSON_PATCH,
            [
                {"op": "add", "path": "/metadata/labels/x~1y", "value": "3"},
                {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"},
                {"op": "copy", "from": "/metadata/labels/b", "path": "/metadata/labels/d"},
            ],
            ("metadata", "labels"),
            {"b": "2", "c": "1", "d": "2", "x/y": "3"},
        ),
        (
            JSON_PATCH,
            [{"op": "add", "path": "/spec/containers/-", "value": 1}, {"op": "remove", "path": "/spec/containers/0"}],
            ("spec", "containers"),
            [{"name": "y", "image": "1"}, 1],
        ),
    ],
)
def test_patches(kind: str, patch: object, path: tuple[str, ...], expected: object) -> None:
    before = repr(OLD)
    value: Any = apply_patch(OLD, patch, kind)
    for key in path:
        value = value[key]
    assert value == expected
    assert repr(OLD) == before, "the old document is as it was"


@pytest.mark.parametrize(
    ("kind", "patch", "code"),
    [
        ("application/apply-patch+yaml", {}, 415),
        (JSON_PATCH, {}, 400),
        (JSON_PATCH, [{"op": "test", "path": "/metadata/labels/a", "value": "9"}], 422),
        (JSON_PATCH, [{"op": "remove", "path": "/nothing/here"}], 422),
        (STRATEGIC_PATCH, {"spec": {"containers": [{"image": "2"}]}}, 400),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(kind: str, patch: object, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(OLD, patch, kind)
    assert caught.value.code == code
