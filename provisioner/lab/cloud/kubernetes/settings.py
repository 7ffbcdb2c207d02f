"""Durations in the simulated Kubernetes cluster, in seconds of simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.lab.cloud.timing import Delay, parse_timings


@dataclass(frozen=True)
class PodTimings:
    """Durations in the model. The defaults are as in a cluster whose nodes have room; tests and the demo use shorter
    durations."""

    schedule: Delay = (0.5, 2.0)
    """Time from a pod's create until the pod is bound to a node. The growth of a node pool takes minutes, which the
    fault ``slow_start`` simulates."""
    start: Delay = (1.5, 6.0)
    """Time from the binding of a pod to the start of its containers: volumes, image, network."""
    ready: Delay = (0.5, 2.0)
    """Time from the start of a pod's containers until the pod is Ready."""
    stop: Delay = (2.0, 20.0)
    """Time from SIGTERM to the end of the containers, never longer than the grace period."""
    confirm: Delay = (0.5, 2.0)
    """Time from the end of the containers to the object's removal."""
    reschedule: float = 10.0
    """Time between two attempts to schedule a pod for which no node has room."""
    backoff_first: float = 10.0
    """First pause after a failed pull or a crash. The pause doubles each time."""
    backoff_last: float = 300.0
    preempt_grace: float = 15.0
    """Seconds that GKE leaves by default to a pod on a lost Spot node. The pod always runs for this whole time."""
    node_gone: float = 50.0
    """Time from a node's removal to the end of its pods."""
    bookmark: float = 60.0
    """Time between two bookmarks of a watch."""
    event_ttl: float = 3600.0
    """Seconds for which Events are kept; 0: no Events are made."""
    continue_ttl: float = 300.0
    """Seconds within which a list in pages must be read to its end."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> PodTimings:
        """Return timings from JSON. Raise ValueError with the field's name for a mistake."""
        return parse_timings(cls, document)
