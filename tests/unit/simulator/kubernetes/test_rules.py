"""The simulated API server's pure rules: selectors, patches, forms, tables, and which faults are known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from provisioner.simulator import cloud
from provisioner.simulator.cloud import Conditions
from provisioner.simulator.kubernetes import kubeconfig
from provisioner.simulator.kubernetes.errors import ApiError
from provisioner.simulator.kubernetes.form import Form, Shape, negotiate
from provisioner.simulator.kubernetes.patch import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, apply_patch
from provisioner.simulator.kubernetes.pods import KINDS
from provisioner.simulator.kubernetes.selectors import selector
from provisioner.simulator.kubernetes.store import Stored
from provisioner.simulator.kubernetes.table import duration, pod_word

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
        ("app==grid", True),
        ("app=other", False),
        ("app!=other", True),
        ("missing!=x", True),
        ("app in (grid, other)", True),
        ("app in (other)", False),
        ("app notin (other,else)", True),
        ("missing notin (x)", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("slot>11", True),
        ("slot<12", False),
        ("app>1", False),
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
        ("metadata.name==b", False),
        ("metadata.name!=b,status.phase=Running", True),
        ("spec.nodeName=node-1,metadata.namespace=n", True),
        ("spec.nodeName=", False),
        ("status.nominatedNodeName=", True),
        ("spec.hostNetwork=true", True),
        ("status.phase!=Running", False),
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


OLD: dict[str, Any] = {
    "metadata": {"labels": {"a": "1", "b": "2"}},
    "spec": {"containers": [{"name": "x", "image": "1"}, {"name": "y", "image": "1"}]},
}


@pytest.mark.parametrize(
    ("kind", "patch", "path", "expected"),
    [
        (MERGE_PATCH, {"metadata": {"labels": {"a": None, "c": "3"}}}, ("metadata", "labels"), {"b": "2", "c": "3"}),
        (MERGE_PATCH, {"spec": {"containers": []}}, ("spec", "containers"), []),
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
        (MERGE_PATCH, [], 400),
        (JSON_PATCH, {}, 400),
        (JSON_PATCH, [{"op": "test", "path": "/metadata/labels/a", "value": "9"}], 422),
        (JSON_PATCH, [{"op": "remove", "path": "/nothing/here"}], 422),
        (JSON_PATCH, [{"op": "sing", "path": "/metadata"}], 422),
        (JSON_PATCH, ["x"], 422),
        (STRATEGIC_PATCH, {"spec": {"containers": [{"image": "2"}]}}, 400),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(kind: str, patch: object, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(OLD, patch, kind)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("accept", "shape"),
    [
        ("", Shape.FULL),
        ("*/*", Shape.FULL),
        ("application/vnd.kubernetes.protobuf,application/json", Shape.FULL),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Shape.TABLE),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Shape.PARTIAL),
        ("application/json;as=Unknown,application/json", Shape.FULL),
    ],
)
def test_the_first_form_that_can_be_written_is_taken(accept: str, shape: Shape) -> None:
    assert negotiate(accept, "") == Form(shape)


def test_a_form_that_cannot_be_written_is_not_acceptable() -> None:
    with pytest.raises(ApiError) as caught:
        negotiate("application/vnd.kubernetes.protobuf", "")
    assert caught.value.code == 406


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (3600, "60m"),
        (4 * 3600 + 60, "4h1m"),
        (86400, "24h"),
        (3 * 86400 + 3600, "3d1h"),
        (9 * 86400, "9d"),
    ],
)
def test_ages_read_as_kubectls(seconds: float, text: str) -> None:
    assert duration(seconds) == text


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "Running"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "X"}}}]}}, "X"),
        (
            {"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "Error"}}}]}},
            "Error",
        ),
        ({"status": {"phase": "Pending", "conditions": [GATED]}}, "SchedulingGated"),
        ({"metadata": {"deletionTimestamp": "now"}}, "Terminating"),
    ],
)
def test_the_one_word_for_a_pod(changes: dict[str, Any], word: str) -> None:
    assert pod_word({**POD, **changes}) == word


# --- conditions -------------------------------------------------------------------------------------------------------


def test_every_mode_that_some_part_asks_for_is_known_and_explained_and_no_other() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(cloud.__file__).parent.rglob("*.py")]
    asked = {mode for text in sources for mode in re.findall(r"strikes\(\s*\"([a-z_]+)\"", text, re.IGNORECASE)}
    by_a_variable = {"op_error", "op_gone", "op_stuck", "precondition", "abandoned", "deleted", "preemption"}
    by_a_variable |= {"recreated", "stopped", "clock_skew"}
    assert asked | by_a_variable == cloud.MODES
    explained = {mode for text in sources for mode in re.findall(r"^([a-z_]+) +\S", text, re.MULTILINE)}
    assert explained >= cloud.MODES


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "the document: expected an object"),
        ({"fault": []}, "the document: unknown field 'fault'; known: faults, switches, timings"),
        ({"faults": {}}, "faults: expected a list"),
        ({"faults": ["x"]}, r"faults\[0\]: it: expected an object, got 'x'"),
        ({"faults": [{"mode": "quota"}, {"mode": "qota"}]}, r"faults\[1\]: mode: unknown mode 'qota'; known: .*quota"),
        ({"faults": [{"mode": "quota", "target": "["}]}, r"faults\[0\]: target: not a regular expression"),
        ({"faults": [{"mode": "quota", "rate": "1"}]}, r"faults\[0\]: rate: expected a number, got '1'"),
        ({"faults": [{"mode": "quota", "params": 3}]}, r"faults\[0\]: params: expected an object"),
        ({"timings": {"aks": {}}}, "timings: unknown field 'aks'"),
        ({"timings": {"gke": {"strat": 1}}}, "strat: unknown timing"),
    ],
)
def test_mistakes_in_conditions_are_named(document: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Conditions.parse(document)


def test_conditions_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{mode: quota, target: a, params: {limit: 1}}]\ntimings: {gke: {start: 1}}\n")
    conditions = Conditions.read(path)
    assert conditions.faults[0].params == {"limit": 1}
    assert conditions.gke is not None
    assert conditions.gke.start == (1.0, 1.0)
    assert conditions.mig is None


def test_a_file_of_conditions_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml"):
        Conditions.read(tmp_path / "none.yaml")


def test_a_kubeconfig_of_a_persons_own_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "config"
    document = kubeconfig.kubeconfig("http://127.0.0.1:1", "default", {})
    kubeconfig.write(path, document)
    kubeconfig.write(path, document)
    path.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(FileExistsError, match="left alone"):
        kubeconfig.write(path, document)
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"
