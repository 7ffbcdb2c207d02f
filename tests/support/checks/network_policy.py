"""Decide from manifests whether network policies allow a flow, by the rules in Kubernetes' documentation.

No network plug-in has tested these rules. A plug-in that departs from the documentation may decide otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Literal

from tests.support.manifests import Manifest

Labels = Mapping[str, str]
Direction = Literal["ingress", "egress"]
PEERS: Mapping[Direction, str] = {"ingress": "from", "egress": "to"}


@dataclass(frozen=True)
class Pod:
    """A pod. ``ports``: port numbers by the names in the pod's containers."""

    namespace: str
    labels: Labels
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """A host outside of the cluster. Its address identifies the host."""

    address: str


@dataclass(frozen=True)
class Policies:
    """The network policies of a cluster, and the labels of its namespaces."""

    policies: Sequence[Manifest]
    namespaces: Mapping[str, Labels]

    def allow(self, source: Pod | Host, target: Pod | Host, port: int, protocol: str = "TCP") -> bool:
        """Return True if the policies allow a connection at both ends.

        The ends are egress at ``source`` and ingress at ``target``.
        """
        return self._passes("egress", source, target, target, port, protocol) and self._passes(
            "ingress", target, source, target, port, protocol
        )

    def _passes(
        self, way: Direction, of: Pod | Host, peer: Pod | Host, target: Pod | Host, port: int, protocol: str
    ) -> bool:
        """Return True if one direction is allowed: no policy isolates the pod, or one rule of one policy matches."""
        if isinstance(of, Host):
            return True
        isolating = [one for one in self.policies if way in _types(one["spec"]) and self._selects(one, of)]
        return not isolating or any(
            _of_ports(rule.get("ports"), target, port, protocol)
            and self._of_peers(rule.get(PEERS[way]), _namespace(one), peer)
            for one in isolating
            for rule in one["spec"].get(way) or ()
        )

    def _selects(self, policy: Manifest, pod: Pod) -> bool:
        return _namespace(policy) == pod.namespace and matches(policy["spec"].get("podSelector"), pod.labels)

    def _of_peers(self, peers: Sequence[Manifest] | None, namespace: str, peer: Pod | Host) -> bool:
        """Return True if the rule lists no peers, or if one of the peers matches."""
        return not peers or any(self._of_peer(one, namespace, peer) for one in peers)

    def _of_peer(self, one: Manifest, namespace: str, peer: Pod | Host) -> bool:
        """Return True if this peer of a rule matches. A block of addresses matches only hosts outside of the cluster.
        If the peer has two selectors, both have to match."""
        if "ipBlock" in one:
            return isinstance(peer, Host) and in_block(one["ipBlock"], peer.address)
        if isinstance(peer, Host):
            return False
        there = self.namespaces[peer.namespace]
        near = matches(one["namespaceSelector"], there) if "namespaceSelector" in one else peer.namespace == namespace
        return near and matches(one.get("podSelector"), peer.labels)


def matches(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Return True if a label selector matches these labels; an empty selector matches all."""
    given = selector or {}
    return dict(given.get("matchLabels") or {}).items() <= dict(labels).items() and all(
        _holds(one["operator"], labels.get(one["key"]), one.get("values") or ())
        for one in given.get("matchExpressions") or ()
    )


def _holds(operator: str, value: str | None, values: Iterable[str]) -> bool:
    answers = {
        "In": value is not None and value in values,
        "NotIn": value is None or value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return answers[operator]


def in_block(block: Manifest, address: str) -> bool:
    """Return True if an address is in a block, and in none of the block's exceptions."""
    excepted = any(ip_address(address) in ip_network(each) for each in block.get("except", ()))
    return ip_address(address) in ip_network(block["cidr"]) and not excepted


def _types(spec: Manifest) -> set[str]:
    """Return the directions of a policy: by default always Ingress, and Egress if there are rules for it."""
    named = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return {one.lower() for one in named}


def _of_ports(ports: Sequence[Manifest] | None, target: Pod | Host, port: int, protocol: str) -> bool:
    """Return True if the rule lists no ports, or if one of the ports matches."""
    return not ports or any(_of_port(one, target, port, protocol) for one in ports)


def _of_port(one: Manifest, target: Pod | Host, port: int, protocol: str) -> bool:
    first = one.get("port")
    if isinstance(first, str):
        first = target.ports.get(first) if isinstance(target, Pod) else None
        is_it = first == port
    else:
        is_it = first is None or first <= port <= one.get("endPort", first)
    return is_it and one.get("protocol", "TCP") == protocol


def _namespace(policy: Manifest) -> str:
    return str(policy["metadata"].get("namespace", "default"))
