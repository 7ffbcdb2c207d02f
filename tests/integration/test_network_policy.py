"""What the network policies of the overlays let through, flow by flow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.checks.network_policy import Host, Pod, Policies
from tests.support.manifests import GKE, Manifest, built, of_a_site, only, pods

NARROW = {
    "apiServer": "172.16.0.0/28",
    "googleApis": "199.36.153.8/30",
    "proxy": "10.0.0.10/32",
    "proxyPort": "8080",
}
"""What a bank sets: a private cluster, Google's private addresses, a proxy on a port of its own."""
BUILDS: dict[str, Callable[[], list[Manifest]]] = {
    "gke-workload-identity": lambda: built(GKE, "backup"),
    "mixed": lambda: built("overlays/mixed", "backup"),
    "narrow": lambda: of_a_site(GKE, **NARROW),
}
RESOLVER = Pod("kube-system", {"k8s-app": "kube-dns"})
MONITORING, FOREIGN = Pod("monitoring", {}), Pod("foreign", {})


def pod_of(manifests: list[Manifest], kind: str = "Deployment") -> Pod:
    """Our pod as policies see it."""
    made = only(manifests, kind)["spec"]
    template = made["template"] if kind == "Deployment" else made["jobTemplate"]["spec"]["template"]
    (one,) = pods(manifests)[kind]["containers"]
    ports = {port["name"]: port["containerPort"] for port in one.get("ports", ())}
    return Pod(only(manifests, kind)["metadata"]["namespace"], template["metadata"]["labels"], ports)


def cluster(manifests: list[Manifest]) -> Policies:
    """A cluster that has these manifests, names, monitoring and others."""
    ours = {
        one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in manifests if one["kind"] == "Namespace"
    }
    others: dict[str, Any] = {"kube-system": {}, "monitoring": {"hostfactory/monitoring": "true"}, "foreign": {}}
    labels = ours | others | {"gmp-system": {}, "gke-gmp-system": {}}
    named = {name: {**own, "kubernetes.io/metadata.name": name} for name, own in labels.items()}  # as Kubernetes does
    return Policies([one for one in manifests if one["kind"] == "NetworkPolicy"], named)


def flows(manifests: list[Manifest], proxy: int) -> dict[str, tuple[Pod | Host, Pod | Host, int, str]]:
    """Every flow that the pod has, and some that it must not have; ``proxy``: the port of its proxy."""
    loop = pod_of(manifests)
    machine = Pod("symphony", {"app": "worker"})
    return {
        "names over UDP": (loop, RESOLVER, 53, "UDP"),
        "names over TCP": (loop, RESOLVER, 53, "TCP"),
        "names of the node's cache": (loop, Host("169.254.20.10"), 53, "UDP"),
        "API server": (loop, Host("172.16.0.2"), 443, "TCP"),
        "Google's APIs": (loop, Host("199.36.153.8"), 443, "TCP"),
        "the proxy": (loop, Host("10.0.0.10"), proxy, "TCP"),
        "metadata server": (loop, Host("169.254.169.254"), 80, "TCP"),
        "metadata server of the node": (loop, Host("169.254.169.252"), 988, "TCP"),
        "a scrape from monitoring": (MONITORING, loop, 9464, "TCP"),
        "a scrape by Managed Prometheus": (Pod("gmp-system", {}), loop, 9464, "TCP"),
        "a scrape by Autopilot's": (Pod("gke-gmp-system", {}), loop, 9464, "TCP"),
        "the proxy's other port": (loop, Host("10.0.0.10"), 22, "TCP"),
        "beside the proxy": (loop, Host("10.0.0.11"), proxy, "TCP"),
        "ssh to Google": (loop, Host("199.36.153.8"), 22, "TCP"),
        "plain HTTP to anywhere": (loop, Host("203.0.113.9"), 80, "TCP"),
        "HTTPS over UDP": (loop, Host("199.36.153.8"), 443, "UDP"),
        "another port of the metadata server": (loop, Host("169.254.169.254"), 444, "TCP"),
        "a machine": (loop, machine, 22, "TCP"),
        "a scrape from a foreign namespace": (FOREIGN, loop, 9464, "TCP"),
        "a scrape from the machines": (machine, loop, 9464, "TCP"),
        "a scrape from outside": (Host("10.9.9.9"), loop, 9464, "TCP"),
        "another port from monitoring": (MONITORING, loop, 22, "TCP"),
    }


