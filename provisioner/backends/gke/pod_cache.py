"""The pods of a pool as last heard of: what a list, a watch and our own creates say, in the server's order.

Keeps of each pod only what the plan needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from provisioner.backends import CAUSE_SECONDS, BackendError
from provisioner.backends.connections import MOST_PAGES
from provisioner.backends.dns import Resolver
from provisioner.backends.gke.api import words
from provisioner.backends.gke.pod_status import Pod
from provisioner.backends.gke.pods import Ending, Identity, Reading, Wait, sought_machine, waits
from provisioner.model import ErrorClass, Failure, LossCause, Machine, Notice, Phase

UNRESOLVED = Failure(ErrorClass.OTHER, "its name does not resolve yet")


MOST_ASKED = 500
"""Names that one observation asks the server for, a call each: thousands of pods may go at once."""

MOST_PODS = 500 * MOST_PAGES
"""Pods in a list, and in a cache: as many as the largest GKE cluster has."""

FAILED = "FailedScaleUp"
"""Reason of the autoscaler's Events on pods for which it could not get a node."""


def check_number(pods: int) -> None:
    """Raise BackendError for so many pods that they do not seem to end."""
    if pods > MOST_PODS:
        raise BackendError(ErrorClass.OTHER, f"the server has more than {MOST_PODS} pods of ours")


