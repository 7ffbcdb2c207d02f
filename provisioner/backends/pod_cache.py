"""The pods of one pool as last heard of: what a list, a watch and our own creates say, in the server's order.

Thread-safe. Keeps of each pod only what the plan needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from provisioner.backends.pods import Ending, Identity, Pod, Reading
from provisioner.backends.resolver import Resolver
from provisioner.model import ErrorClass, Failure, Machine, Notice, Phase

UNRESOLVED = Failure(ErrorClass.OTHER, "its name does not resolve yet")


@dataclass(frozen=True, slots=True)
class _Seen:
    """One pod as it was last heard of."""

    machine: Machine
    """Without its notice, whose end is loop time."""
    ending: Ending | None
    since: float
    """Monotonic time at which ``ending`` was first heard."""


class PodCache:
    """Pods by name, and the one mapping of machines that all looks share until something changes."""

    def __init__(
        self, identity: Identity, resolver: Resolver | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """With a ``resolver`` a machine runs only once its name resolves. ``clock`` is monotonic."""
        self._identity, self._resolver, self._clock = identity, resolver, clock
        self._lock = threading.Lock()
        self._pods: dict[str, _Seen] = {}
        self._created: dict[str, int] = {}
        """Names that only our own create has shown so far, and the version it gave them."""
        self._version = 0
        self._dirty: set[str] = set()
        self._machines: Mapping[str, Machine] = {}

    def replace(self, readings: Iterable[Reading], version: str) -> bool:
        """Take a complete list of that version; True when there is something new."""
        with self._lock:
            present = {self._put(reading) for reading in readings}
            self._advance(version)
            for name in self._pods.keys() - present - self._created.keys():
                self._drop(name)
            return bool(self._dirty)

    def apply(self, kind: str, pod: Pod) -> bool:
        """Take an event of a watch (``ADDED``, ``MODIFIED`` or ``DELETED``); True when there is something new."""
        reading, name = self._identity.read(pod), pod["metadata"]["name"]
        with self._lock:
            self._version = max(self._version, _number(pod["metadata"].get("resourceVersion")))
            if reading is not None and kind != "DELETED":
                self._put(reading)
            elif name in self._pods and self._pods[name].machine.fingerprint.uid == pod["metadata"].get("uid"):
                self._drop(name)
            return bool(self._dirty)

    def advance(self, version: str) -> None:
        """Everything up to this version has been heard (a bookmark)."""
        with self._lock:
            self._advance(version)

    def add_created(self, pod: Pod) -> None:
        """Take the answer to our own create, unless the watch is past it: then it has told all there is to tell.

        So a machine whose create was accepted is never absent from a later look, however late the watch is.
        """
        reading, version = self._identity.read(pod), _number(pod["metadata"].get("resourceVersion"))
        with self._lock:
            if reading is not None and version > self._version:
                self._created[self._put(reading)] = version

    def machines(self, now: float) -> Mapping[str, Machine]:
        """All machines by name, at loop time ``now``: the same object as before when nothing changed."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            changes = {name: self._machine(name, now) for name in dirty}
            if any(machine != self._machines.get(name) for name, machine in changes.items()):
                merged = {**self._machines, **changes}
                self._machines = {name: machine for name, machine in merged.items() if machine is not None}
            return self._machines

    def _put(self, reading: Reading) -> str:
        """Remember what was read of a pod; its name."""
        machine, ending = reading
        old = self._pods.get(machine.name)
        self._created.pop(machine.name, None)
        if old is None or (old.machine, old.ending) != reading:
            since = old.since if old is not None and old.ending == ending else self._clock()
            self._pods[machine.name] = _Seen(machine, ending, since)
            self._dirty.add(machine.name)
        return machine.name

    def _drop(self, name: str) -> None:
        self._pods.pop(name, None)
        self._created.pop(name, None)
        self._dirty.add(name)
        if self._resolver is not None:
            self._resolver.forget(name)

    def _advance(self, version: str) -> None:
        """What we created before this version and the server has not shown since does not exist any more."""
        self._version = _number(version)
        for name in [name for name, created in self._created.items() if created <= self._version]:
            self._drop(name)

    def _machine(self, name: str, now: float) -> Machine | None:
        """A machine as the plan sees it. One whose name does not resolve yet is looked at again next time."""
        seen = self._pods.get(name)
        if seen is None:
            return None
        machine = seen.machine
        if machine.phase is Phase.RUNNING and self._resolver is not None and not self._resolver.resolves(name):
            self._dirty.add(name)
            machine = replace(machine, phase=Phase.PENDING, failure=UNRESOLVED)
        if seen.ending is None:
            return machine
        return replace(
            machine, notice=Notice(seen.ending.cause, now + seen.ending.seconds + seen.since - self._clock())
        )


def _number(version: object) -> int:
    """A resource version as the number it is; 0 when a server uses another form, which then is never ahead."""
    return int(version) if isinstance(version, str) and version.isdigit() else 0
