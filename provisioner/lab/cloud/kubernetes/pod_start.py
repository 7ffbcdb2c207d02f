"""The start of a pod. The scheduler binds the pod to a node. The kubelet pulls the image and runs the containers."""

from __future__ import annotations

from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.events import AUTOSCALER, KUBELET, SCHEDULER
from provisioner.lab.cloud.kubernetes.gates import gates
from provisioner.lab.cloud.kubernetes.nodes import SPOT
from provisioner.lab.cloud.kubernetes.pod_end import PodEnd
from provisioner.lab.cloud.kubernetes.pod_steps import Steps
from provisioner.lab.cloud.kubernetes.store import Stored
from provisioner.lab.cloud.world import Fault

SLOW_START = 60.0
CRASH_AFTER = 1.0

_NO_MESSAGE = "0/{n} nodes are available: {n} Insufficient cpu, {n} Insufficient memory. "
_NO_VICTIMS = "preemption: 0/{n} nodes are available: {n} No preemption victims found for incoming pod."
_SCALE_UP = (
    "pod triggered scale-up: [{https://www.googleapis.com/compute/v1/projects/simulator/zones/us-central1-a"
    "/instanceGroups/gke-simulator-default-pool-grp 3->4 (max: 1000)}]"
)
_NO_NODE = (
    "Node scale up in zones us-central1-a associated with this pod failed: {}. Pod is at risk of not being scheduled."
)
_NO_VOLUME = 'MountVolume.SetUp failed for volume "license" : secret "license" not found'
_NOT_TRIGGERED = "pod didn't trigger scale-up"
_NO_SCALE_UP = f"{_NOT_TRIGGERED}: 1 in backoff after failed scale-up"


