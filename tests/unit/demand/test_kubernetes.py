"""Unschedulable pods as demand: effective requests, nodes, and the lists that are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.backends import BackendError
from provisioner.backends.gke.api import KubeApi
from provisioner.backends.gke.pod_spec import requested_amount
from provisioner.demand.kubernetes import MIRROR, Kubernetes, accepts, read_members, read_pod
from provisioner.demand.packing import JOIN_SECONDS, Jobs, Member
from provisioner.demand.sources import Fleet, Running, Shape, SourceError
from provisioner.model import ErrorClass
from provisioner.names import NO_TEMPLATE

NOW = 1_800_000_000.0
SHAPES = {"Small": Shape(4, 16_000, 0), "Gpu": Shape(8, 32_000, 2)}
FLEET = Fleet(NOW, SHAPES, {name: Running("Small", NOW - 100) for name in ("hf-1-1", "hf-1-2")})


def container(*, always: bool = False, **requests: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "c", "resources": {"requests": requests}}
    return made | ({"restartPolicy": "Always"} if always else {})


def pod(spec: Mapping[str, Any] | None = None, reason: str = "Unschedulable", **metadata: object) -> dict[str, Any]:
    """Return a pod that waits for a node."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason}
    whole = {"containers": [container(cpu="1", memory="1Gi")], **(spec or {})}
    return {"metadata": {"name": "p", **metadata}, "spec": whole, "status": {"conditions": [scheduled]}}


# --- effective requests (kubernetes.io/docs/concepts/resource-management/effective-pod-requests-limits) ---------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, 1.5),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="2")]}, 3),
        ({"containers": [container(cpu="3")], "initContainers": [container(cpu="2")]}, 3),
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(cpu="2"), container(always=True, cpu="1"), container(cpu="2")],
            },
            3,
        ),
        ({"containers": [container(cpu="2")], "initContainers": [container(always=True, cpu="1")]}, 3),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, 1.25),
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}}, 4),
        ({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}, 2),
        ({"containers": [{"name": "c"}], "initContainers": None}, 0),
    ],
    ids=[
        *("sum of containers", "largest init container", "containers exceed it", "beside an earlier sidecar"),
        *("sidecars run on", "overhead", "request of the whole pod", "limit without a request", "no request"),
    ],
)
def test_the_effective_request_is_that_of_the_scheduler(spec: Mapping[str, Any], expected: float) -> None:
    assert requested_amount(spec, "cpu") == expected


cores = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=4)


@given(cores, st.integers(0, 4))
def test_the_request_suffices_at_each_moment_and_not_more(inits: list[tuple[int, bool]], main: int) -> None:
    """The request of a pod must be the most that the pod needs at any moment of its start. Each init container runs
    beside the sidecars that have started before it."""
    running, moments = 0, [0]
    for cpus, is_sidecar in inits:
        moments.append(running + cpus)
        running += cpus * is_sidecar
    moments.append(running + main)
    spec = {
        "initContainers": [container(always=always, cpu=str(cpus)) for cpus, always in inits],
        "containers": [container(cpu=str(main))],
    }
    assert requested_amount(spec, "cpu") == max(moments)


# --- pods -------------------------------------------------------------------------------------------------------------


def jobs(waiting: Mapping[str, Any], **settings: Any) -> list[Jobs]:
    return read_pod(waiting, Kubernetes(**settings), FLEET)


def test_an_unschedulable_pod_is_a_job_of_its_request() -> None:
    assert jobs(pod()) == [Jobs(1, 1, 1024)]
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1500k"}}}
    assert jobs(pod({"containers": [limits]})) == [Jobs(1, 0, 2, 1)]


NO_CLAIM = 'persistentvolumeclaim "data" not found'


def waits(message: str) -> dict[str, Any]:
    """Return an unschedulable pod with the scheduler's message."""
    made = pod()
    made["status"]["conditions"][0]["message"] = message
    return made


