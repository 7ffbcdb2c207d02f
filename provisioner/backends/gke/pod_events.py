"""Reads why pods wait, in the words of the cluster autoscaler and of kubelets, from Events while pods wait.

Words, never state: whatever is lost, late or refused here changes no machine, only what people read of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.concurrency import Readings
from provisioner.backends.gke.api import KubeApi, words
from provisioner.backends.gke.pod_cache import FAILED
from provisioner.backends.gke.pod_caches import PodCaches
from provisioner.backends.gke.pod_failures import NOT_PREPARED
from provisioner.backends.gke.pods import Wait
from provisioner.backends.responses import understood
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

Event = Mapping[str, Any]

NOT_TRIGGERED, TRIGGERED = "NotTriggerScaleUp", "TriggeredScaleUp"
OF_NO_NODE = (NOT_TRIGGERED, TRIGGERED, FAILED)
"""Reasons of the autoscaler's Events on pods that no node takes; of those of one second the later here counts. What
FailedScheduling says stands in the pod's own condition."""

OF_A_NODE = (
    *("FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedPrepareDynamicResources"),
    *("NetworkNotReady", "FailedCreatePodSandBox", "FailedCreatePodContainer"),
)
"""Reasons of Events, of kubelets and of the controller that attaches volumes, on pods that have a node."""

SYMPTOM = "Unable to attach or mount volumes"
"""A message of FailedMount, repeated every two minutes, that names the missing volumes and no cause."""

QUOTA = "quota exceeded"
"""In GKE's FailedScaleUp: ``GCE quota exceeded``. Everything else (``GCE out of resources``, ``IP space exhausted``, a
reservation that is used up) is a place without machines."""

NO_ADDRESS = (
    *("no ip addresses available", "no available addresses", "no available ip", "no ips available"),
    *("no more free addresses", "ranges are exhausted", "range is full", "failed to assign an ip address"),
)
"""In FailedCreatePodSandBox, in small letters: how network plug-ins (host-local, Cilium, Calico, those of AWS and
Azure) say that the node's addresses for pods are used up."""


class PodEvents:
    """Reads in the background what is said of the pods in these caches that wait."""

    def __init__(self, api: KubeApi, namespace: str, caches: PodCaches) -> None:
        self._api, self._caches = api, caches
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._readings = Readings(f"events {self._path}")

    def observe(self) -> None:
        """Begin to read if pods have waited long enough, and the last reading is past; returns at once."""
        self._readings.begin(self._api.times.events, self._wanted)

    def _wanted(self) -> Callable[[], None] | None:
        waiting = self._caches.waiting(self._api.times.waiting)
        return partial(self._read, waiting) if waiting else None

    def close(self) -> None:
        """Wait a moment for a reading that is under way."""
        self._readings.close()

    def _read(self, waiting: Collection[Wait]) -> None:
        """Tell the caches what is said of these pods."""
        stages = {wait.placed for wait in waiting}
        reasons = [*(OF_NO_NODE if False in stages else ()), *(OF_A_NODE if True in stages else ())]
        try:
            with understood():
                explained = explanations(self._list(reasons), waiting)
        except BackendError as error:
            log.warning("Events of waiting pods could not be read", extra={"path": self._path, **error.failure.facts})
            self._readings.put_off(error.retry_after or 0.0)
            return
        self._caches.explain(explained)

    def _list(self, reasons: Iterable[str]) -> Iterator[Event]:
        """The Events on pods with these reasons, page by page: a selector cannot name more than one."""
        for reason in reasons:
            selector = f"involvedObject.kind=Pod,reason={reason}"
            yield from self._api.items(self._path, {"fieldSelector": selector})


def explanations(events: Iterable[Event], waiting: Collection[Wait]) -> dict[Wait, Failure]:
    """Return the last message about each of these pods; for a pod on a node without a message, what the pod lacks."""
    said: dict[Wait, list[Event]] = {}
    for event in events:
        reason = event.get("reason")
        wait = Wait(str((event.get("involvedObject") or {}).get("uid")), reason in OF_A_NODE)
        if wait in waiting and (wait.placed or reason in OF_NO_NODE):
            said.setdefault(wait, []).append(event)
    silent = {wait: NOT_PREPARED for wait in waiting if wait.placed}
    return silent | {wait: _failure(_last_word(of_pod)) for wait, of_pod in said.items()}


def _last_word(events: Iterable[Event]) -> Event:
    """The newest; but what says less than the one before never replaces it."""
    word: Event = {}
    for event in sorted(events, key=lambda event: (_when(event), (OF_NO_NODE + OF_A_NODE).index(event["reason"]))):
        symptom = str(event.get("message")).startswith(SYMPTOM)
        if not (word and symptom) and not (event["reason"] == NOT_TRIGGERED and word.get("reason") == FAILED):
            word = event
    return word


def _when(event: Event) -> str:
    """When it was said last, in the API's form, whose order is that of time; old and new Events say it differently."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def _failure(event: Event) -> Failure:
    """An Event as the reason why a pod does not run."""
    reason, message = str(event["reason"]), str(event.get("message") or "")
    return Failure(_error_class(reason, message.lower()), words(f"{reason}: {message}"))


def _error_class(reason: str, message: str) -> ErrorClass:
    if reason in OF_A_NODE:
        return ErrorClass.STOCKOUT if any(sign in message for sign in NO_ADDRESS) else ErrorClass.OTHER
    return ErrorClass.QUOTA if reason == FAILED and QUOTA in message else ErrorClass.STOCKOUT