class PodStart:
    """The steps of a pod until it runs."""

    def __init__(self, steps: Steps, ending: PodEnd) -> None:
        self._steps = steps
        self._ending = ending
        self._addresses = 0
        """The number of IPs that were given to pods."""

    def begin(self, pod: Stored) -> None:
        """Schedule a new pod, unless the pod has scheduling gates or names another scheduler."""
        if pod.document["spec"]["schedulerName"] != SCHEDULER or gates(pod.document["spec"]):
            return
        self._steps.later(self._steps.delay(self._steps.timings.schedule), pod, self._schedule)

    def _schedule(self, pod: Stored) -> None:
        if pod.document["spec"].get("nodeName"):
            return
        if fault := self._steps.strikes("stockout", pod):
            self._no_room(pod, str(fault.params.get("words", "GCE out of resources")))
            self._steps.later(self._steps.timings.reschedule, pod, self._schedule)
            return
        if fault := self._steps.strikes("no_node_fits", pod):
            self._no_fit(pod, str(fault.params.get("words", "3 Insufficient cpu")))
            self._steps.later(self._steps.timings.reschedule, pod, self._schedule)
            return
        asked = pod.document["spec"].get("nodeSelector") or {}
        spot = bool(SPOT.items() & asked.items()) or self._steps.strikes("spot_node", pod) is not None
        node, address = self._steps.nodes.bind(spot=spot)
        now, fault = self._steps.now(), self._steps.strikes("unprepared", pod)
        document = pod_status.scheduled(pod.document, node, address, now)
        bound = self._steps.pods.put(pod_status.prepared(document, now, ready=fault is None))
        where = f"{pod.namespace}/{pod.name}"
        self._steps.recorder.say(bound, SCHEDULER, "Scheduled", f"Successfully assigned {where} to {node}")
        self._prepare(bound, fault)

    def _prepare(self, pod: Stored, fault: Fault | None) -> None:
        """Start the pod if the kubelet can make volumes and sandbox. If ``fault`` makes the kubelet fail, try again
        later."""
        if fault is not None:
            reason = str(fault.params.get("reason", "FailedMount"))
            self._steps.recorder.say(pod, KUBELET, reason, str(fault.params.get("words", _NO_VOLUME)))
            self._steps.later(self._steps.timings.reschedule, pod, self._prepare_again)
            return
        image = pod.document["spec"]["containers"][0]["image"]
        self._steps.recorder.say(pod, KUBELET, "Pulling", f'Pulling image "{image}"')
        slow = self._steps.strikes("slow_start", pod)
        extra = float(slow.params.get("seconds", SLOW_START)) if slow else 0.0
        self._steps.later(self._steps.delay(self._steps.timings.start) + extra, pod, self._start)

    def _prepare_again(self, pod: Stored) -> None:
        fault = self._steps.strikes("unprepared", pod)
        if fault is None:
            pod = self._steps.pods.put(pod_status.prepared(pod.document, self._steps.now(), ready=True))
        self._prepare(pod, fault)

    def _no_room(self, pod: Stored, why: str) -> None:
        """Record that the scheduler finds no node and the autoscaler cannot make a node."""
        count = self._steps.nodes.count()
        message = (_NO_MESSAGE + _NO_VICTIMS).format(n=count)
        first = (pod_status.condition_of(pod.document, "PodScheduled") or {}).get("reason") != "Unschedulable"
        if first:
            pod = self._steps.pods.put(pod_status.unschedulable(pod.document, self._steps.now(), message))
        self._steps.recorder.say(pod, SCHEDULER, "FailedScheduling", message)
        if first:
            self._steps.recorder.say(pod, AUTOSCALER, "TriggeredScaleUp", _SCALE_UP)
            self._steps.recorder.say(pod, AUTOSCALER, "FailedScaleUp", _NO_NODE.format(why))
        self._steps.recorder.say(pod, AUTOSCALER, "NotTriggerScaleUp", _NO_SCALE_UP)

    def _no_fit(self, pod: Stored, why: str) -> None:
        """Record that no node has room for the pod, and that the autoscaler has no node group with large enough
        nodes."""
        message = (_NO_MESSAGE + _NO_VICTIMS).format(n=self._steps.nodes.count())
        if (pod_status.condition_of(pod.document, "PodScheduled") or {}).get("reason") != "Unschedulable":
            pod = self._steps.pods.put(pod_status.unschedulable(pod.document, self._steps.now(), message))
        self._steps.recorder.say(pod, SCHEDULER, "FailedScheduling", message)
        self._steps.recorder.say(pod, AUTOSCALER, "NotTriggerScaleUp", f"{_NOT_TRIGGERED}: {why}")

    def _start(self, pod: Stored) -> None:
        if fault := self._steps.strikes("bad_config", pod):
            words = str(fault.params.get("words", 'secret "grid" not found'))
            waiting = self._steps.pods.put(pod_status.waiting(pod.document, "CreateContainerConfigError", words))
            self._steps.recorder.say(waiting, KUBELET, "Failed", f"Error: {words}")
            return
        image = pod.document["spec"]["containers"][0]["image"]
        if self._steps.strikes("image_pull", pod):
            self._pull_failed(pod, image, self._steps.timings.backoff_first)
            return
        self._steps.recorder.say(pod, KUBELET, "Pulled", f'Successfully pulled image "{image}"')
        self._run(pod, self._steps.strikes("crash", pod), restarts=0)

    def _pull_failed(self, pod: Stored, image: str, wait: float) -> None:
        """Let the pull fail with ErrImagePull and with ImagePullBackOff in turn until the pod is gone."""
        words = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
        words = f"rpc error: code = NotFound desc = {words}"
        failed = self._steps.pods.put(pod_status.waiting(pod.document, "ErrImagePull", words))
        self._steps.recorder.say(failed, KUBELET, "Failed", f'Failed to pull image "{image}": {words}')
        self._steps.recorder.say(failed, KUBELET, "Failed", "Error: ErrImagePull")

        def back_off(again: Stored) -> None:
            message = f'Back-off pulling image "{image}": ErrImagePull: {words}'
            waiting = self._steps.pods.put(pod_status.waiting(again.document, "ImagePullBackOff", message))
            self._steps.recorder.say(waiting, KUBELET, "BackOff", f'Back-off pulling image "{image}"')
            self._steps.recorder.say(waiting, KUBELET, "Failed", "Error: ImagePullBackOff")
            self._steps.later(
                wait * 0.9,
                waiting,
                lambda pod: self._pull_failed(pod, image, min(2 * wait, self._steps.timings.backoff_last)),
            )

        self._steps.later(wait * 0.1, failed, back_off)

    def _run(self, pod: Stored, crash: Fault | None, restarts: int) -> None:
        """Run the pod's containers, which become ready unless the fault ``never_ready`` strikes. If ``crash`` is given,
        the containers crash later."""
        name = pod.document["spec"]["containers"][0]["name"]
        last = next((status.get("lastState") for status in pod_status.container_statuses(pod.document)), None)
        address = pod.document["status"].get("podIP") or self._new_address()
        started = self._steps.pods.put(pod_status.running(pod.document, address, self._steps.now(), restarts, last))
        self._steps.recorder.say(started, KUBELET, "Created", f"Created container: {name}")
        self._steps.recorder.say(started, KUBELET, "Started", f"Started container {name}")
        if crash is not None:
            lasts = float(crash.params.get("seconds", CRASH_AFTER))
            self._steps.later(lasts, started, lambda pod: self._crash(pod, crash, restarts + 1))
        if restarts or not self._steps.strikes("never_ready", started):
            self._steps.later(self._steps.delay(self._steps.timings.ready), started, self._become_ready)
        else:
            self._steps.recorder.say(started, KUBELET, "Unhealthy", "Readiness probe failed: connection refused")

    def _become_ready(self, pod: Stored) -> None:
        statuses = pod_status.container_statuses(pod.document)
        if all("running" in status.get("state", {}) for status in statuses):
            self._steps.pods.put(pod_status.ready(pod.document, self._steps.now()))

    def _crash(self, pod: Stored, fault: Fault, restarts: int) -> None:
        code = int(fault.params.get("exit_code", 1))
        state = pod_status.terminated(pod.document, code, self._steps.now(), str(fault.params.get("reason", "")))
        if pod.document["spec"]["restartPolicy"] in ("Never", "OnFailure" if code == 0 else "Never"):
            self._ending.end(pod, "Failed" if code else "Succeeded", state)
            return
        wait = min(self._steps.timings.backoff_first * 2 ** (restarts - 1), self._steps.timings.backoff_last)
        waiting = self._steps.pods.put(pod_status.crashed(pod.document, state, self._steps.now(), restarts, wait))
        name = pod.document["spec"]["containers"][0]["name"]
        words = f"Back-off restarting failed container {name} in pod {pod.name}_{pod.namespace}({pod.uid})"
        self._steps.recorder.say(waiting, KUBELET, "BackOff", words)
        self._steps.later(wait, waiting, lambda pod: self._run(pod, fault, restarts))

    def start_ungated(self, before: Json, pod: Stored) -> None:
        """Schedule the pod if a client has removed its last gate."""
        if gates(before["spec"]) and not gates(pod.document["spec"]):
            self.begin(pod)

    def _new_address(self) -> str:
        """Return an IP that no pod had before, from 10.4.0.1 on."""
        self._addresses += 1
        number = (10 << 24) + (4 << 16) + self._addresses
        return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