@pytest.mark.parametrize(
    "waiting",
    [
        pod(reason="SchedulingGated"),
        pod(deletionTimestamp="2026-11-27T20:00:00Z"),
        pod() | {"status": {}},
        pod() | {"status": {**pod()["status"], "nominatedNodeName": "n1"}},
        *map(waits, ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", NO_CLAIM)),
    ],
    ids=["gated", "being deleted", "not tried yet", "others are preempted for it", "unbound claim", "no claim"],
)
def test_a_pod_that_a_new_node_would_not_help_does_not_count(waiting: Mapping[str, Any]) -> None:
    assert jobs(waiting) == []
    assert jobs(waits("0/3 nodes are available: 3 Insufficient cpu.")), "unlike these"


def test_a_node_selector_decides_on_the_templates() -> None:
    labels = {"Small": {"team": "risk", "disk": "ssd"}}
    assert jobs(pod({"nodeSelector": {"team": "risk"}}), node_labels=labels)[0].templates == {"Small"}
    assert jobs(pod({"nodeSelector": {"team": "web"}}), node_labels=labels)[0].templates == frozenset()
    assert jobs(pod({"nodeSelector": {"kubernetes.io/os": "linux"}}), node_labels=labels)[0].templates is None


def rule(operator: str, *values: str, key: str = "team") -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


LABELS = {"team": "risk", "cores": "8"}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([[rule("In", "risk", "web")]], True),
        ([[rule("In", "web")]], False),
        ([[rule("NotIn", "web")]], True),
        ([[rule("NotIn", "risk")]], False),
        ([[rule("NotIn", "a100", key="gpu")]], True),
        ([[rule("Exists"), rule("DoesNotExist", key="gpu")]], True),
        ([[rule("Exists", key="gpu")]], False),
        ([[rule("DoesNotExist")]], False),
        ([[rule("Gt", "7", key="cores"), rule("Lt", "9", key="cores")]], True),
        ([[rule("Gt", "8", key="cores")]], False),
        ([[rule("Lt", "8", key="cores")]], False),
        ([[rule("Lt", "10", key="cores")]], True),
        ([[rule("Lt", "7", key="gpu")]], False),
        ([[rule("Gt", "7")]], False),
        ([[rule("Gt", "7", key="kubernetes.io/arch")]], True),
        ([[rule("In", "web")], [rule("In", "risk")]], True),
        ([[rule("In", "risk"), rule("Exists", key="gpu")]], False),
        ([[rule("In", "arm64", key="kubernetes.io/arch")]], True),
    ],
)
def test_a_required_node_affinity_decides_on_the_templates(terms: list[list[Any]], expected: bool) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": rules} for rules in terms]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    assert accepts(LABELS, (), spec) is expected
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"preference": required}]}}
    assert accepts(LABELS, (), {"affinity": preferred}), "a wish is no hindrance"


def test_an_empty_term_of_an_affinity_matches_no_node() -> None:
    empty = {"matchExpressions": [], "matchFields": None}
    for terms, expected in ([{}], False), ([empty], False), ([empty, {"matchExpressions": [rule("In", "risk")]}], True):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        assert accepts(LABELS, (), {"affinity": {"nodeAffinity": required}}) is expected


def test_a_pod_of_a_daemon_set_asks_for_no_new_node() -> None:
    """A pod of a DaemonSet must not cause a new machine, because its controller binds it to one existing node by the
    field ``metadata.name``."""
    term = {"matchFields": [rule("In", "node-1", key="metadata.name")]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    (job,) = jobs(pod({"affinity": {"nodeAffinity": required}}))
    assert job.templates == frozenset()


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "grid", "operator": "Exists"}, True),
        ({"key": "grid", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "grid", "operator": "Equal", "value": "risk"}, True),
        ({"key": "grid", "value": "risk", "effect": "NoSchedule"}, True),
        ({"key": "grid", "value": "web"}, False),
        ({"key": "grid"}, False),
        ({"key": "grid", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "operator": "Exists"}, False),
    ],
)
def test_a_pod_tolerates_the_taints_of_a_template(toleration: Mapping[str, str], expected: bool) -> None:
    taints = {"Small": ["grid=risk:NoSchedule"], "Gpu": ["grid=risk:NoSchedule", "gpu:NoExecute"]}
    (job,) = jobs(pod({"tolerations": [toleration, {"key": "else", "operator": "Exists"}]}), node_taints=taints)
    everything = toleration == {"operator": "Exists"}
    assert job.templates == (None if everything else {"Small"} if expected else frozenset())
    assert jobs(pod(), node_taints=taints)[0].templates == frozenset()


