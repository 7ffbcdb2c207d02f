"""Kubernetes Events of the scheduler, the autoscaler and the kubelets about pods."""

from __future__ import annotations

import uuid
import zlib

from provisioner.lab.cloud.kubernetes.errors import Json
from provisioner.lab.cloud.kubernetes.pod_status import epoch, timestamp
from provisioner.lab.cloud.kubernetes.store import Store, Stored
from provisioner.lab.cloud.world import World

SCHEDULER = "default-scheduler"
KUBELET = "kubelet"
AUTOSCALER = "cluster-autoscaler"

_WARNINGS = ("BackOff", "Failed", "NetworkNotReady", "NodeShutdown", "Unhealthy")
"""Words with which the reason of an Event of the type Warning begins."""


class Recorder:
    """A writer of Events. A repeated Event is not written again; its count grows."""

    def __init__(self, world: World, store: Store, ttl: float) -> None:
        self.ttl = ttl
        """Seconds for which an Event is kept after its last repetition; 0: no Events are made."""
        self._world = world
        self._store = store

    def say(self, pod: Stored, source: str, reason: str, message: str) -> None:
        """Record an Event about a pod."""
        if self.ttl <= 0:
            return
        name = f"{pod.name}.{zlib.crc32(f'{pod.uid} {reason} {message}'.encode()):016x}"
        event = self._store.get(pod.namespace, name)
        now = timestamp(self._world.wall())
        if event is not None:
            again = {**event.document, "count": event.document["count"] + 1, "lastTimestamp": now}
            self._store.put(again)
            return
        self._store.put(self._document(pod, name, source, reason, message, now))
        self._forget_later(pod.namespace, name, self.ttl)

    def _document(self, pod: Stored, name: str, source: str, reason: str, message: str, now: str) -> Json:
        host = {"host": pod.document["spec"].get("nodeName", "")} if source == KUBELET else {}
        return {
            "metadata": {
                "name": name,
                "namespace": pod.namespace,
                "uid": str(uuid.UUID(int=self._world.random.getrandbits(128), version=4)),
                "creationTimestamp": now,
            },
            "involvedObject": {
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "apiVersion": "v1",
                "resourceVersion": str(pod.version),
            },
            "reason": reason,
            "message": message,
            "source": {"component": source, **host},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": "Warning" if reason.startswith(_WARNINGS) else "Normal",
            "eventTime": None,
            "reportingComponent": source,
            "reportingInstance": host.get("host", ""),
        }

    def _forget_later(self, namespace: str, name: str, delay: float) -> None:
        def forget() -> None:
            event = self._store.get(namespace, name)
            if event is None:
                return
            left = epoch(event.document["lastTimestamp"]) + self.ttl - self._world.wall()
            if left >= 1.0:
                self._forget_later(namespace, name, left)
            else:
                self._store.remove(event)

        self._world.after(delay, forget)
