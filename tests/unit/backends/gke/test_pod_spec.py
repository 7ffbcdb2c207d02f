"""The pod that a pool makes from any form of pod spec: the user's fields are kept, and ours are added."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.backends import BackendError
from provisioner.backends.gke.pod_spec import CONTAINERS as OURS
from provisioner.backends.gke.pod_spec import PodSpecError, PodSpecFile, parse_pod_spec
from provisioner.model import Create, ErrorClass

CREATE = Create("hf-abcdefghij-000007", "gke-main", "small", "abcdefghij")
LABELS = {"hf-provisioner/id": "demo"}
BODY = "containers: [{name: main, image: busybox}]"


def made(text: str) -> Any:
    return json.loads(parse_pod_spec(text, "symphony").body(CREATE, LABELS))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BODY, id="a spec body in YAML"),
        pytest.param('{"containers": [{"name": "main", "image": "busybox"}]}', id="a spec body in JSON"),
        pytest.param('{\n\t"containers": [{"name": "main", "image": "busybox"}]\n}', id="in JSON with tabs"),
        pytest.param("spec: {" + BODY + "}", id="a manifest without kind"),
        pytest.param("apiVersion: v1\nkind: Pod\nspec: {" + BODY + "}", id="a full manifest"),
        pytest.param("metadata: {name: x, generateName: y-}\nspec: {" + BODY + "}", id="with a name of its own"),
    ],
)
def test_every_form_makes_the_same_pod(text: str) -> None:
    assert made(text) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CREATE.name, "labels": LABELS, "annotations": {OURS: "main"}},
        "spec": {
            "containers": [{"name": "main", "image": "busybox"}],
            "hostname": CREATE.name,
            "restartPolicy": "Never",
        },
    }


RICH = """
apiVersion: v1
kind: Pod
metadata:
  namespace: symphony
  annotations: {owner: grid}
  labels: {kueue.x-k8s.io/queue-name: grid, hf-provisioner/id: mine}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 90
  nodeSelector: {cloud.google.com/compute-class: Balanced}
  tolerations: [{key: spot, operator: Exists}]
  subdomain: grid
  initContainers: [{name: setup, image: busybox, env: [{name: HOST, value: "{{machine}}"}]}]
  containers:
  - name: main
    image: busybox
    env:
    - {name: WHO, value: "{{machine}}/{{request}}/{{template}}/{{other}}"}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    volumeMounts: [{name: work, mountPath: /scratch}]
  volumes: [{name: work, emptyDir: {}}]