@pytest.mark.parametrize("taint", ["grid", "grid=risk", "grid:PreferNoSchedule", ":NoSchedule", "a=b=c:NoSchedule"])
def test_another_form_of_a_taint_is_refused(taint: str) -> None:
    with pytest.raises(ValueError, match="node_taints"):
        Kubernetes(node_taints={"Small": [taint]})


# --- nodes ------------------------------------------------------------------------------------------------------------


def node(name: str = "hf-1-1", ready: str = "True", **spec: object) -> dict[str, Any]:
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {"cpu": "3920m", "memory": "15625Mi", "pods": "110"},
    }
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def bound(owner: str = "", **annotations: str) -> dict[str, Any]:
    """Return a pod on the node hf-1-1."""
    metadata = {"annotations": annotations, "ownerReferences": [{"kind": owner}] if owner else None}
    return pod({"nodeName": "hf-1-1", "containers": [container(cpu="1", memory="5Mi")]}, "", **metadata)


@pytest.mark.parametrize(
    ("found", "pods", "expected"),
    [
        (node(), [], Member(3.92, 15_625, 0, works=False)),
        (node("hf-1-1.c.project.internal"), [], Member(3.92, 15_625, 0, works=False)),
        (node(), [bound()], Member(2.92, 15_625 - 5, 0, works=True)),
        (node(), [bound("Job"), bound("DaemonSet")], Member(1.92, 15_625 - 10, 0, works=True)),
        (node(), [bound("DaemonSet")], Member(2.92, 15_625 - 5, 0, works=False)),
        (node(), [bound("Node", **{MIRROR: "x"})], Member(2.92, 15_625 - 5, 0, works=False)),
        ({"metadata": {"name": "hf-1-1"}, "spec": {}}, [bound()], Member(0, 0, 0, works=True)),
        (node(unschedulable=True), [], Member(0, 0, 0, works=False)),
        (node(ready="Unknown"), [bound()], Member(0, 0, 0, works=True)),
        (node(), [bound()] * 5, Member(0, 15_600, 0, works=True)),
    ],
    ids=[
        "empty",
        "full name",
        "pod",
        "pods",
        "DaemonSet",
        "mirror",
        "new",
        "cordoned",
        "not ready",
        "more than it has",
    ],
)
def test_a_node_works_if_it_has_a_pod_of_its_own(found: object, pods: list[Any], expected: Member) -> None:
    (member,) = read_members([found], pods, FLEET).values()
    assert member == pytest.approx(expected)


def test_nodes_that_are_not_ours_are_left_out() -> None:
    assert read_members([node("web"), node("hf-1-2")], [], FLEET).keys() == {"hf-1-2"}


# --- the source -------------------------------------------------------------------------------------------------------


class Lists:
    """The lists of an API server, and the calls that asked for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Mapping[str, str]]] = []
        self.nodes, self.bound, self.waiting = list[Any](), list[Any](), list[Any]()
        monkeypatch.setattr(KubeApi, "items", lambda _, path, query: self.items(path, query))

    def items(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        self.calls.append((path, query))
        if path.endswith("/nodes"):
            yield from self.nodes
        else:
            yield from self.bound if "spec.nodeName!=" in query["fieldSelector"] else self.waiting


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Return a file that names a server, which is never called."""
    clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    file = tmp_path / "kubeconfig"
    users = [{"name": "u", "user": {}}]
    file.write_text(json.dumps({"clusters": clusters, "contexts": contexts, "users": users, "current-context": "x"}))
    return file


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    return Lists(monkeypatch)


def test_pods_take_new_machines_and_empty_nodes_are_idle(lists: Lists, kubeconfig: Path) -> None:
    source = Kubernetes(kubeconfig=kubeconfig)
    lists.nodes, lists.waiting = [node("hf-1-1"), node("hf-1-2")], [pod()] * 5
    lists.nodes[1]["status"]["conditions"] = []
    first = source.read(FLEET)
    assert (dict(first.wanted), first.idle) == ({"Small": 2}, {}), "a ready and a new one"
    assert [path for path, _ in lists.calls] == ["/api/v1/pods", "/api/v1/nodes", "/api/v1/pods"]
    lists.bound, lists.waiting = [bound()], []
    second = source.read(FLEET._replace(now=NOW + 30))
    assert (dict(second.wanted), second.idle) == ({"Small": 1}, {"hf-1-2": 30})


