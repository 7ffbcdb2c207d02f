"""Events on pods that ended without a delete by the loop. Operators see the Events with ``kubectl get events`` and in
the cluster's log. The Events are never state. If many pods are lost at once, only some pods get an Event of their own,
to save calls."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from provisioner.backends import BackendError, Ended
from provisioner.backends.gke.api import NOT_FOR_US, KubeApi, KubeError
from provisioner.backends.gke.own_pods import ID_LABEL, POOL_LABEL, REQUEST_LABEL, TEMPLATE_LABEL, label_value
from provisioner.model import LossCause

log = logging.getLogger(__name__)

COMPONENT = "hostfactory-provisioner"
"""Writer of the Events: ``reportingController`` of events.k8s.io/v1."""

MOST = 10
"""Number of pods in each batch that get an Event of their own. One more Event per pool counts the other pods."""

CLOSE_SECONDS = 2.0
"""Longest wait in seconds for Events that are being sent. If the sending takes longer, it ends with the process."""

FAILED = "FailedToRun", "did not run, or ended before its request did"
ENDS: Mapping[LossCause, tuple[str, str]] = {
    LossCause.PREEMPTED: ("Preempted", "was preempted"),
    LossCause.EVICTED: ("Evicted", "was evicted"),
    LossCause.DELETED: ("Deleted", "was deleted by others"),
    LossCause.NODE: ("NodeLost", "went with its node"),
    LossCause.EXITED: ("Exited", "exited by itself"),
    LossCause.EXPIRES: ("Expired", "reached the end that was scheduled"),
    LossCause.UNKNOWN: ("Lost", "vanished"),
}
"""Reason and phrase of the Event on a pod that was reported to HostFactory, by cause. The Event on any other pod has
``FAILED``."""


@dataclass(slots=True)
class UnsentLosses:
    """Losses that wait to be sent. Only the first losses are stored one by one; all others are only counted."""

    each: list[tuple[str, Ended]] = field(default_factory=list)
    """Pool and pod of each loss that gets an Event of its own."""
    others: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Number of losses that get no Event of their own, by pool and reason."""
    attached_to: dict[str, Ended] = field(default_factory=dict)
    """The pod to which the Event about a pool's other losses is attached, by pool."""

    def add(self, pool: str, end: Ended) -> None:
        """Add a loss."""
        if len(self.each) < MOST:
            self.each.append((pool, end))
        else:
            self.others[pool][reason_and_phrase(end)[0]] += 1
            self.attached_to.setdefault(pool, end)


class LossEvents:
    """A background sender of the Events for all pools of one namespace."""

    def __init__(self, api: KubeApi, namespace: str, provisioner: str) -> None:
        self._api, self._namespace, self._provisioner = api, namespace, provisioner
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._lock = threading.Lock()
        self._unsent = UnsentLosses()
        self._sending: threading.Thread | None = None
        self._is_refused = False
        """True after the server has refused Events. The value stays True until the next start of the loop."""

    def record(self, pool: str, ends: Sequence[Ended]) -> None:
        """Queue these ended machines for the thread that sends Events, and return at once. If the server refuses
        Events, send none about these machines."""
        with self._lock:
            if self._is_refused or not ends:
                return
            for end in ends:
                self._unsent.add(pool, end)
            if self._sending is None:
                self._sending = threading.Thread(target=self._send_all, name=f"losses {self._path}", daemon=True)
                self._sending.start()

    def close(self) -> None:
        """Wait up to ``CLOSE_SECONDS`` until Events under way are sent."""
        if (sending := self._sending) is not None:
            sending.join(CLOSE_SECONDS)

    def _send_all(self) -> None:
        """Send Events until no more losses wait, or until the server refuses Events."""
        while (waiting := self._next_unsent()) is not None:
            try:
                for body in self._bodies(waiting):
                    self._api.send("POST", self._path, body=json.dumps(body).encode())
            except BackendError as error:
                self._is_refused = isinstance(error, KubeError) and error.status in NOT_FOR_US
                refused = "Events on lost pods are refused, and not tried again"
                text = refused if self._is_refused else "Events were not written"
                log.warning(text, extra={"path": self._path, **error.failure.log_fields})
                time.sleep(error.retry_after or 0.0)
            except Exception:
                log.exception("Events were not written", extra={"path": self._path})

    def _next_unsent(self) -> UnsentLosses | None:
        """Return the waiting losses. If there are none, or if the server refuses Events, return None and note that the
        calling thread ends. A later loss may then start a new thread."""
        with self._lock:
            waiting, self._unsent = self._unsent, UnsentLosses()
            if self._is_refused or not waiting.each:
                self._sending = None
                return None
            return waiting

    def _bodies(self, waiting: UnsentLosses) -> Iterator[dict[str, Any]]:
        for pool, end in waiting.each:
            yield self._body(pool, end, reason_and_phrase(end)[0], format_message(pool, end))
        for pool, counts in waiting.others.items():
            most, total = counts.most_common(), counts.total()
            listed = ", ".join(f"{count} {reason}" for reason, count in most)
            text = f"{total} more machines of pool {pool} ended: {listed}. `provisioner status` names the cause."
            yield self._body(pool, waiting.attached_to[pool], most[0][0], text)

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


def reason_and_phrase(end: Ended) -> tuple[str, str]:
    """Return the Event's reason for a loss, and a phrase about the loss."""
    return ENDS[end.cause or LossCause.UNKNOWN] if end.lost else FAILED


def format_message(pool: str, end: Ended) -> str:
    """Return a message for operators: how and why the machine ended, its request and template, and the next step."""
    why = f": {end.failure.text}" if end.failure is not None else ""
    following = "it is reported to HostFactory" if end.lost else "another one is tried while the request lasts"
    whose = f"Request {end.request}, template {end.template}, pool {pool}"
    return f"Machine {reason_and_phrase(end)[1]}{why.rstrip('.')}. {whose}; {following}."
