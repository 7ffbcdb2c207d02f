"""The last known pods of a pool. The pods come from a list, a watch and the responses to our creates.

Changes are applied in the order in which the server made them. The cache keeps only the fields that the plan needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from provisioner.backends import CAUSE_SECONDS, BackendError
from provisioner.backends.client_connections import MOST_PAGES
from provisioner.backends.dns import Resolver
from provisioner.backends.gke.own_pods import Ending, Identity, Reading, Wait, get_wait, sought_machine
from provisioner.backends.gke.pod_status import Pod
from provisioner.backends.responses import words
from provisioner.model import ErrorClass, Failure, LossCause, Machine, Notice, Phase

UNRESOLVED = Failure(ErrorClass.OTHER, "its name does not resolve yet")


MOST_ASKED = 500
"""Maximum number of pods that one observation reads by name. Each name costs a call, and thousands of pods may vanish
at once."""

MOST_PODS = 500 * MOST_PAGES
"""Largest number of pods in a list and in a cache. The largest GKE cluster has as many pods."""

FAILED = "FailedScaleUp"
"""Reason of an autoscaler's Event on a pod: the autoscaler could not get a node for the pod."""


def check_number(pods: int) -> None:
    """Raise BackendError if there are so many pods that the list seems endless."""
    if pods > MOST_PODS:
        raise BackendError(ErrorClass.OTHER, f"the server has more than {MOST_PODS} pods of ours")