def test_pods_that_need_gpus_count_before_the_first_node_has_its_gpus(lists: Lists, kubeconfig: Path) -> None:
    """A DaemonSet reports a node's GPUs minutes after the node has joined. Without this rule, the node would be the
    largest machine of its template, so that no template would fit the pods any more."""
    fleet = FLEET._replace(running={"hf-1-1": Running("Gpu", NOW - 100)})
    lists.nodes, lists.waiting = [node()], [pod({"containers": [container(**{"nvidia.com/gpu": "1"})]})]
    source = Kubernetes(kubeconfig=kubeconfig)
    assert source.read(fleet).wanted == {"Gpu": 1}
    late = source.read(fleet._replace(now=NOW + JOIN_SECONDS))
    assert (dict(late.wanted), late.unfit) == ({}, {"0 CPUs, 0 MB, 1 GPUs": 1}), "a machine that never gets GPUs"
    lists.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    source.read(fleet._replace(now=NOW + JOIN_SECONDS + 30))
    assert source.read(fleet._replace(now=NOW + JOIN_SECONDS + 60)).wanted == {"Gpu": 1}


def test_a_cluster_that_other_machines_join_counts_only_the_named_templates(lists: Lists, kubeconfig: Path) -> None:
    pilots = {f"pilot-{number}": Running("Gpu", NOW - JOIN_SECONDS - 1) for number in range(10)}
    lists.waiting = [pod({"containers": [container(**{"nvidia.com/gpu": "1"})]})]
    settings = Kubernetes(kubeconfig=kubeconfig, only_templates=("Small",))
    reading = settings.read(FLEET._replace(running=pilots))
    assert (dict(reading.wanted), settings.templates()) == ({}, {"Small"})
    assert reading.unfit == {"0 CPUs, 0 MB, 1 GPUs": 1}
    lists.waiting = []
    assert Kubernetes(kubeconfig=kubeconfig).read(FLEET._replace(running=pilots)).wanted == {}


@pytest.mark.parametrize("only", [(), ("Small",)])
def test_a_machine_whose_template_was_lost_is_idle_if_it_has_no_work(
    lists: Lists, kubeconfig: Path, only: tuple[str, ...]
) -> None:
    fleet = FLEET._replace(running={name: Running(NO_TEMPLATE, NOW) for name in ("hf-1-1", "hf-1-2")})
    lists.nodes, lists.bound = [node("hf-1-1"), node("hf-1-2")], [bound()]
    source = Kubernetes(kubeconfig=kubeconfig, only_templates=only)
    source.read(fleet)
    assert source.read(fleet._replace(now=NOW + 30)).idle == {"hf-1-2": 30}


def test_only_pods_of_the_namespaces_and_the_selector_are_asked_for(lists: Lists, kubeconfig: Path) -> None:
    source = Kubernetes(kubeconfig=kubeconfig, namespaces=("a", "b", "a"), selector="team=risk")
    lists.waiting = [pod()]
    assert source.read(FLEET._replace(running={})).wanted == {"Small": 1}
    assert [path for path, _ in lists.calls] == ["/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"]
    assert {query["labelSelector"] for _, query in lists.calls} == {"team=risk"}


def test_a_failed_list_or_an_odd_pod_is_a_failed_read(
    lists: Lists, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Kubernetes(kubeconfig=kubeconfig)
    lists.waiting = [{**pod(), "spec": {}}]
    with pytest.raises(SourceError, match="answer not understood"):
        source.read(FLEET)

    def refuse(*_: object) -> Iterator[Any]:
        raise BackendError(ErrorClass.DENIED, "pods is forbidden")

    monkeypatch.setattr(lists, "items", refuse)
    with pytest.raises(SourceError, match="pods is forbidden"):
        source.read(FLEET)


def test_a_login_that_names_no_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing cannot be used"):
        Kubernetes(kubeconfig=tmp_path / "missing").read(FLEET)
