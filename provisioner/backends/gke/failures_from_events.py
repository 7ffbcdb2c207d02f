"""Reasons why pods wait. The cluster autoscaler and kubelets write these reasons in Events.

The Events are messages, never state. An Event may be lost or late, or we may lack the right to read Events. Operators
then see a less exact reason, or none. The machines are not affected.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.concurrency import Readings
from provisioner.backends.gke.api import KubeApi
from provisioner.backends.gke.failures_from_status import NOT_PREPARED
from provisioner.backends.gke.own_pods import Wait
from provisioner.backends.gke.pod_cache import FAILED
from provisioner.backends.gke.shared_pod_caches import PodCaches
from provisioner.backends.responses import translated_errors, words
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

Event = Mapping[str, Any]

NOT_TRIGGERED, TRIGGERED = "NotTriggerScaleUp", "TriggeredScaleUp"
OF_NO_NODE = (NOT_TRIGGERED, TRIGGERED, FAILED)
"""Reasons of the autoscaler's Events on pods without a node. Of two Events in the same second, the Event whose reason
is later in this list counts. FailedScheduling is not in the list, because the pod's own condition has its message."""

OF_A_NODE = (
    *("FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedPrepareDynamicResources"),
    *("NetworkNotReady", "FailedCreatePodSandBox", "FailedCreatePodContainer"),
)
"""Reasons of the Events that kubelets, and the controller that attaches volumes, write on pods that have a node."""

SYMPTOM = "Unable to attach or mount volumes"
"""Text of a FailedMount that names the missing volumes but not the cause. Kubelets repeat this text every two
minutes."""

QUOTA = "quota exceeded"
"""Text of GKE's FailedScaleUp about a quota (``GCE quota exceeded``). Any other text of a FailedScaleUp means that the
place has no machines, for example ``GCE out of resources``, ``IP space exhausted`` or a used-up reservation."""

FITS_NO_GROUP = re.compile(
    r"(?=.*insufficient )pod didn't trigger scale-up: (\d+ (insufficient \S+|node\(s\) ((?!, \d).)+)(, (?=\d)|$))+"
)
"""Messages of NotTriggerScaleUp that say: each node group is too small or unsuitable for the pod, and at least one is
too small. A message without a group that is too small proves nothing, because the message may leave out suitable
groups. A message about a group that only has to wait does not match."""

LARGER = "the pod fits no node that this cluster can add; correct its requests, or add a node pool with larger nodes: "
"""Advice for an operator, before the autoscaler's message."""

NO_ADDRESS = (
    *("no ip addresses available", "no available addresses", "no available ip", "no ips available"),
    *("no more free addresses", "ranges are exhausted", "range is full", "failed to assign an ip address"),
)
"""Texts in FailedCreatePodSandBox, in lower case, with which network plug-ins (host-local, Cilium, Calico, AWS's and
Azure's) report that the node has no more addresses for pods."""


class PodEvents(Readings):
    """A background reader of the Events on the waiting pods in the given caches."""

    def __init__(self, api: KubeApi, namespace: str, caches: PodCaches) -> None:
        self._api, self._caches = api, caches
        self._path = f"/api/v1/namespaces/{namespace}/events"
        super().__init__(f"events {self._path}")

    def observe(self) -> None:
        """Begin to read Events in the background, and return at once. Do nothing if it is too early for another
        reading."""
        self.begin(self._api.times.events, self._next_reading)

    def _next_reading(self) -> Callable[[], None] | None:
        waiting = self._caches.waiting(self._api.times.waiting)
        return partial(self._read, waiting) if waiting else None

    def _read(self, waiting: Collection[Wait]) -> None:
        """Read the Events on these pods, and store in the caches why the pods wait."""
        stages = {wait.placed for wait in waiting}
        reasons = [*(OF_NO_NODE if False in stages else ()), *(OF_A_NODE if True in stages else ())]
        try:
            with translated_errors():
                explained = explanations(self._list(reasons), waiting)
        except BackendError as error:
            details = {"path": self._path, **error.failure.log_fields}
            log.warning("Events of waiting pods could not be read", extra=details)
            self.put_off(error.retry_after or 0.0)
            return
        self._caches.explain(explained)

    def _list(self, reasons: Iterable[str]) -> Iterator[Event]:
        """Yield the Events of pods whose reason is in ``reasons``. Each reason needs a list of its own, because a
        selector can name only one reason."""
        for reason in reasons:
            selector = f"involvedObject.kind=Pod,reason={reason}"
            yield from self._api.items(self._path, {"fieldSelector": selector})


def explanations(events: Iterable[Event], waiting: Collection[Wait]) -> dict[Wait, Failure]:
    """Return each waiting pod's reason, from the pod's newest Event. A pod without an Event has the reason
    ``NOT_PREPARED`` if it has a node. Other pods without an Event are left out."""
    said: dict[Wait, list[Event]] = {}
    for event in events:
        reason = event.get("reason")
        wait = Wait(str((event.get("involvedObject") or {}).get("uid")), reason in OF_A_NODE)
        if wait in waiting and (wait.placed or reason in OF_NO_NODE):
            said.setdefault(wait, []).append(event)
    silent = {wait: NOT_PREPARED for wait in waiting if wait.placed}
    return silent | {wait: _failure(_newest_event(of_pod)) for wait, of_pod in said.items()}


def _newest_event(events: Iterable[Event]) -> Event:
    """Return the newest Event that counts. A ``SYMPTOM`` after any other Event does not count. A NotTriggerScaleUp
    after a FailedScaleUp does not count. In both cases, the earlier Event says more."""
    word: Event = {}
    for event in sorted(events, key=lambda event: (_last_time(event), (OF_NO_NODE + OF_A_NODE).index(event["reason"]))):
        symptom = str(event.get("message")).startswith(SYMPTOM)
        if not (word and symptom) and not (event["reason"] == NOT_TRIGGERED and word.get("reason") == FAILED):
            word = event
    return word


def _last_time(event: Event) -> str:
    """Return the last time of an Event in the API's sortable format. Old and new Events have this time in different
    fields."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def _failure(event: Event) -> Failure:
    """Return the failure that an Event describes: the reason why a pod does not run."""
    reason, message = str(event["reason"]), str(event.get("message") or "")
    error = _error_class(reason, message.lower())
    return Failure(error, words(f"{reason}: {LARGER if error is ErrorClass.INVALID else ''}{message}"))


def _error_class(reason: str, message: str) -> ErrorClass:
    if reason in OF_A_NODE:
        return ErrorClass.STOCKOUT if any(sign in message for sign in NO_ADDRESS) else ErrorClass.OTHER
    if reason == NOT_TRIGGERED and FITS_NO_GROUP.fullmatch(message.strip()):
        return ErrorClass.INVALID
    return ErrorClass.QUOTA if reason == FAILED and QUOTA in message else ErrorClass.STOCKOUT
