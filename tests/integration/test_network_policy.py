"""Flows that the network policies of the overlays allow, one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any

import pytest
import yaml

from tests.support.checks.network_policy import Host, Pod, Policies
from tests.support.manifests import GKE, KUSTOMIZE, Manifest, built, of_a_site, only, pods

OWN = {
    "apiServer": "172.16.0.0/28",
    "googleApis": "199.36.153.4/30",
    "proxy": "10.0.0.12/32",
    "proxyPort": "8080",
    "nameServer": "10.61.0.10/32",
}
"""Values of a site: an older private cluster without Dataplane V2, restricted.googleapis.com, a proxy."""
DEFAULTS: dict[str, str] = yaml.safe_load((KUSTOMIZE / GKE / "values.yaml").read_text())["data"]
BUILDS: dict[str, Callable[[], list[Manifest]]] = {
    "gke-workload-identity": lambda: built(GKE, "backup"),
    "mixed": lambda: built("overlays/mixed", "backup"),
    "own": lambda: of_a_site(GKE, **OWN),
}
RESOLVER = Pod("kube-system", {"k8s-app": "kube-dns"})
MONITORING, FOREIGN = Pod("monitoring", {}), Pod("foreign", {})


def pod_of(manifests: list[Manifest], kind: str = "Deployment") -> Pod:
    """Return our pod as policies see it."""
    made = only(manifests, kind)["spec"]
    template = made["template"] if kind == "Deployment" else made["jobTemplate"]["spec"]["template"]
    (one,) = pods(manifests)[kind]["containers"]
    ports = {port["name"]: port["containerPort"] for port in one.get("ports", ())}
    return Pod(only(manifests, kind)["metadata"]["namespace"], template["metadata"]["labels"], ports)


def cluster(manifests: list[Manifest]) -> Policies:
    """Return a cluster with these manifests, and with namespaces for name servers, for monitoring and for others."""
    ours = {
        one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in manifests if one["kind"] == "Namespace"
    }
    others: dict[str, Any] = {"kube-system": {}, "monitoring": {"hostfactory/monitoring": "true"}, "foreign": {}}
    labels = ours | others | {"gmp-system": {}, "gke-gmp-system": {}}
    named = {name: {**own, "kubernetes.io/metadata.name": name} for name, own in labels.items()}  # as Kubernetes does
    return Policies([one for one in manifests if one["kind"] == "NetworkPolicy"], named)


def flows(manifests: list[Manifest], values: Mapping[str, str]) -> dict[str, tuple[Pod | Host, Pod | Host, int, str]]:
    """Return every flow that the pod needs, and some that it must not have. ``values``: the site's values."""
    loop = pod_of(manifests)
    machine = Pod("symphony", {"app": "worker"})
    server, google, proxy, names = (
        Host(str(ip_network(values[name])[0])) for name in ("apiServer", "googleApis", "proxy", "nameServer")
    )
    port = int(values["proxyPort"])
    return {
        "names over UDP": (loop, RESOLVER, 53, "UDP"),
        "names over TCP": (loop, RESOLVER, 53, "TCP"),
        "names of the cache's pod": (loop, Pod("kube-system", {"k8s-app": "node-local-dns"}), 53, "UDP"),
        "names of the node's cache": (loop, names, 53, "UDP"),
        "names of Cloud DNS": (loop, Host("169.254.169.254"), 53, "UDP"),
        "API server": (loop, server, 443, "TCP"),
        "Google's APIs": (loop, google, 443, "TCP"),
        "the proxy": (loop, proxy, port, "TCP"),
        "metadata server": (loop, Host("169.254.169.254"), 80, "TCP"),
        "metadata server of the node": (loop, Host("169.254.169.252"), 988, "TCP"),
        "a scrape from monitoring": (MONITORING, loop, 9464, "TCP"),
        "a scrape by Managed Prometheus": (Pod("gmp-system", {}), loop, 9464, "TCP"),
        "a scrape by Autopilot's": (Pod("gke-gmp-system", {}), loop, 9464, "TCP"),
        "names of another server": (loop, Host("203.0.113.53"), 53, "UDP"),
        "names over TCP of another server": (loop, Host("203.0.113.53"), 53, "TCP"),
        "names of a pod elsewhere": (loop, Pod("foreign", {"k8s-app": "kube-dns"}), 53, "UDP"),
        "names of another pod of the system": (loop, Pod("kube-system", {"k8s-app": "konnectivity"}), 53, "UDP"),
        "another port of the name server": (loop, RESOLVER, 9153, "TCP"),
        "HTTPS to anywhere": (loop, Host("203.0.113.9"), 443, "TCP"),
        "the proxy's other port": (loop, proxy, 22, "TCP"),
        "beside the proxy": (loop, Host("10.0.0.11"), port, "TCP"),
        "ssh to Google": (loop, google, 22, "TCP"),
        "plain HTTP to anywhere": (loop, Host("203.0.113.9"), 80, "TCP"),
        "HTTPS over UDP": (loop, google, 443, "UDP"),
        "another port of the metadata server": (loop, Host("169.254.169.254"), 444, "TCP"),
        "a machine": (loop, machine, 22, "TCP"),
        "a scrape from a foreign namespace": (FOREIGN, loop, 9464, "TCP"),
        "a scrape from the machines": (machine, loop, 9464, "TCP"),
        "a scrape from outside": (Host("10.9.9.9"), loop, 9464, "TCP"),
        "another port from monitoring": (MONITORING, loop, 22, "TCP"),
    }


