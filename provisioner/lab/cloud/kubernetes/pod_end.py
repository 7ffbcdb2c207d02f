"""The end of pods, and the removal of the pods' objects.

A pod ends by request, by the loss of its node, or by itself.
"""

from __future__ import annotations

from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.events import KUBELET
from provisioner.lab.cloud.kubernetes.pod_steps import Steps
from provisioner.lab.cloud.kubernetes.store import Stored

STUCK_LOOK = 5.0
"""Seconds between two checks of whether the fault ``stuck`` still keeps a deleted pod."""


class PodEnd:
    """The steps from the request to end a pod to the removal of its object."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def stop(self, pod: Stored, within: float, *, reason: str = "", message: str = "") -> None:
        """End the pod's containers in ``within`` seconds. The kubelet then confirms the end. ``reason``, ``message``:
        fields of the status if the pod fails."""

        def stopped(pod: Stored) -> None:
            if not pod_status.is_ended(pod.document):
                state = pod_status.terminated(pod.document, 143, self._steps.now())
                pod = self.end(pod, "Failed", state, reason, message)
            self.confirm(pod)

        self._steps.later(within, pod, stopped, always=True)

    def stop_delay(self, grace: float) -> float:
        """Return a random number of seconds after which the containers end, at most the grace period."""
        return min(grace, self._steps.delay(self._steps.timings.stop))

    def say_killing(self, pod: Stored) -> None:
        """Record the Events of a pod that was asked to end."""
        for container in pod.document["spec"]["containers"]:
            self._steps.recorder.say(pod, KUBELET, "Killing", f"Stopping container {container['name']}")

    def confirm(self, pod: Stored) -> None:
        """Let the kubelet confirm the end after a short time. Then remove the object, unless finalizers or the fault
        ``stuck`` keep it."""
        self._steps.later(self._steps.delay(self._steps.timings.confirm), pod, self._confirmed, always=True)

    def _confirmed(self, pod: Stored) -> None:
        if self._steps.strikes("stuck", pod):
            self._steps.later(STUCK_LOOK, pod, self._confirmed, always=True)
        elif pod.document["metadata"].get("finalizers"):
            self._steps.pods.put(pod_status.with_metadata(pod.document, deletionGracePeriodSeconds=0))
        else:
            self.remove(pod)

    def remove(self, pod: Stored) -> Stored:
        """Remove the object now. Return its last state."""
        if not pod_status.is_ended(pod.document):
            self._leave_node(pod.document)
        return self._steps.pods.remove(pod)

    def lose_node(self, pod: Stored) -> None:
        """Let the pod of a lost node fail after some time. Then remove the pod, although no client has deleted it."""

        def collect(pod: Stored) -> None:
            if pod_status.is_ended(pod.document):
                self.remove(pod)
                return
            words = "PodGC: node no longer exists"
            doomed = pod_status.disrupted(pod.document, "DeletionByPodGC", words, self._steps.now())
            killed = pod_status.terminated(doomed, 137, self._steps.now())
            failed = self._steps.pods.put(pod_status.ended(doomed, "Failed", killed, self._steps.now()))
            self._steps.later(self._steps.delay(self._steps.timings.confirm), failed, collect, always=True)

        self._steps.lost_nodes.add(pod.document["spec"]["nodeName"])
        self._steps.later(self._steps.timings.node_gone, pod, collect, always=True)

    def left(self, before: Json, after: Json) -> None:
        """Free the pod's room on its node if a client has ended the pod. A client ends a pod by writing its status."""
        if pod_status.is_ended(after) and not pod_status.is_ended(before):
            self._leave_node(after)

    def end(self, pod: Stored, phase: str, state: Json, reason: str = "", message: str = "") -> Stored:
        """Record that the pod's containers have ended, and free the pod's room on its node. Return the pod in its new
        state."""
        self._leave_node(pod.document)
        return self._steps.pods.put(pod_status.ended(pod.document, phase, state, self._steps.now(), reason, message))

    def _leave_node(self, pod: Json) -> None:
        self._steps.nodes.unbind(pod["spec"].get("nodeName", ""))