class PodCache:
    """Pods by name, and the one mapping of machines that all observations share until something changes.
    Thread-safe."""

    def __init__(
        self, identity: Identity, resolver: Resolver | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """With a ``resolver`` a machine runs only once its name resolves. ``clock`` is monotonic."""
        self.identity = identity
        self._resolver, self._clock = resolver, clock
        self._lock = threading.Lock()
        self._pods: dict[str, Machine] = {}
        """Machines by name, without their notices, whose end is loop time."""
        self._endings: dict[str, tuple[Ending, float]] = {}
        """The coming ends of pods, and the monotonic time at which each was first known."""
        self._created: dict[str, int] = {}
        """Names that only our own create has shown so far, and the version it gave them."""
        self._causes: dict[str, tuple[LossCause | None, float]] = {}
        """The causes why pods went, and the monotonic time at which they did, in that order; None for pods that a watch
        said are gone, and that neither ended nor were ending before."""
        self._waits: dict[str, tuple[Wait, float]] = {}
        """The pods that wait, by name; since when, in monotonic time."""
        self._reasons: Mapping[Wait, Failure] = {}
        """The reasons why pods wait, from their Events."""
        self._version = 0
        self._dirty: set[str] = set()
        self._machines: Mapping[str, Machine] = {}
        self._union: tuple[Mapping[str, Machine], Mapping[str, Machine], Mapping[str, Machine]] | None = None
        """The machines that were shown last with some that strayed, the latter, and both."""

    def replace(self, readings: Iterable[Reading], version: str) -> bool:
        """Take a complete list of that version; True when there is something new."""
        with self._lock:
            present = {self._put(reading) for reading in readings}
            self._advance(version)
            for name in self._pods.keys() - present - self._created.keys():
                self._drop(name, LossCause.UNKNOWN)
            return bool(self._dirty)

    def apply(self, kind: str, pod: Pod, is_spot: bool | None = None) -> bool:
        """Take an event of a watch (``ADDED``, ``MODIFIED`` or ``DELETED``); True when there is something new."""
        reading, name = self.identity.read(pod, is_spot), pod["metadata"]["name"]
        with self._lock:
            self._version = max(self._version, _number(pod["metadata"].get("resourceVersion")))
            if reading is not None and kind != "DELETED":
                self._put(reading)
            elif name in self._pods and self._pods[name].fingerprint.uid == pod["metadata"].get("uid"):
                # A pod's last status may come together with its end. One without a cause was deleted without grace,
                # or has lost its labels: who asks by its name knows.
                self._drop(name, reading[0].cause if reading is not None else None)
            return bool(self._dirty)

    def advance(self, version: str) -> None:
        """Note that everything up to this version has been heard (a bookmark)."""
        with self._lock:
            self._advance(version)

    def add_created(self, pod: Pod) -> None:
        """Take the response to our own create, unless the watch is past it: then it has brought all that there is.

        So a machine whose create was accepted is never absent from a later observation, however late the watch is.
        """
        reading, version = self.identity.read(pod), _number(pod["metadata"].get("resourceVersion"))
        with self._lock:
            if reading is not None and version > self._version:
                self._created[self._put(reading)] = version

    def waiting(self, seconds: float) -> frozenset[Wait]:
        """The pods that have waited for so long for the same."""
        with self._lock:
            before = self._clock() - seconds
            return frozenset(wait for wait, since in self._waits.values() if since <= before)

    def explain(self, reasons: Mapping[Wait, Failure]) -> bool:
        """Take the reasons why pods wait; True when there is something new."""
        with self._lock:
            before, self._reasons = self._reasons, reasons
            self._dirty.update(name for name, (wait, _) in self._waits.items() if before.get(wait) != reasons.get(wait))
            return bool(self._dirty)

    def machines(self, now: float) -> Mapping[str, Machine]:
        """All machines by name, at loop time ``now``: the same object as before when nothing changed."""
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
        """The pods that went lately, also those that no observation has shown, and why, as far as a watch has shown."""
        with self._lock:
            before = self._clock() - CAUSE_SECONDS
            while self._causes and self._causes[oldest := next(iter(self._causes))][1] < before:
                del self._causes[oldest]
            return {name: cause or LossCause.UNKNOWN for name, (cause, _) in self._causes.items()}

    def worth_asking(self, sought: Mapping[str, str]) -> dict[str, str]:
        """Return those of the sought names (by name: the uid that is meant) to ask the server for in one observation.

        Those that strayed come first; what is known of a pod's end is not asked for again.
        """
        causes, strayed = self.causes(), self._union[1] if self._union else {}
        names = [name for name, uid in sought.items() if not uid or causes.get(name) in (None, LossCause.UNKNOWN)]
        return {name: sought[name] for name in sorted(names, key=lambda name: name not in strayed)[:MOST_ASKED]}

    def with_strayed(self, there: Mapping[str, Pod], sought: Mapping[str, str], now: float) -> Mapping[str, Machine]:
        """Return ``machines`` with those that strayed; the same object as before if nothing changed.

        ``there``: the pods that stand under the names ``sought``, whoever's they are; the uid that is meant of each. A
        pod that has our labels is no stray: then it is the cache that lacks it.
        """
        self._confirm(sought.keys() - there.keys())
        shown, before = self.machines(now), self._union[1] if self._union else {}
        strayed = {
            name: sought_machine(pod, now, before.get(name), strayed=not self.identity.owns(pod))
            for name, pod in there.items()
            if name not in shown and self.identity.made(pod, sought[name])
        }
        if not strayed:
            return shown
        if self._union is None or self._union[0] is not shown or self._union[1] != strayed:
            self._union = shown, strayed, {**shown, **strayed}
        return self._union[2]

    def lacks(self, there: Mapping[str, Pod]) -> bool:
        """True if one of these pods is ours and not known here: what was heard is not the whole."""
        with self._lock:
            return any(name not in self._pods and self.identity.owns(pod) for name, pod in there.items())

    def _confirm(self, gone: Iterable[str]) -> None:
        """Take it that no pods of these names stand: those that left without a cause were deleted without grace."""
        with self._lock:
            for name in gone:
                if name in self._causes and self._causes[name][0] is None:
                    del self._causes[name]
                    self._causes[name] = LossCause.DELETED, self._clock()

    def _put(self, reading: Reading) -> str:
        """Remember what was read of a pod; its name."""
        (machine, ending), name = reading, reading[0].name
        check_number(len(self._pods) + (name not in self._pods))
        old, (ending_before, since) = self._pods.get(name), self._endings.get(name, (None, 0.0))
        self._created.pop(name, None)
        self._causes.pop(name, None)
        if (old, ending_before) == reading:
            return name
        if old is not None:  # What both have in common is kept once: the plan's memory holds that, too.
            fingerprint = old.fingerprint if old.fingerprint == machine.fingerprint else machine.fingerprint
            machine = replace(machine, name=old.name, fingerprint=fingerprint)
        self._pods[name] = machine
        self._endings.pop(name, None)
        if ending is not None:
            self._endings[name] = (ending, since if ending == ending_before else self._clock())
        wait = waits(machine)
        if wait is None:
            self._waits.pop(name, None)
        elif name not in self._waits or self._waits[name][0] != wait:
            self._waits[name] = wait, self._clock()
        self._dirty.add(name)
        return name

    def _drop(self, name: str, cause: LossCause | None) -> None:
        known: tuple[dict[str, Any], ...] = (self._causes, self._pods, self._endings, self._created, self._waits)
        for facts in known:
            facts.pop(name, None)
        self._causes[name] = cause, self._clock()
        self._dirty.add(name)
        if self._resolver is not None:
            self._resolver.forget(name)

    def _advance(self, version: str) -> None:
        """What we created before this version and the server has not shown since does not exist any more."""
        self._version = _number(version)
        for name in [name for name, created in self._created.items() if created <= self._version]:
            self._drop(name, LossCause.UNKNOWN)

    def _machine(self, name: str, now: float) -> Machine | None:
        """A machine as the plan sees it. One whose name does not resolve yet is looked at again next time."""
        machine = self._pods.get(name)
        if machine is None:
            return None
        if machine.phase is Phase.RUNNING and self._resolver is not None and not self._resolver.resolves(name):
            self._dirty.add(name)
            machine = replace(machine, phase=Phase.PENDING, failure=UNRESOLVED, nameless=True)
        if name in self._waits:
            machine = _explained(machine, self._waits[name][0], self._reasons)
        if name not in self._endings:
            return machine
        ending, since = self._endings[name]
        return replace(machine, notice=Notice(ending.cause, now + ending.seconds + since - self._clock()))


def _explained(machine: Machine, wait: Wait, reasons: Mapping[Wait, Failure]) -> Machine:
    """A machine that waits, with its last Events. One whose node has only begun to prepare it has none."""
    why = reasons.get(wait)
    if wait.placed:
        return replace(machine, failure=why, no_room=why is not None and why.error.has_no_room)
    if why is None or machine.failure is None:
        return machine
    said = Failure(why.error, words(f"{why.text}; {machine.failure.text}"))  # the autoscaler's class, then words
    return replace(machine, failure=said, no_room=why.text.startswith(FAILED))


def _number(version: object) -> int:
    """A resource version as the number it is; 0 when a server uses another form, which then is never ahead."""
    return int(version) if isinstance(version, str) and version.isdigit() else 0
