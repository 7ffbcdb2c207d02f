"""The nodes that Google may take away at any time, by their labels: read if pods have come to unknown nodes.

A compute class chooses Spot nodes without a word in the pod; the answer is shown as a cause of a
machine's end, and is never state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from provisioner.backends import BackendError
from provisioner.backends.concurrency import Readings
from provisioner.backends.gke.api import METADATA, NOT_FOR_US, KubeApi, KubeError
from provisioner.backends.gke.pod_status import SPOT_SELECTORS
from provisioner.backends.responses import understood

log = logging.getLogger(__name__)

PATH = "/api/v1/nodes"
MOST = 20_000
"""Nodes that are remembered, more than a cluster has; the oldest are forgotten, and known again by their next pod."""
PAUSE_SECONDS = 30.0
"""Pause between two readings: a Spot node that lives shorter is known by its pod alone."""


class SpotNodes:
    """The Spot and preemptible nodes among those that pods were bound to. Thread-safe."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._nodes: dict[str, bool | None] = {}
        """True for a node on Spot, by name, in the order in which they were met; None: not asked yet."""
        self._readings = Readings("spot nodes")

    def is_spot(self, name: str) -> bool | None:
        """Return what the node's labels said; None, and the next reading asks for the node, before they were read."""
        if name and name not in self._nodes:
            with self._lock:
                self._nodes.setdefault(name, None)
                while len(self._nodes) > MOST:
                    del self._nodes[next(iter(self._nodes))]
        return self._nodes.get(name)

    def observe(self) -> None:
        """Begin to read if a node is not known, and the last reading is past; returns at once."""
        self._readings.begin(PAUSE_SECONDS, lambda: self._read if None in self._nodes.values() else None)

    def close(self) -> None:
        """Wait a moment for a reading that is under way."""
        self._readings.close()

    def _read(self) -> None:
        """Learn of each node that was met before this reading whether it is on Spot."""
        met = list(self._nodes)
        try:
            with understood():
                spot = frozenset(self._list())
        except BackendError as error:
            refused = isinstance(error, KubeError) and error.status in NOT_FOR_US
            self._readings.put_off(float("inf") if refused else error.retry_after or 0.0)
            if refused:
                log.info("Spot nodes are not known: the pods alone tell a preemption", extra=error.failure.facts)
            else:
                log.warning("Nodes could not be read", extra=error.failure.facts)
            return
        with self._lock:
            for name in met:
                if self._nodes.get(name, True) is not True:
                    self._nodes[name] = name in spot
        log.debug("Nodes read", extra={"nodes": len(met), "spot": len(spot)})

    def _list(self) -> Iterator[str]:
        """The names of all Spot nodes, page by page: a selector cannot name more than one label."""
        for selector in sorted(SPOT_SELECTORS):
            nodes = self._api.items(PATH, {"labelSelector": selector}, accept=METADATA)
            yield from (str(node["metadata"]["name"]) for node in nodes)