SCRAPES = ("a scrape from monitoring", "a scrape by Managed Prometheus", "a scrape by Autopilot's")
ALLOWED = (
    *("names over UDP", "names over TCP", "names of the node's cache", "API server", "Google's APIs", "the proxy"),
    *("metadata server", "metadata server of the node"),
    *SCRAPES,
)


def passing(manifests: list[Manifest], proxy: int = 8080) -> set[str]:
    """The flows that are let through."""
    there = cluster(manifests)
    return {name for name, flow in flows(manifests, proxy).items() if there.allow(*flow)}


@pytest.mark.parametrize("build", BUILDS)
def test_the_loop_s_pod_has_the_flows_that_it_needs_and_no_others(build: str) -> None:
    assert passing(BUILDS[build](), 8080 if build == "narrow" else 3128) == {*ALLOWED}


def test_a_site_that_narrows_the_ranges_lets_nothing_else_out_on_443() -> None:
    manifests = BUILDS["narrow"]()
    outside = Host("203.0.113.9")

    assert not cluster(manifests).allow(pod_of(manifests), outside, 443)
    assert cluster(BUILDS["mixed"]()).allow(pod_of(manifests), outside, 443)


@pytest.mark.parametrize("build", ["gke-workload-identity", "mixed"])
def test_a_backup_reaches_nothing_and_nobody_reaches_it(build: str) -> None:
    manifests = BUILDS[build]()
    backup, there = pod_of(manifests, "CronJob"), cluster(manifests)

    for target, port, protocol in (
        (RESOLVER, 53, "UDP"),
        (Host("199.36.153.8"), 443, "TCP"),
        (pod_of(manifests), 9464, "TCP"),
    ):
        assert not there.allow(backup, target, port, protocol)
    assert not there.allow(MONITORING, backup, 9464)


def spoilt(manifests: list[Manifest], spoil: Callable[[Manifest], object]) -> list[Manifest]:
    """The same with the loop's policy changed."""
    made = copy.deepcopy(manifests)
    (policy,) = [one for one in made if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "provisioner"]
    spoil(policy["spec"])
    return made


@pytest.mark.parametrize(
    ("spoil", "changed"),
    [
        pytest.param(lambda spec: spec["egress"].pop(0), {*ALLOWED[:3]}, id="names"),
        pytest.param(lambda spec: spec["egress"].pop(1), {"API server"}, id="API server"),
        pytest.param(lambda spec: spec["egress"].pop(2), {"Google's APIs"}, id="Google's APIs"),
        pytest.param(lambda spec: spec["egress"].pop(3), {"the proxy"}, id="the proxy"),
        pytest.param(
            lambda spec: spec["egress"].pop(4), {"metadata server", "metadata server of the node"}, id="metadata server"
        ),
        pytest.param(lambda spec: spec["ingress"].pop(), {*SCRAPES}, id="monitoring"),
        pytest.param(lambda spec: spec["ingress"][0]["from"].pop(), {*SCRAPES[1:]}, id="Managed Prometheus"),
        pytest.param(
            lambda spec: spec["egress"][3].pop("ports"), {"the proxy's other port"}, id="the proxy on every port"
        ),
        pytest.param(
            lambda spec: spec["egress"][3]["to"][0]["ipBlock"].update(cidr="10.0.0.0/8"),
            {"beside the proxy"},
            id="every address as the proxy",
        ),
        pytest.param(
            lambda spec: spec["ingress"][0]["from"][0].update(namespaceSelector={}),
            {"a scrape from a foreign namespace", "a scrape from the machines"},
            id="every namespace as monitoring",
        ),
        pytest.param(
            lambda spec: spec["ingress"][0].pop("ports"),
            {"another port from monitoring"},
            id="monitoring on every port",
        ),
    ],
)
def test_each_rule_is_seen_by_a_flow(spoil: Callable[[Manifest], object], changed: set[str]) -> None:
    """Of the narrow site, whose rules overlap nowhere: a rule less, or one that is too wide."""
    manifests = BUILDS["narrow"]()

    assert passing(manifests) ^ passing(spoilt(manifests, spoil)) == changed
