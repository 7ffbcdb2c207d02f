"""The nodes of the simulated cluster, on demand and on Spot. The cluster adds nodes as pods need them. Each node has
room for 110 pods."""

from __future__ import annotations

from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.pod_status import timestamp
from provisioner.lab.cloud.kubernetes.store import Store, Stored
from provisioner.lab.cloud.world import World

FIRST_NODES = 3
PODS_PER_NODE = 110
"""Largest number of pods on a node; GKE's default."""
SPOT = {"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-provisioning": "spot"}
"""The labels that GKE gives to a node on Spot."""
POOL = "cloud.google.com/gke-nodepool"
KUBELET = "v1.33.5-gke.1201000"


class Nodes:
    """The nodes and the number of pods that each node runs."""

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._made = 0
        self._pods: dict[str, int] = {}
        """The number of pods that each node runs."""
        self._spot: set[str] = set()
        """The nodes that are on Spot."""
        for _ in range(FIRST_NODES):
            self._add()

    def bind(self, *, spot: bool) -> tuple[str, str]:
        """Add a pod to the emptiest node, and return the node's name and address. If all nodes are full, add a node.

        ``spot``: True to use only Spot nodes; False to use only nodes on demand.
        """
        pool = (name for name in self._pods if (name in self._spot) is spot)
        name = min(pool, key=self._pods.__getitem__, default="")
        if not name or self._pods[name] >= PODS_PER_NODE:
            name = self._add(spot=spot)
        self._pods[name] += 1
        node = self._store.get("", name)
        assert node is not None
        return name, node.document["status"]["addresses"][0]["address"]

    def unbind(self, name: str) -> None:
        """Free a pod's room on its node."""
        if self._pods.get(name):
            self._pods[name] -= 1

    def count(self) -> int:
        """Return the number of nodes."""
        return self._store.count("")

    def remove(self, node: Stored) -> Stored:
        """Remove a node. Return its last state. The node's pods stay, and are removed later."""
        self._pods.pop(node.name)
        self._spot.discard(node.name)
        return self._store.remove(node)

    def _add(self, *, spot: bool = False) -> str:
        self._made += 1
        pool = "spot-pool" if spot else "default-pool"
        name = f"gke-simulator-{pool}-{self._world.random.getrandbits(32):08x}-{self._made:04d}"
        address = f"10.128.{self._made // 250}.{self._made % 250 + 1}"
        uid = f"{self._world.random.getrandbits(128):032x}"
        self._store.put(
            _document(name, address, uid, timestamp(self._world.wall()), {POOL: pool, **(SPOT if spot else {})})
        )
        self._pods[name] = 0
        if spot:
            self._spot.add(name)
        return name


def _document(name: str, address: str, uid: str, now: str, pool: Json) -> Json:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        **pool,
        "node.kubernetes.io/instance-type": "n2-standard-16",
        "topology.kubernetes.io/zone": "us-central1-a",
    }
    room = {"cpu": "15890m", "memory": "58Gi", "pods": str(PODS_PER_NODE), "ephemeral-storage": "47060071478"}
    ready = {
        "type": "Ready",
        "status": "True",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    info = {
        "architecture": "amd64",
        "bootID": uid,
        "containerRuntimeVersion": "containerd://2.0.6",
        "kernelVersion": "6.6.97+",
        "kubeProxyVersion": KUBELET,
        "kubeletVersion": KUBELET,
        "machineID": uid,
        "operatingSystem": "linux",
        "osImage": "Container-Optimized OS from Google",
        "systemUUID": uid,
    }
    return {
        "metadata": {"name": name, "uid": uid, "creationTimestamp": now, "labels": labels},
        "spec": {"providerID": f"gce://simulator/us-central1-a/{name}"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "allocatable": room,
            "capacity": room,
            "conditions": [ready],
            "nodeInfo": info,
        },
    }
