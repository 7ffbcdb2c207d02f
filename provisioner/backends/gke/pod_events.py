"""Why no node takes a pod, in the cluster autoscaler's words: read from Events while some pods wait, and only then.

Words, never state: whatever is lost, late or refused here changes no machine, only what people read of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.gke.api import KubeApi, words
from provisioner.backends.gke.pod_cache import FAILED, PodCaches
from provisioner.backends.gke.readings import Readings
from provisioner.model import ErrorClass, Failure

log = logging.getLogger(__name__)

Event = Mapping[str, Any]

NOT_TRIGGERED, TRIGGERED = "NotTriggerScaleUp", "TriggeredScaleUp"
REASONS = (NOT_TRIGGERED, TRIGGERED, FAILED)
"""Reasons of the autoscaler's Events on pods; of those of one second the later here counts. What FailedScheduling says
stands in the pod's own condition."""

QUOTA = "quota exceeded"
"""In GKE's FailedScaleUp: ``GCE quota exceeded``. Everything else (``GCE out of resources``, ``IP space exhausted``, a
reservation that is used up) is a place without machines."""

PAGE = 500
"""Events per page of a list: half a megabyte."""


class PodEvents:
    """Reads in the background what the autoscaler says of the pods in these caches that no node takes."""

    def __init__(self, api: KubeApi, namespace: str, caches: PodCaches) -> None:
        self._api, self._caches = api, caches
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._readings = Readings(f"events {self._path}")

    def look(self) -> None:
        """Begin to read if pods have waited long enough, and the last reading is past; returns at once."""
        self._readings.begin(self._api.times.events, self._wanted)

    def _wanted(self) -> Callable[[], None] | None:
        uids = self._caches.unplaced(self._api.times.unplaced)
        return partial(self._read, uids) if uids else None

    def close(self) -> None:
        """Wait a moment for a reading that is under way."""
        self._readings.close()

    def _read(self, uids: Collection[str]) -> None:
        """Tell the caches what is said of these pods."""
        try:
            told = explanations(self._list(), uids)
        except BackendError as error:
            log.warning("Events of waiting pods could not be read", extra={"path": self._path, **error.failure.facts})
            return
        self._caches.explain(told)

    def _list(self) -> Iterator[Event]:
        """The autoscaler's Events on pods, page by page: a selector cannot name more than one reason."""
        for reason in REASONS:
            selector = f"involvedObject.kind=Pod,reason={reason}"
            yield from self._api.items(self._path, {"fieldSelector": selector, "limit": PAGE})


def explanations(events: Iterable[Event], uids: Collection[str]) -> dict[str, Failure]:
    """What was said last of each of these pods, by uid; that no other try was made never replaces why one failed."""
    said: dict[str, list[Event]] = {}
    for event in events:
        uid = (event.get("involvedObject") or {}).get("uid")
        if uid in uids and event.get("reason") in REASONS:
            said.setdefault(str(uid), []).append(event)
    return {uid: _failure(_last_word(of_pod)) for uid, of_pod in said.items()}


def _last_word(events: Iterable[Event]) -> Event:
    word: Event = {}
    for event in sorted(events, key=lambda event: (_when(event), REASONS.index(event["reason"]))):
        if not (event["reason"] == NOT_TRIGGERED and word.get("reason") == FAILED):
            word = event
    return word


def _when(event: Event) -> str:
    """When it was said last, in the API's form, whose order is that of time; old and new Events say it differently."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def _failure(event: Event) -> Failure:
    """An Event as the reason why a pod does not run."""
    reason, message = str(event["reason"]), str(event.get("message") or "")
    refused = reason == FAILED and QUOTA in message.lower()
    return Failure(ErrorClass.QUOTA if refused else ErrorClass.STOCKOUT, words(f"{reason}: {message}"))