SCRAPES = ("a scrape from monitoring", "a scrape by Managed Prometheus", "a scrape by Autopilot's")
NAMES = (
    *(
        "names over UDP",
        "names over TCP",
        "names of the cache's pod",
        "names of the node's cache",
        "names of Cloud DNS",
    ),
)
ALLOWED = (
    *NAMES,
    *("API server", "Google's APIs", "the proxy", "metadata server", "metadata server of the node"),
    *SCRAPES,
)


def passing(manifests: list[Manifest], values: Mapping[str, str] = DEFAULTS) -> set[str]:
    """Return the flows that are let through."""
    there = cluster(manifests)
    return {name for name, flow in flows(manifests, values).items() if there.allow(*flow)}


@pytest.mark.parametrize("build", BUILDS)
def test_the_loop_s_pod_has_the_flows_that_it_needs_and_no_others(build: str) -> None:
    assert passing(BUILDS[build](), OWN if build == "own" else DEFAULTS) == {*ALLOWED}


def test_no_rule_lets_out_to_everywhere() -> None:
    rules = [
        rule for one in BUILDS["mixed"]() if one["kind"] == "NetworkPolicy" for rule in one["spec"].get("egress", ())
    ]
    blocks = [peer["ipBlock"]["cidr"] for rule in rules for peer in rule["to"] if "ipBlock" in peer]

    assert len(blocks) > len(rules) > 0
    assert [block for block in blocks if ip_network(block).prefixlen < 28] == []


@pytest.mark.parametrize("build", ["gke-workload-identity", "mixed"])
def test_a_backup_reaches_nothing_and_is_not_reached(build: str) -> None:
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
    """Return a copy of the manifests, with the loop's policy changed."""
    made = copy.deepcopy(manifests)
    (policy,) = [one for one in made if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "provisioner"]
    spoil(policy["spec"])
    return made


@pytest.mark.parametrize(
    ("spoil", "changed"),
    [
        pytest.param(lambda spec: spec["egress"].pop(0), {*NAMES}, id="names"),
        pytest.param(lambda spec: spec["egress"][0]["to"].pop(0), {NAMES[3]}, id="the node's cache"),
        pytest.param(lambda spec: spec["egress"][0]["to"].pop(1), {NAMES[4]}, id="Cloud DNS"),
        pytest.param(lambda spec: spec["egress"][0]["to"].pop(2), {*NAMES[:3]}, id="the system's name servers"),
        pytest.param(
            lambda spec: spec["egress"][0].pop("to"),
            {"names of another server", "names over TCP of another server", "names of a pod elsewhere"}
            | {"names of another pod of the system"},
            id="every name server",
        ),
        pytest.param(
            lambda spec: spec["egress"][0]["to"][2].pop("podSelector"),
            {"names of another pod of the system"},
            id="every pod of the system",
        ),
        pytest.param(
            lambda spec: spec["egress"][0]["to"][2].update(namespaceSelector={}),
            {"names of a pod elsewhere"},
            id="name servers of every namespace",
        ),
        pytest.param(
            lambda spec: spec["egress"][0].pop("ports"),
            {"another port of the name server", "another port of the metadata server"},
            id="name servers on every port",
        ),
        pytest.param(
            lambda spec: spec["egress"][2]["to"][0]["ipBlock"].update(cidr="0.0.0.0/0"),
            {"HTTPS to anywhere"},
            id="everywhere as Google",
        ),
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
    """Remove or widen one rule of the loop's policy. Exactly the expected flows must then be blocked, or let
    through."""
    manifests = BUILDS["mixed"]()

    assert passing(manifests) ^ passing(spoilt(manifests, spoil)) == changed