"""


@pytest.mark.parametrize("amount", ["4", "500m", "8Gi", "1e3", "0.5", ".5", "1.", "+1", "-1", "2k", "100n"])
def test_an_amount_that_the_server_reads_is_accepted(amount: str) -> None:
    resources = f"resources: {{limits: {{cpu: '{amount}'}}}}"
    pod = made(f"containers: [{{name: a, image: b, {resources}}}]")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": amount}


@pytest.mark.parametrize("amount", ["4 cores", "8GB", "4K", "four", "''", "true", "[4]", "1 Gi"])
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param("resources: {requests: {cpu: %s}}", "containers.0.resources.requests.cpu", id="a request"),
        pytest.param("resources: {limits: {memory: %s}}", "containers.0.resources.limits.memory", id="a limit"),
    ],
)
def test_an_amount_that_the_server_refuses_is_named_with_its_field(amount: str, spec: str, field: str) -> None:
    with pytest.raises(PodSpecError, match=f"^{field}: expected an amount such as 4, 500m or 8Gi, "):
        parse_pod_spec(f"containers: [{{name: a, image: b, {spec % amount}}}]", "symphony")


def test_the_size_of_a_volume_is_an_amount() -> None:
    volume = "volumes: [{name: v, emptyDir: {sizeLimit: %s}}]\n" + BODY
    assert made(volume % "1Gi")
    with pytest.raises(PodSpecError, match=r"^volumes\.0\.emptyDir\.sizeLimit: "):
        parse_pod_spec(volume % "1GB", "symphony")


def test_nothing_the_user_wrote_is_lost() -> None:
    pod = made(RICH)
    assert pod["metadata"]["annotations"] == {"owner": "grid", OURS: "main"}
    assert pod["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "grid", "hf-provisioner/id": "demo"}
    assert {key: value for key, value in pod["spec"].items() if key not in ("initContainers", "containers")} == {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 90,
        "nodeSelector": {"cloud.google.com/compute-class": "Balanced"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "subdomain": "grid",
        "hostname": CREATE.name,
        "volumes": [{"name": "work", "emptyDir": {}}],
    }
    assert pod["spec"]["containers"][0]["volumeMounts"] == [{"name": "work", "mountPath": "/scratch"}]


def test_placeholders_in_environment_values_are_filled_and_nothing_else() -> None:
    pod = made(RICH)
    assert pod["spec"]["initContainers"][0]["env"] == [{"name": "HOST", "value": CREATE.name}]
    assert pod["spec"]["containers"][0]["env"] == [
        {"name": "WHO", "value": f"{CREATE.name}/abcdefghij/small/{{{{other}}}}"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]


def test_what_our_own_values_replace_is_known() -> None:
    spec = parse_pod_spec(RICH.replace("subdomain: grid", "hostname: mine"), "symphony")
    assert spec.replaced(LABELS) == ["metadata.labels.hf-provisioner/id", "spec.hostname"]
    assert spec.replaced([]) == ["spec.hostname"]
    assert parse_pod_spec(BODY, "symphony").replaced(LABELS) == []


@pytest.mark.parametrize("value", ["2026-01-01", ".nan", "2026-01-01T12:00:00Z", "{a: 2026-01-01}"])
def test_what_our_own_values_replace_may_be_anything(value: str) -> None:
    text = f"metadata: {{name: {value}, generateName: {value}}}\nspec: {{hostname: {value}, {BODY}}}"
    assert made(text) == made(BODY)
    assert parse_pod_spec(text, "symphony").replaced(LABELS) == ["spec.hostname"]


@pytest.mark.parametrize("value", ["", "~", '""'])
def test_an_empty_hostname_is_not_said_to_be_replaced(value: str) -> None:
    assert parse_pod_spec(f"hostname: {value}\n{BODY}", "symphony").replaced(LABELS) == []


def test_a_number_in_json_stays_what_it_is() -> None:
    text = '{"activeDeadlineSeconds": 1e3, "containers": [{"name": "main", "image": "busybox"}]}'
    assert made(text)["spec"]["activeDeadlineSeconds"] == 1000


def test_making_one_pod_leaves_no_trace_in_the_next() -> None:
    spec = parse_pod_spec(RICH, "symphony")
    spec.body(CREATE, LABELS)
    other = json.loads(spec.body(Create("hf-abcdefghij-000008", "gke-main", "small", "abcdefghij"), {}))
    assert CREATE.name not in json.dumps(other)


def test_the_digest_changes_with_the_text_only() -> None:
    digest = parse_pod_spec(BODY, "symphony").digest
    assert parse_pod_spec(BODY, "symphony").digest == digest
    assert parse_pod_spec(BODY + " # new", "symphony").digest != digest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "line 1, column 5: expected the node content"),
        ("", "expected a pod's spec or a Pod manifest, got nothing"),
        ("[1]", r"expected a pod's spec or a Pod manifest, got \[1\]"),
        ("kind: Deployment\nspec: {}", "^kind: expected Pod, got 'Deployment'"),
        ("apiVersion: v2\nspec: {" + BODY + "}", "^apiVersion: expected v1, got 'v2'"),
        ("metadata: {}", "^spec: expected a mapping, got nothing"),
        ("metadata: {labels: {a: b}}\n" + BODY, "^spec: expected a mapping, got nothing"),
        ("spec: 3", "^spec: expected a mapping, got 3"),
        ("metadata: 3\nspec: {" + BODY + "}", "^metadata: expected a mapping, got 3"),
        ("containers: []", "^containers: missing; expected at least one container"),
        ("containers: {main: {}}", "^containers: expected a list of containers, got {'main': {}}"),
        ("containers: [main]", "^containers.0: expected a mapping, got 'main'"),
        ("containers: [{name: a}]", "^containers.0.image: expected a text"),
        ("initContainers: [{image: a}]\n" + BODY, "^initContainers.0.name: expected a text"),
        ("containers: [{name: a, image: b, env: {A: x}}]", "^containers.0.env: expected a list of variables"),
        ("containers: [{name: a, image: b, env: [A]}]", "^containers.0.env.0: expected a mapping, got 'A'"),
        (
            "containers: [{name: a, image: b, env: [{name: A, value: 1}]}]",
            r"^containers.0.env.0.value: expected a text \(in quotes\), got 1",
        ),
        ("metadata: {labels: {a: true}}\nspec: {" + BODY + "}", "^metadata.labels.a: expected a text"),
        ("metadata: {annotations: {a: 1}}\nspec: {" + BODY + "}", "^metadata.annotations.a: expected a text"),
        ("metadata: {namespace: other}\nspec: {" + BODY + "}", r"expected 'symphony' \(the pool\), got 'other'"),
        (BODY + "\n" + BODY, "^containers: given twice, in lines 1 and 2"),
        ('{"containers": [], "containers": []}', "^containers: given twice"),
        (BODY + "\nuntil: 2025-01-01", "quote dates and times"),
        (BODY + "\nfactor: .nan", "JSON cannot hold"),
    ],
)
def test_what_is_no_pod_is_refused_with_a_reason(text: str, problem: str) -> None:
    with pytest.raises(PodSpecError, match=problem):
        parse_pod_spec(text, "symphony")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(BODY)
    file = PodSpecFile(path, "symphony")
    before = file.current()
    assert file.current() is before
    path.write_text(BODY.replace("busybox", "alpine"))
    assert b"alpine" in file.current().body(CREATE, LABELS)


def test_a_file_that_became_bad_is_refused_once_in_the_log_and_the_old_spec_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(BODY)
    file = PodSpecFile(path, "symphony")
    before = file.current()
    path.write_text("containers: []")
    with caplog.at_level(logging.ERROR):
        assert [file.current(), file.current()] == [before, before]
    assert len(caplog.records) == 1
    (problem,) = file.problems()
    assert problem.startswith("the earlier pod spec stays in force, because the file is refused: ")
    assert "containers: missing" in problem
    path.write_text(BODY)
    file.current()
    assert file.problems() == ()
    path.unlink()
    assert file.current().digest == before.digest


def test_a_backend_does_not_begin_without_a_pod_spec(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        PodSpecFile(tmp_path / "missing.yaml", "symphony")
    assert caught.value.failure.error is ErrorClass.INVALID


# --- every pod is the user's document with our values in it -----------------------------------------------------------

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.lists(
        st.sampled_from(["{{machine}}", "{{request}}", "{{template}}", "{{other}}", "{", "}}", '"', "\\", "é", "😀"])
    ).map("".join),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
VARIABLES = st.lists(st.fixed_dictionaries({"name": TEXTS}, optional={"value": TEXTS, "valueFrom": VALUES}))
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": TEXTS, "image": TEXTS, "env": st.one_of(st.none(), VARIABLES)}), min_size=1
)


def by_hand(document: dict[str, Any], create: Create, labels: dict[str, str]) -> dict[str, Any]:
    """Return the pod of a manifest, made in the slow and obvious way."""
    pod = json.loads(json.dumps(document))
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = spec["hostname"] = create.name
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    names = ",".join(container["name"] for container in spec["containers"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), OURS: names}
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        for variable in container.get("env") or ():
            if isinstance(variable.get("value"), str):
                for key, text in (
                    ("machine", create.name),
                    ("request", create.request),
                    ("template", create.template),
                ):
                    variable["value"] = variable["value"].replace("{{" + key + "}}", text)
    return cast(dict[str, Any], pod)


@settings(max_examples=12)
@given(
    metadata=st.fixed_dictionaries(
        {},
        optional={"labels": st.dictionaries(TEXTS, TEXTS), "annotations": st.dictionaries(TEXTS, TEXTS), "name": TEXTS},
    ),
    spec=st.fixed_dictionaries({"containers": CONTAINERS}, optional={"initContainers": CONTAINERS, "volumes": VALUES}),
    template=TEXTS,
    labels=st.dictionaries(TEXTS, TEXTS),
)
def test_a_pod_is_what_filling_the_document_in_makes(
    metadata: dict[str, Any], spec: dict[str, Any], template: str, labels: dict[str, str]
) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"restartPolicy": "Always", **spec}}
    create = Create("hf-abcdefghij-000007", "gke-main", template, "abcdefghij")
    made = parse_pod_spec(json.dumps(document), "symphony").body(create, labels)
    assert json.loads(made) == by_hand(document, create, labels)
