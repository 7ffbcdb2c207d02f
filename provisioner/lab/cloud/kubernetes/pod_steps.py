"""The steps of pods' lives. A step is an event in the world that reads its pod again.

The step is skipped if the pod was deleted or made anew meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.lab.cloud.kubernetes.events import Recorder
from provisioner.lab.cloud.kubernetes.nodes import Nodes
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.kubernetes.store import Store, Stored
from provisioner.lab.cloud.timing import Delay
from provisioner.lab.cloud.world import Fault, World

Step = Callable[[Stored], None]


class Steps:
    """The parts of a cluster that every step works on, and the time of steps."""

    def __init__(self, world: World, pods: Store, nodes: Nodes, recorder: Recorder, timings: PodTimings) -> None:
        self.pods = pods
        self.nodes = nodes
        self.recorder = recorder
        self.timings = timings
        self.lost_nodes: set[str] = set()
        """Nodes that are gone. Their pods take no further step by themselves."""
        self._world = world

    def later(self, delay: float, pod: Stored, step: Step, *, always: bool = False) -> None:
        """Take the step at its time, if the same pod still exists. Unless ``always``, neither pod nor node may be
        ending.
        """
        namespace, name, uid = pod.namespace, pod.name, pod.uid

        def event() -> None:
            now = self.pods.get(namespace, name)
            if now is None or now.uid != uid:
                return
            ending = "deletionTimestamp" in now.document["metadata"] or pod_status.is_ended(now.document)
            if always or not (ending or now.document["spec"].get("nodeName") in self.lost_nodes):
                step(now)

        self._world.after(delay, event)

    def strikes(self, mode: str, pod: Stored) -> Fault | None:
        """Return the fault of this mode that strikes the pod, or None."""
        return self._world.strikes(mode, pod.namespace, pod.name)

    def delay(self, delay: Delay) -> float:
        """Return some seconds by chance."""
        return self._world.lognormal(*delay)

    def now(self) -> str:
        """Return the time of the world's clock, as Kubernetes prints times."""
        return pod_status.timestamp(self._world.wall())
