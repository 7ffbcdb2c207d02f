"""Events on pods that ended by themselves, for ``kubectl get events`` and the cluster's log; never state.

A storm costs a few calls, not one a pod.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

from provisioner.backends import BackendError, Ended
from provisioner.backends.gke.api import NOT_FOR_US, KubeApi, KubeError
from provisioner.backends.gke.pods import ID_LABEL, POOL_LABEL, REQUEST_LABEL, TEMPLATE_LABEL, label_value
from provisioner.model import LossCause

log = logging.getLogger(__name__)

COMPONENT = "hostfactory-provisioner"
"""The writer of the Events: ``reportingController`` of events.k8s.io/v1."""

MOST = 10
"""Pods that get an Event of their own before those that wait are sent; one more for each pool counts the others."""

CLOSE_SECONDS = 2.0
"""Seconds that the end of a sending is waited for. The sending dies with the process anyway."""

FAILED = "FailedToRun", "did not run, or ended before its request did"
ENDS: Mapping[LossCause, tuple[str, str]] = {
    LossCause.PREEMPTED: ("Preempted", "was preempted"),
    LossCause.EVICTED: ("Evicted", "was evicted"),
    LossCause.DELETED: ("Deleted", "was deleted by others"),
    LossCause.NODE: ("NodeLost", "went with its node"),
    LossCause.EXITED: ("Exited", "exited by itself"),
    LossCause.EXPIRES: ("Expired", "came to the end that was known beforehand"),
    LossCause.UNKNOWN: ("Lost", "vanished"),
}
"""Reason and words for a pod that was reported to HostFactory. Any other has ``FAILED``."""


class LossEvents:
    """Sends in the background what the pools of one namespace have to say."""

    def __init__(self, api: KubeApi, namespace: str, provisioner: str) -> None:
        self._api, self._namespace, self._provisioner = api, namespace, provisioner
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._waiting = SimpleQueue[tuple[str, Ended]]()
        """Pool and pod."""
        self._sender = ThreadPoolExecutor(1, f"losses {self._path}")
        self._sending: Future[None] | None = None
        self._refused = False
        """True if the server takes no Events, until the next start."""

    def record(self, pool: str, ends: Sequence[Ended]) -> None:
        """Let these be sent; returns at once."""
        if ends and not self._refused:
            for end in ends:
                self._waiting.put((pool, end))
            self._sending = self._sender.submit(self._send_waiting)
            self._sending.add_done_callback(Future.result)  # which logs an unexpected error

    def close(self) -> None:
        """Wait a moment for a sending that is under way."""
        if self._sending is not None:
            wait([self._sending], CLOSE_SECONDS)

    def _send_waiting(self) -> None:
        """Send what waits now, also what was recorded during the sending before; its own turn then finds it sent."""
        waiting = [self._waiting.get() for _ in range(self._waiting.qsize())]
        if self._refused:
            return
        try:
            for body in self._bodies(waiting):
                self._api.send("POST", self._path, body=json.dumps(body).encode())
        except BackendError as error:
            self._refused = isinstance(error, KubeError) and error.status in NOT_FOR_US
            text = (
                "Events on lost pods are refused, and not tried again" if self._refused else "Events were not written"
            )
            log.warning(text, extra={"path": self._path, **error.failure.facts})
            time.sleep(error.retry_after or 0.0)

    def _bodies(self, waiting: Sequence[tuple[str, Ended]]) -> Iterator[dict[str, Any]]:
        for pool, end in waiting[:MOST]:
            yield self._body(pool, end, end_of(end)[0], message(pool, end))
        others: dict[str, list[Ended]] = defaultdict(list)
        for pool, end in waiting[MOST:]:
            others[pool].append(end)
        for pool, ends in others.items():
            counts = Counter(end_of(end)[0] for end in ends).most_common()
            listed = ", ".join(f"{count} {reason}" for reason, count in counts)
            text = f"{len(ends)} more machines of pool {pool} ended: {listed}. `provisioner status` names the cause."
            yield self._body(pool, ends[0], counts[0][0], text)

    def _body(self, pool: str, end: Ended, reason: str, text: str) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        labels = {ID_LABEL: self._provisioner, POOL_LABEL: pool, REQUEST_LABEL: end.request}
        labels |= {TEMPLATE_LABEL: label_value(end.template)}
        place = {"namespace": self._namespace}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {**place, "name": f"{end.machine}.{secrets.token_hex(8)}", "labels": labels},
            "involvedObject": {**place, "apiVersion": "v1", "kind": "Pod", "name": end.machine, "uid": end.uid},
            "type": "Warning",
            "reason": reason,
            "message": text,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def end_of(end: Ended) -> tuple[str, str]:
    """In one word, and in a few."""
    return ENDS[end.cause or LossCause.UNKNOWN] if end.lost else FAILED


def message(pool: str, end: Ended) -> str:
    """Return for operators what became of the machine, why, whose it was, and what comes now."""
    why = f": {end.failure.text}" if end.failure is not None else ""
    following = "HostFactory is told of it" if end.lost else "another one is tried while the request lasts"
    whose = f"Request {end.request}, template {end.template}, pool {pool}"
    return f"Machine {end_of(end)[1]}{why.rstrip('.')}. {whose}; {following}."
