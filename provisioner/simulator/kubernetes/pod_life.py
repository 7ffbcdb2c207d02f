"""What scheduler and kubelets do with a pod: bind it to a node, pull its image, run it, end it.

Each step is an event in the world and looks the pod up again: what was deleted or made anew meanwhile is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

from provisioner.simulator.kubernetes import pod_status
from provisioner.simulator.kubernetes.errors import Json
from provisioner.simulator.kubernetes.events import AUTOSCALER, KUBELET, SCHEDULER, Recorder
from provisioner.simulator.kubernetes.gates import gates
from provisioner.simulator.kubernetes.nodes import Nodes
from provisioner.simulator.kubernetes.settings import PodTimings
from provisioner.simulator.kubernetes.store import Store, Stored
from provisioner.simulator.timing import Delay
from provisioner.simulator.world import Fault, World

Step = Callable[[Stored], None]

SLOW_START = 60.0
CRASH_AFTER = 1.0
STUCK_LOOK = 5.0
"""Seconds between two looks whether a stuck pod may end at last."""

_NO_MESSAGE = "0/{n} nodes are available: {n} Insufficient cpu, {n} Insufficient memory. "
_NO_VICTIMS = "preemption: 0/{n} nodes are available: {n} No preemption victims found for incoming pod."
_SCALE_UP = (
    "pod triggered scale-up: [{https://www.googleapis.com/compute/v1/projects/simulator/zones/us-central1-a"
    "/instanceGroups/gke-simulator-default-pool-grp 3->4 (max: 1000)}]"
)
_NO_NODE = (
    "Node scale up in zones us-central1-a associated with this pod failed: {}. Pod is at risk of not being scheduled."
)
_NO_SCALE_UP = "pod didn't trigger scale-up: 1 in backoff after failed scale-up"


class Life:
    """The steps of every pod's life."""

    def __init__(self, world: World, pods: Store, node_store: Store, recorder: Recorder, timings: PodTimings) -> None:
        self.timings = timings
        self.nodes = Nodes(world, node_store)
        self._world = world
        self._pods = pods
        self._node_store = node_store
        self._recorder = recorder
        self._addresses = 0
        self._lost_nodes: set[str] = set()

    # --- begin --------------------------------------------------------------------------------------------------------

    def begin(self, pod: Stored) -> None:
        """A pod was created: it will be scheduled, unless gates hold it back, or its scheduler is not here."""
        if pod.document["spec"]["schedulerName"] != SCHEDULER or gates(pod.document["spec"]):
            return
        self._later(self._delay(self.timings.schedule), pod, self._schedule)

    def _schedule(self, pod: Stored) -> None:
        if pod.document["spec"].get("nodeName"):
            return
        if fault := self._strikes("stockout", pod):
            self._no_room(pod, str(fault.params.get("words", "GCE out of resources")))
            self._later(self.timings.reschedule, pod, self._schedule)
            return
        node, address = self.nodes.bind()
        bound = self._pods.put(pod_status.scheduled(pod.document, node, address, self._now()))
        where = f"{pod.namespace}/{pod.name}"
        self._recorder.say(bound, SCHEDULER, "Scheduled", f"Successfully assigned {where} to {node}")
        image = bound.document["spec"]["containers"][0]["image"]
        self._recorder.say(bound, KUBELET, "Pulling", f'Pulling image "{image}"')
        slow = self._strikes("slow_start", bound)
        extra = float(slow.params.get("seconds", SLOW_START)) if slow else 0.0
        self._later(self._delay(self.timings.start) + extra, bound, self._start)

    def _no_room(self, pod: Stored, why: str) -> None:
        """The scheduler finds no node, and the autoscaler cannot make one."""
        count = self._node_store.count("")
        message = (_NO_MESSAGE + _NO_VICTIMS).format(n=count)
        first = (pod_status.condition_of(pod.document, "PodScheduled") or {}).get("reason") != "Unschedulable"
        if first:
            pod = self._pods.put(pod_status.unschedulable(pod.document, self._now(), message))
        self._recorder.say(pod, SCHEDULER, "FailedScheduling", message)
        if first:
            self._recorder.say(pod, AUTOSCALER, "TriggeredScaleUp", _SCALE_UP)
            self._recorder.say(pod, AUTOSCALER, "FailedScaleUp", _NO_NODE.format(why))
        self._recorder.say(pod, AUTOSCALER, "NotTriggerScaleUp", _NO_SCALE_UP)

    def _start(self, pod: Stored) -> None:
        if fault := self._strikes("bad_config", pod):
            words = str(fault.params.get("words", 'secret "grid" not found'))
            held = self._pods.put(pod_status.waiting(pod.document, "CreateContainerConfigError", words))
            self._recorder.say(held, KUBELET, "Failed", f"Error: {words}")
            return
        image = pod.document["spec"]["containers"][0]["image"]
        if self._strikes("image_pull", pod):
            self._pull_failed(pod, image, self.timings.backoff_first)
            return
        self._recorder.say(pod, KUBELET, "Pulled", f'Successfully pulled image "{image}"')
        self._run(pod, self._strikes("crash", pod), restarts=0)

    def _pull_failed(self, pod: Stored, image: str, wait: float) -> None:
        """ErrImagePull, then ImagePullBackOff, and again, for as long as the pod lives."""
        words = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
        words = f"rpc error: code = NotFound desc = {words}"
        failed = self._pods.put(pod_status.waiting(pod.document, "ErrImagePull", words))
        self._recorder.say(failed, KUBELET, "Failed", f'Failed to pull image "{image}": {words}')
        self._recorder.say(failed, KUBELET, "Failed", "Error: ErrImagePull")

        def back_off(again: Stored) -> None:
            message = f'Back-off pulling image "{image}": ErrImagePull: {words}'
            held = self._pods.put(pod_status.waiting(again.document, "ImagePullBackOff", message))
            self._recorder.say(held, KUBELET, "BackOff", f'Back-off pulling image "{image}"')
            self._recorder.say(held, KUBELET, "Failed", "Error: ImagePullBackOff")
            self._later(wait * 0.9, held, lambda pod: self._pull_failed(pod, image, self._longer(wait)))

        self._later(wait * 0.1, failed, back_off)

    def _run(self, pod: Stored, crash: Fault | None, restarts: int) -> None:
        """Containers run; they become ready, or crash, or both in turn."""
        name = pod.document["spec"]["containers"][0]["name"]
        last = next((status.get("lastState") for status in pod_status.container_statuses(pod.document)), None)
        address = pod.document["status"].get("podIP") or self._new_address()
        started = self._pods.put(pod_status.running(pod.document, address, self._now(), restarts, last))
        self._recorder.say(started, KUBELET, "Created", f"Created container: {name}")
        self._recorder.say(started, KUBELET, "Started", f"Started container {name}")
        if crash is not None:
            lasts = float(crash.params.get("seconds", CRASH_AFTER))
            self._later(lasts, started, lambda pod: self._crash(pod, crash, restarts + 1))
        if restarts or not self._strikes("never_ready", started):
            self._later(self._delay(self.timings.ready), started, self._become_ready)
        else:
            self._recorder.say(started, KUBELET, "Unhealthy", "Readiness probe failed: connection refused")

    def _become_ready(self, pod: Stored) -> None:
        statuses = pod_status.container_statuses(pod.document)
        if all("running" in status.get("state", {}) for status in statuses):
            self._pods.put(pod_status.ready(pod.document, self._now()))

    def _crash(self, pod: Stored, fault: Fault, restarts: int) -> None:
        code = int(fault.params.get("exit_code", 1))
        state = pod_status.terminated(pod.document, code, self._now(), str(fault.params.get("reason", "")))
        if pod.document["spec"]["restartPolicy"] in ("Never", "OnFailure" if code == 0 else "Never"):
            self._end(pod, "Failed" if code else "Succeeded", state)
            return
        wait = min(self.timings.backoff_first * 2 ** (restarts - 1), self.timings.backoff_last)
        held = self._pods.put(pod_status.crashed(pod.document, state, self._now(), restarts, wait))
        name = pod.document["spec"]["containers"][0]["name"]
        words = f"Back-off restarting failed container {name} in pod {pod.name}_{pod.namespace}({pod.uid})"
        self._recorder.say(held, KUBELET, "BackOff", words)
        self._later(wait, held, lambda pod: self._run(pod, fault, restarts))

    # --- end ----------------------------------------------------------------------------------------------------------

    def stop(self, pod: Stored, within: float, *, reason: str = "", message: str = "") -> None:
        """The containers are told to end and do so ``within`` seconds; then the kubelet confirms."""

        def stopped(pod: Stored) -> None:
            if not pod_status.is_ended(pod.document):
                state = pod_status.terminated(pod.document, 143, self._now())
                pod = self._end(pod, "Failed", state, reason, message)
            self.confirm(pod)

        self._later(within, pod, stopped, always=True)

    def stop_delay(self, grace: float) -> float:
        """How long the containers take to end, by chance and by what they are granted."""
        return min(grace, self._delay(self.timings.stop))

    def say_killing(self, pod: Stored) -> None:
        """The Events of a pod that is told to end."""
        for container in pod.document["spec"]["containers"]:
            self._recorder.say(pod, KUBELET, "Killing", f"Stopping container {container['name']}")

    def confirm(self, pod: Stored) -> None:
        """The kubelet has seen the pod end: the object goes, unless finalizers or the fault ``stuck`` hold it."""
        self._later(self._delay(self.timings.confirm), pod, self._confirmed, always=True)

    def _confirmed(self, pod: Stored) -> None:
        if self._strikes("stuck", pod):
            self._later(STUCK_LOOK, pod, self._confirmed, always=True)
        elif pod.document["metadata"].get("finalizers"):
            self._pods.put(pod_status.with_metadata(pod.document, deletionGracePeriodSeconds=0))
        else:
            self.remove(pod)

    def remove(self, pod: Stored) -> Stored:
        """The object goes now."""
        if not pod_status.is_ended(pod.document):
            self._leave_node(pod.document)
        return self._pods.remove(pod)

    def lose_node(self, pod: Stored) -> None:
        """Its node is gone: after a while the pod is failed and collected, without anybody's delete."""

        def collect(pod: Stored) -> None:
            if pod_status.is_ended(pod.document):
                self.remove(pod)
                return
            words = "PodGC: node no longer exists"
            doomed = pod_status.disrupted(pod.document, "DeletionByPodGC", words, self._now())
            killed = pod_status.terminated(doomed, 137, self._now())
            failed = self._pods.put(pod_status.ended(doomed, "Failed", killed, self._now()))
            self._later(self._delay(self.timings.confirm), failed, collect, always=True)

        self._lost_nodes.add(pod.document["spec"]["nodeName"])
        self._later(self.timings.node_gone, pod, collect, always=True)

    def lifted(self, before: Json, pod: Stored) -> None:
        """A client may have lifted the last gate: then the pod is scheduled."""
        if gates(before["spec"]) and not gates(pod.document["spec"]):
            self.begin(pod)

    def left(self, before: Json, after: Json) -> None:
        """A client may have ended the pod by writing its status: then its node has room again."""
        if pod_status.is_ended(after) and not pod_status.is_ended(before):
            self._leave_node(after)

    def _end(self, pod: Stored, phase: str, state: Json, reason: str = "", message: str = "") -> Stored:
        self._leave_node(pod.document)
        return self._pods.put(pod_status.ended(pod.document, phase, state, self._now(), reason, message))

    def _leave_node(self, pod: Json) -> None:
        self.nodes.unbind(pod["spec"].get("nodeName", ""))

    # --- time and chance ----------------------------------------------------------------------------------------------

    def _later(self, delay: float, pod: Stored, step: Step, *, always: bool = False) -> None:
        """Take the step then, if the same pod is still there and (unless ``always``) neither it nor its node ends."""
        namespace, name, uid = pod.namespace, pod.name, pod.uid

        def event() -> None:
            now = self._pods.get(namespace, name)
            if now is None or now.uid != uid:
                return
            ending = "deletionTimestamp" in now.document["metadata"] or pod_status.is_ended(now.document)
            if always or not (ending or now.document["spec"].get("nodeName") in self._lost_nodes):
                step(now)

        self._world.after(delay, event)

    def _strikes(self, mode: str, pod: Stored) -> Fault | None:
        return self._world.strikes(mode, pod.namespace, pod.name)

    def _delay(self, delay: Delay) -> float:
        return self._world.lognormal(*delay)

    def _longer(self, wait: float) -> float:
        return min(2 * wait, self.timings.backoff_last)

    def _now(self) -> str:
        return pod_status.timestamp(self._world.wall())

    def _new_address(self) -> str:
        """An IP that no pod had before, from 10.4.0.1 on."""
        self._addresses += 1
        number = (10 << 24) + (4 << 16) + self._addresses
        return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