class PodCache:
    """Pods by name. All observations share one mapping of machines until something changes. Thread-safe."""

    def __init__(
        self, identity: Identity, resolver: Resolver | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make an empty cache. With a ``resolver``, a machine counts as running only after its name has resolved.
        ``clock``: monotonic time."""
        self.identity = identity
        self._resolver, self._clock = resolver, clock
        self._lock = threading.Lock()
        self._pods: dict[str, Machine] = {}
        """Machines by name, without their notices, because a notice contains loop time."""
        self._endings: dict[str, tuple[Ending, float]] = {}
        """Announced ends of pods, each with the monotonic time at which the end became known, by name."""
        self._created: dict[str, int] = {}
        """Names of pods that only the responses to our creates have shown, each with the response's version."""
        self._causes: dict[str, tuple[LossCause | None, float]] = {}
        """Causes of pods' ends, each with the monotonic time at which the cause became known, in the order of time. The
        cause is None if the watch reported a delete, but no end and no termination before."""
        self._waits: dict[str, tuple[Wait, float]] = {}
        """Waiting pods by name, each with the monotonic time at which the wait began."""
        self._reasons: Mapping[Wait, Failure] = {}
        """Reasons why pods wait, from their Events."""
        self._version = 0
        self._dirty: set[str] = set()
        self._machines: Mapping[str, Machine] = {}
        self._strayed_view: tuple[Mapping[str, Machine], Mapping[str, Machine], Mapping[str, Machine]] | None = None
        """The last snapshot that had strayed machines, as three mappings: the machines that have not strayed, the
        strayed machines, and all machines. None if no snapshot had strayed machines."""

    def replace(self, readings: Iterable[Reading], version: str) -> bool:
        """Replace the pods by a complete list of this version. Return True if something has changed."""
        with self._lock:
            present = {self._store(reading) for reading in readings}
            self._advance(version)
            for name in self._pods.keys() - present - self._created.keys():
                self._drop(name, LossCause.UNKNOWN)
            return bool(self._dirty)

    def apply(self, kind: str, pod: Pod, is_spot: bool | None = None) -> bool:
        """Apply an event of a watch (``ADDED``, ``MODIFIED`` or ``DELETED``). Return True if something has changed."""
        reading, name = self.identity.read(pod, is_spot), pod["metadata"]["name"]
        with self._lock:
            self._version = max(self._version, _number(pod["metadata"].get("resourceVersion")))
            if reading is not None and kind != "DELETED":
                self._store(reading)
            elif name in self._pods and self._pods[name].fingerprint.uid == pod["metadata"].get("uid"):
                # A pod's last status may come together with its end. A pod without a cause was deleted without grace or
                # has lost its labels. A later read of the pod by its name shows which of the two.
                self._drop(name, reading[0].cause if reading is not None else None)
            return bool(self._dirty)

    def advance(self, version: str) -> None:
        """Note that all events up to ``version`` have arrived. A bookmark of the watch has this version."""
        with self._lock:
            self._advance(version)

    def add_created(self, pod: Pod) -> None:
        """Add the pod in the response to our create, unless the watch is already at a newer version.

        So every later observation contains the machine, even if the watch is late.
        """
        reading, version = self.identity.read(pod), _number(pod["metadata"].get("resourceVersion"))
        with self._lock:
            if reading is not None and version > self._version:
                self._created[self._store(reading)] = version

    def waiting(self, seconds: float) -> frozenset[Wait]:
        """Return the pods whose wait has not changed for ``seconds``."""
        with self._lock:
            before = self._clock() - seconds
            return frozenset(wait for wait, since in self._waits.values() if since <= before)

    def explain(self, reasons: Mapping[Wait, Failure]) -> bool:
        """Set the reasons why pods wait. Return True if something has changed."""
        with self._lock:
            before, self._reasons = self._reasons, reasons
            self._dirty.update(name for name, (wait, _) in self._waits.items() if before.get(wait) != reasons.get(wait))
            return bool(self._dirty)

    def machines(self, now: float) -> Mapping[str, Machine]:
        """Return all machines by name at loop time ``now``. If no machine changed, return the same object as before."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            changes = {name: self._machine(name, now) for name in dirty}
            if any(machine != self._machines.get(name) for name, machine in changes.items()):
                present = {name: machine for name, machine in changes.items() if machine is not None}
                machines = {**self._machines, **present}
                for name in changes.keys() - present.keys():
                    machines.pop(name, None)
                self._machines = machines
            return self._machines

    def causes(self) -> Mapping[str, LossCause]:
        """Return, by name, why pods ended in the last ``CAUSE_SECONDS``. Pods that no observation has shown are
        included. The cause is UNKNOWN if no watch showed the cause."""
        with self._lock:
            before = self._clock() - CAUSE_SECONDS
            while self._causes and self._causes[oldest := next(iter(self._causes))][1] < before:
                del self._causes[oldest]
            return {name: cause or LossCause.UNKNOWN for name, (cause, _) in self._causes.items()}

    def worth_asking(self, sought: Mapping[str, str]) -> dict[str, str]:
        """Return the sought names that an observation reads one by one, each with its expected uid. Return at most
        ``MOST_ASKED`` names.

        A name with a uid is left out if the cause of its machine's end is known. Strayed machines come first.
        """
        causes, strayed = self.causes(), self._strayed_view[1] if self._strayed_view else {}
        names = [name for name, uid in sought.items() if not uid or causes.get(name) in (None, LossCause.UNKNOWN)]
        return {name: sought[name] for name in sorted(names, key=lambda name: name not in strayed)[:MOST_ASKED]}

    def with_strayed(self, there: Mapping[str, Pod], sought: Mapping[str, str], now: float) -> Mapping[str, Machine]:
        """Return all machines, including strayed machines. If no machine has changed, return the same object as before.

        ``there``: the existing pods with a name in ``sought``, whoever owns them. ``sought``: the expected uid of each
        name. If the cache lacks a pod with our labels, the cache has missed an event, and the pod has not strayed.
        """
        self._note_absent(sought.keys() - there.keys())
        shown, before = self.machines(now), self._strayed_view[1] if self._strayed_view else {}
        strayed = {
            name: sought_machine(pod, now, before.get(name), strayed=not self.identity.owns(pod))
            for name, pod in there.items()
            if name not in shown and self.identity.made(pod, sought[name])
        }
        if not strayed:
            return shown
        if self._strayed_view is None or self._strayed_view[0] is not shown or self._strayed_view[1] != strayed:
            self._strayed_view = shown, strayed, {**shown, **strayed}
        return self._strayed_view[2]

    def is_missing_any(self, there: Mapping[str, Pod]) -> bool:
        """Return True if the cache lacks a pod of ours among these pods. The cache has then missed an event."""
        with self._lock:
            return any(name not in self._pods and self.identity.owns(pod) for name, pod in there.items())

    def _note_absent(self, gone: Iterable[str]) -> None:
        """Note that pods of these names do not exist. An end that the watch reported without a cause then has the
        cause DELETED. (The watch reports such an end also for a pod that only lost its labels.)"""
        with self._lock:
            for name in gone:
                if name in self._causes and self._causes[name][0] is None:
                    del self._causes[name]
                    self._causes[name] = LossCause.DELETED, self._clock()

    def _store(self, reading: Reading) -> str:
        """Store machine and announced end, as they were read from a pod. Return the pod's name."""
        (machine, ending), name = reading, reading[0].name
        check_number(len(self._pods) + (name not in self._pods))
        old, (ending_before, since) = self._pods.get(name), self._endings.get(name, (None, 0.0))
        self._created.pop(name, None)
        self._causes.pop(name, None)
        if (old, ending_before) == reading:
            return name
        if old is not None:  # Keep equal parts in memory only once. The plan's memory also refers to these parts.
            fingerprint = old.fingerprint if old.fingerprint == machine.fingerprint else machine.fingerprint
            machine = replace(machine, name=old.name, fingerprint=fingerprint)
        self._pods[name] = machine
        self._endings.pop(name, None)
        if ending is not None:
            self._endings[name] = (ending, since if ending == ending_before else self._clock())
        wait = get_wait(machine)
        if wait is None:
            self._waits.pop(name, None)
        elif name not in self._waits or self._waits[name][0] != wait:
            self._waits[name] = wait, self._clock()
        self._dirty.add(name)
        return name

    def _drop(self, name: str, cause: LossCause | None) -> None:
        known: tuple[dict[str, Any], ...] = (self._causes, self._pods, self._endings, self._created, self._waits)
        for entries in known:
            entries.pop(name, None)
        self._causes[name] = cause, self._clock()
        self._dirty.add(name)
        if self._resolver is not None:
            self._resolver.forget(name)

    def _advance(self, version: str) -> None:
        """Note the version. Remove the pods that we created before this version if no event has shown them."""
        self._version = _number(version)
        for name in [name for name, created in self._created.items() if created <= self._version]:
            self._drop(name, LossCause.UNKNOWN)

    def _machine(self, name: str, now: float) -> Machine | None:
        """Return a machine for a snapshot; None if it is gone. A machine is pending as long as its name does not
        resolve."""
        machine = self._pods.get(name)
        if machine is None:
            return None
        if machine.phase is Phase.RUNNING and self._resolver is not None and not self._resolver.is_resolved(name):
            self._dirty.add(name)
            machine = replace(machine, phase=Phase.PENDING, failure=UNRESOLVED, is_nameless=True)
        if name in self._waits:
            machine = _explain_machine(machine, self._waits[name][0], self._reasons)
        if name not in self._endings:
            return machine
        ending, since = self._endings[name]
        return replace(machine, notice=Notice(ending.cause, now + ending.seconds + since - self._clock()))


def _explain_machine(machine: Machine, wait: Wait, reasons: Mapping[Wait, Failure]) -> Machine:
    """Return a waiting machine with the reason from its last Events. A machine has no reason while its node is still
    preparing the machine."""
    why = reasons.get(wait)
    if wait.placed:
        return replace(machine, failure=why, spills_at_once=why is not None and why.error.has_no_room)
    if why is None or machine.failure is None:
        return machine
    combined = Failure(why.error, words(f"{why.text}; {machine.failure.text}"))  # the autoscaler's class, then its text
    return replace(machine, failure=combined, spills_at_once=why.text.startswith(FAILED))


def _number(version: object) -> int:
    """Return a resource version as a number. For another format, return 0, which never counts as newer."""
    return int(version) if isinstance(version, str) and version.isdigit() else 0
