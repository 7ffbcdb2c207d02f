"""The nodes that Google may preempt, by their labels. If a pod is bound to an unknown node, the labels are read again.

A compute class may choose Spot nodes although no field of the pod shows this. Only the node's labels show the choice.
The labels serve only to name the cause of a machine's end, and are not stored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from provisioner.backends import BackendError
from provisioner.backends.concurrency import Readings
from provisioner.backends.gke.api import METADATA, NOT_FOR_US, KubeApi, KubeError
from provisioner.backends.gke.pod_status import SPOT_SELECTORS
from provisioner.backends.responses import translated_errors

log = logging.getLogger(__name__)

PATH = "/api/v1/nodes"
MOST = 20_000
"""Number of nodes that are remembered: more than a cluster has. The oldest are forgotten, and are read again when
they get another pod."""
PAUSE_SECONDS = 30.0
"""Seconds between two readings. The labels of a Spot node that lives for a shorter time may never be read. Only the
spec of its pod can then show that it was a Spot node."""


class SpotNodes(Readings):
    """The Spot and preemptible nodes among the nodes to which pods were bound. Thread-safe."""

    def __init__(self, api: KubeApi) -> None:
        super().__init__("spot nodes")
        self._api = api
        self._nodes_lock = threading.Lock()
        self._nodes: dict[str, bool | None] = {}
        """By node name, in the order of first use: True for Spot, False for any other node, None if its labels were
        not read yet."""

    def is_spot(self, name: str) -> bool | None:
        """Return True if the labels of the node show that it is a Spot node; None if the labels were not read yet. The
        next reading reads missing labels."""
        if name and name not in self._nodes:
            with self._nodes_lock:
                self._nodes.setdefault(name, None)
                while len(self._nodes) > MOST:
                    del self._nodes[next(iter(self._nodes))]
        return self._nodes.get(name)

    def observe(self) -> None:
        """Begin to read if a node is unknown and the pause is over. Return at once."""
        self.begin(PAUSE_SECONDS, lambda: self._read if None in self._nodes.values() else None)

    def _read(self) -> None:
        """Read the names of the Spot nodes. Note which nodes are Spot nodes. A node that became known during the
        reading is left for the next reading."""
        met = list(self._nodes)
        try:
            with translated_errors():
                spot = frozenset(self._list())
        except BackendError as error:
            refused = isinstance(error, KubeError) and error.status in NOT_FOR_US
            self.put_off(float("inf") if refused else error.retry_after or 0.0)
            if refused:
                log.info("Spot nodes are not known: only the pods show a preemption", extra=error.failure.log_fields)
            else:
                log.warning("Nodes could not be read", extra=error.failure.log_fields)
            return
        with self._nodes_lock:
            for name in met:
                if self._nodes.get(name, True) is not True:
                    self._nodes[name] = name in spot
        log.debug("Nodes read", extra={"nodes": len(met), "spot": len(spot)})

    def _list(self) -> Iterator[str]:
        """Yield the names of all Spot nodes. Each label needs a list of its own. A selector with two labels finds only
        nodes with both labels."""
        for selector in sorted(SPOT_SELECTORS):
            nodes = self._api.items(PATH, {"labelSelector": selector}, accept=METADATA)
            yield from (str(node["metadata"]["name"]) for node in nodes)
