"""The machine of a pod. A pod is ours if it has our labels and a name of our shape. The functions are pure.

The functions read JSON. Typed models would take more time than the request that fetched the pods.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from provisioner.backends.gke.failures_from_status import NOT_PREPARED, failure, gates, hindrance
from provisioner.backends.gke.pod_status import RECENT, Pod, cause_of, epoch, expiry, phase_of, seconds_left
from provisioner.backends.responses import text
from provisioner.model import Create, ErrorClass, Failure, Fingerprint, LossCause, Machine, Notice, Phase, Queued

ID_LABEL = "hf-provisioner/id"
POOL_LABEL = "hf-provisioner/pool"
REQUEST_LABEL = "hf-provisioner/request"
TEMPLATE_LABEL = "hf-provisioner/template"
SLOT_LABEL = "hf-provisioner/slot"
OWN_LABELS = frozenset({ID_LABEL, POOL_LABEL, REQUEST_LABEL, TEMPLATE_LABEL, SLOT_LABEL})

MANAGER = 112
"""Maximum number of characters of provisioner and pool in the name of our field manager. The server limits the whole
name to 128."""


class Wait(NamedTuple):
    """A pod that waits for a node, or whose node has not yet made its volumes and network ready."""

    uid: str
    placed: bool
    """True if the pod has a node."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The announced end of a pod."""

    cause: LossCause
    seconds: float
    """Seconds that the pod had left when its end was reported."""


Reading = tuple[Machine, Ending | None]
"""A pod's machine, and the pod's announced end (None if there is none). The machine has no notice, because a notice
contains loop time."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Provisioner and pool, by which a pod is recognized as ours (law: no machine is deleted by count). Both are
    label values."""

    provisioner: str
    pool: str

    @property
    def selector(self) -> str:
        """Return the label selector of all pods that may be ours."""
        return f"{ID_LABEL}={self.provisioner},{POOL_LABEL}={self.pool}"

    def labels(self, create: Create) -> dict[str, str]:
        """Return the labels of the pod that fills a slot."""
        return {
            ID_LABEL: self.provisioner,
            POOL_LABEL: self.pool,
            REQUEST_LABEL: create.request,
            TEMPLATE_LABEL: label_value(create.template),
            SLOT_LABEL: create.name.rpartition("-")[2],
        }

    @property
    def manager(self) -> str:
        """Return the field manager of our creates. The server records the field manager in the pod. Policies may remove
        labels, but do not remove the field manager."""
        name = f"{self.provisioner}:{self.pool}"
        return f"hf-provisioner:{name if len(name) <= MANAGER else hashlib.sha256(name.encode()).hexdigest()}"

    def made(self, pod: Pod, uid: str) -> bool:
        """Return True if we made this pod. If ``uid`` is given, the pod must have this uid; if not, the pod must have
        our field manager. The pod's labels do not count, because others may have changed them."""
        managers = (entry.get("manager") for entry in pod["metadata"].get("managedFields") or ())
        return pod["metadata"].get("uid") == uid if uid else self.manager in managers

    def read(self, pod: Pod, is_spot: bool | None = None) -> Reading | None:
        """Return the machine of a pod; None if the pod is not ours. Raise one of ``ODD_RESPONSES`` for an invalid
        pod."""
        return machine_of(pod, is_spot) if self.owns(pod) else None

    def owns(self, pod: Pod) -> bool:
        """Return True if a pod belongs to this pool, by labels and name."""
        return self.is_of_provisioner(pod) and _labels(pod).get(POOL_LABEL) == self.pool

    def is_of_provisioner(self, pod: Pod) -> bool:
        """Return True if a pod belongs to one of our pools, by labels and name. The name must fit the labels, so that a
        pod which only has a copy of our labels does not count."""
        labels = _labels(pod)
        ending = f"-{labels.get(REQUEST_LABEL)}-{labels.get(SLOT_LABEL)}"
        return labels.get(ID_LABEL) == self.provisioner and str(pod["metadata"]["name"]).endswith(ending)


def _labels(pod: Pod) -> Mapping[str, str]:
    return pod["metadata"].get("labels") or {}


def label_value(text: str) -> str:
    """Return ``text`` as a valid label: at most 63 characters of ``[A-Za-z0-9._-]``, with a letter or digit at both
    ends."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:63].strip("._-")


def machine_of(pod: Pod, is_spot: bool | None = None) -> Reading:
    """Return the machine of a pod, and the pod's announced end if there is one. ``is_spot``: as in ``cause_of``."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    created = metadata.get("creationTimestamp")
    phase, ip = phase_of(pod), text(status.get("podIP") or "")
    left = seconds_left(pod, phase)
    cause = None if left is None and phase is not Phase.GONE else cause_of(pod, is_spot)
    queued, why = _read_wait(pod, phase)
    machine = Machine(
        name=text(metadata["name"]),
        phase=phase,
        fingerprint=Fingerprint(text(metadata.get("uid") or ""), _shared(text(created or "")), ip=ip),
        ip=ip,
        launched=epoch(status.get("startTime") or created),
        failure=why,
        cause=cause if phase in (Phase.STOPPING, Phase.GONE) else None,
        queued=queued,
        expires_at=expiry(pod),
        hindrance=hindrance(metadata) if phase is Phase.STOPPING else None,
    )
    return machine, Ending(cause, left) if cause is not None and left is not None else None


def _read_wait(pod: Pod, phase: Phase) -> tuple[Queued | None, Failure | None]:
    """Return a pod's wait behind scheduling gates, and the failure because of which the pod does not run; each is None
    if it does not apply. A wait behind gates is not a failure."""
    why = None if phase is Phase.RUNNING else failure(pod)
    if phase is Phase.PENDING and gates(pod):
        return Queued(epoch(pod["metadata"].get("creationTimestamp")), why.text if why else ""), None
    return None, why


def sought_machine(pod: Pod, now: float, before: Machine | None, *, strayed: bool) -> Machine:
    """Return the machine of a pod that was read by its name at loop time ``now``. ``before``: this machine in the
    previous snapshot, or None."""
    machine, ending = machine_of(pod)
    notice = before.notice if before else None
    if ending is None or notice is None or notice.cause is not ending.cause:
        notice = Notice(ending.cause, now + ending.seconds) if ending else None
    return replace(machine, is_strayed=strayed, notice=notice)


def alteration(asked: Pod, made: Pod) -> str:
    """Return a message about the fields that have other values in ``made`` than in ``asked``; empty if all are
    equal."""
    parts = (
        ("metadata", asked["metadata"], made["metadata"]),
        ("metadata.labels", asked["metadata"]["labels"], _labels(made)),
        ("spec", asked["spec"], made.get("spec") or {}),
    )
    changes = [
        f"{part}.{key} is {theirs.get(key, 'gone')}"
        for part, ours, theirs in parts
        for key, value in ours.items()
        if key != "labels" and theirs.get(key) != value
    ]
    cause = "something in the cluster, such as an admission policy, changes the pods that the provisioner creates"
    return f"{cause}: {', '.join(changes)}" if changes else ""


_shared = lru_cache(RECENT)(str)
"""Return the text as one object that all pods with this text share, because thousands of pods have the same time of
creation."""


def get_wait(machine: Machine) -> Wait | None:
    """Return the wait of a pod if only Events can contain the reason of the wait; None for any other pod."""
    if machine.phase is not Phase.PENDING or machine.failure is None:
        return None
    placed = machine.failure == NOT_PREPARED
    return Wait(machine.fingerprint.uid, placed) if placed or machine.failure.error is ErrorClass.STOCKOUT else None
