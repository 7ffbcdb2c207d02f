"""The steps of a pod's life. A step is an event that is scheduled for a time.

At that time, the step reads the pod again. If the pod is gone, the step is skipped. If a new pod of the same name has
replaced the pod, the step is skipped, too.
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
    """The parts of a cluster that all steps use, and the scheduling of steps."""

    def __init__(self, world: World, pods: Store, nodes: Nodes, recorder: Recorder, timings: PodTimings) -> None:
        self.pods = pods
        self.nodes = nodes
        self.recorder = recorder
        self.timings = timings
        self.lost_nodes: set[str] = set()
        """Nodes that are gone. The pods of these nodes take no further step by themselves."""
        self._world = world

    def later(self, delay: float, pod: Stored, step: Step, *, always: bool = False) -> None:
        """Take a step in ``delay`` seconds if the same pod still exists.

        Skip the step if the pod has ended or is ending, or if its node is lost. If ``always`` is true, take the step
        even then.
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
        """Return the fault of this mode that strikes the pod; None if no fault strikes."""
        return self._world.strikes(mode, pod.namespace, pod.name)

    def delay(self, delay: Delay) -> float:
        """Return random seconds from the distribution ``delay``."""
        return self._world.lognormal(*delay)

    def now(self) -> str:
        """Return the simulated time, in the form of Kubernetes' timestamps."""
        return pod_status.timestamp(self._world.wall())
