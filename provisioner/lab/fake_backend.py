"""A kind of place in memory. A seed decides when machines boot, run and end, and which creates are refused.

The module is an example of a kind, and tests use it. A configuration cannot name this kind until an installed
distribution registers ``KIND`` in the entry-point group that ``backends/registry.py`` names.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from provisioner.backends import Backend, BackendError, MayStart
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.kind import Kind, Surroundings
from provisioner.model import (
    Create,
    Delete,
    ErrorClass,
    Failure,
    Fingerprint,
    LossCause,
    Machine,
    MachineEnd,
    Outcome,
    Phase,
    Queued,
    Snapshot,
)
from provisioner.optional_packages import extra
from provisioner.schema.setting_types import DurationOrZero, Pool, Site, Switch
from provisioner.schema.validation import Expects, Problem

ENDED = Failure(ErrorClass.OTHER, "The machine ended by itself.")

Share = Annotated[float, Field(ge=0, le=1), Expects("a number from 0 to 1")]

# --- the settings -----------------------------------------------------------------------------------------------------


class FakePool(Pool):
    """A pool of machines that exist only in the memory of one process. The machines end with the process."""

    kind: str = "fake"
    """The name under which the kind is registered."""
    queue_seconds: DurationOrZero = 0.0
    """Seconds for which the place holds each machine in a queue before the machine boots; default 0."""
    boot_seconds: DurationOrZero = 0.0
    """Maximum seconds from a create, or from the end of the queue, until the machine runs; default 0. Each machine
    takes a random time up to this limit."""
    stop_seconds: DurationOrZero = 0.0
    """Seconds from a delete until the machine is gone; default 0."""
    refused: Share = 0.0
    """Fraction of the creates that find no room; default 0."""
    crashed: Share = 0.0
    """Fraction of the machines that end by themselves after at most ``crash_seconds``; default 0."""
    crash_seconds: DurationOrZero = 60.0
    """Maximum seconds for which a machine of the fraction ``crashed`` runs; default 60."""
    keeps_records: Switch = False
    """If true, a machine that ended by itself leaves only a record, as a job of a batch system does. If false (the
    default), its leftovers stay until they are deleted."""
    seed: int = 0
    """Seed of all random choices; default 0. With the same seed, a machine of the same name boots and ends in the same
    way."""


# --- the place --------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """The identity that a backend stores in each machine that it creates."""

    provisioner: str
    pool: str
    name: str
    """The name of the machine when it was created. If another program copies the machine, the copy has another name and
    the same mark."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A machine as the place lists it. Times are in seconds of the place's clock."""

    name: str
    uid: str
    ip: str
    mark: Mark | None
    """The mark; None if another program made the machine or removed the mark."""
    launched: int
    """The time of the create in epoch seconds."""
    released: float
    """The time at which the machine leaves the queue."""
    runs: float
    ends: float
    """The time at which the machine ends by itself and leaves leftovers in the place; infinite if the machine does not
    end by itself."""
    gone: float = math.inf
    """The time at which a deleted machine is gone; infinite if the machine was not deleted."""

    def has_strayed(self, uid: str) -> bool:
        """Return True if this machine has the given uid but no mark any more."""
        return self.mark is None and self.uid == uid

    def machine(self, now: float) -> Machine:
        """Return the machine as an observation shows it. ``now``: the time of the observation by the place's clock."""
        cause = queued = None
        if self.gone < math.inf:
            phase, cause = Phase.STOPPING, LossCause.DELETED
        elif self.ends <= now:
            phase, cause = Phase.GONE, LossCause.EXITED
        else:
            phase = Phase.RUNNING if self.runs <= now else Phase.PENDING
            if now < self.released:
                queued = Queued(self.launched, "Priority", int(time.time() + self.released - now))
        fingerprint = Fingerprint(uid=self.uid, ip=self.ip)
        return Machine(self.name, phase, fingerprint, self.ip, launched=self.launched, cause=cause, queued=queued)


class FakePlace:
    """A place with all its machines, including machines of other programs. The place outlives the backends that use it.

    Any thread may call the methods. If a method raises BackendError, the call has had no effect.
    """

    def __init__(self, pool: FakePool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool, self._clock = pool, clock
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self.keeps_records = pool.keeps_records
        self._doubles: dict[str, Entry] = {}
        """Machines that have the same name as another machine, by uid."""
        self._numbers = count(1)
        self.wakes: list[Callable[[], None]] = []
        """Functions that are called when a machine is made or its delete begins."""

    def entries(self) -> dict[str, Entry]:
        """Return all machines by name. Of several machines with one name, return the first."""
        with self._lock:
            now = self._clock()
            self._doubles = {uid: entry for uid, entry in self._doubles.items() if now < entry.gone}
            others = {entry.name: entry for entry in self._doubles.values()}
            self._entries = others | {name: entry for name, entry in self._entries.items() if now < entry.gone}
            self._doubles = {uid: one for uid, one in self._doubles.items() if self._entries[one.name].uid != uid}
            return dict(self._entries)

    def entry(self, name: str) -> Entry | None:
        """Return the machine of this name, without a pass over all machines; None if the machine is gone."""
        if self._doubles:
            return self.entries().get(name)
        there = self._entries.get(name)
        return there if there and self._clock() < there.gone else None

    def records(self) -> Set[str]:
        """Return the names of the machines that ended by themselves and left only a record."""
        with self._lock:
            ended = {name for name, one in self._entries.items() if one.ends <= self._clock() and one.gone == math.inf}
        return ended if self.keeps_records else frozenset()

    def double_machines(self) -> dict[str, tuple[Machine, ...]]:
        """Return the machines of ``doubles`` by name, in the form in which observations show them."""
        made = [entry.machine(self._clock()) for entry in self.doubles()]
        return {name: tuple(one for one in made if one.name == name) for name in {one.name for one in made}}

    def doubles(self) -> Collection[Entry]:
        """Return the machines that have the same name as another machine. Machines that are being deleted are left
        out."""
        with self._lock:
            return [entry for entry in self._doubles.values() if entry.gone == math.inf]

    def create(self, name: str, mark: Mark | None) -> Entry:
        """Make a machine. If a machine with this name and this mark exists, return that machine. Raises BackendError if
        the place has no room, or if the name belongs to another machine or to a machine that is being deleted."""
        chance = random.Random(f"{self._pool.seed} {name}")
        if chance.random() < self._pool.refused:
            raise BackendError(ErrorClass.STOCKOUT, "The place has no room for this machine.")
        there = self.entry(name)
        if there is None:
            there = self._add(name, mark, chance)
        elif there.mark is None or there.mark != mark or there.gone < math.inf:
            raise BackendError(ErrorClass.OTHER, f"the name is taken: {name} exists, and is not ours or about to go")
        return there

    def delete(self, entry: Entry, *, at_once: bool = False) -> None:
        """Begin to delete a machine. A different machine with the same name stays."""
        with self._lock:
            gone = self._clock() + (0.0 if at_once else self._pool.stop_seconds)
            for entries, key in ((self._entries, entry.name), (self._doubles, entry.uid)):
                if (there := entries.get(key)) and there.uid == entry.uid:
                    entries[key] = replace(there, gone=min(there.gone, gone))
        self._wake()

    def double(self, name: str) -> None:
        """Make a second machine with the name and the mark of an existing machine."""
        entry = replace(self._entries[name], uid=f"uid-{next(self._numbers)}")
        with self._lock:
            self._doubles[entry.uid] = entry
        self._wake()

    def unmark(self, name: str) -> None:
        """Remove the mark of a machine, as another program may do."""
        with self._lock:
            self._entries[name] = replace(self._entries[name], mark=None)

    def machines(self, entries: Collection[Entry]) -> dict[str, Machine]:
        """Return these machines as an observation now shows them, by name."""
        now = self._clock()
        return {entry.name: entry.machine(now) for entry in entries}

    def _add(self, name: str, mark: Mark | None, chance: random.Random) -> Entry:
        number, pool = next(self._numbers), self._pool
        released = self._clock() + pool.queue_seconds
        runs = released + pool.boot_seconds * chance.random()
        ends = runs + pool.crash_seconds * chance.random() if chance.random() < pool.crashed else math.inf
        ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        with self._lock:
            entry = self._entries[name] = Entry(name, f"uid-{number}", ip, mark, int(time.time()), released, runs, ends)
        self._wake()
        return entry

    def _wake(self) -> None:
        for wake in self.wakes:
            wake()


# --- the backend ------------------------------------------------------------------------------------------------------


class FakeBackend:
    """A ``provisioner.backends.Backend`` for a pool's machines in a place. The backend recognises the machines by their
    marks."""

    def __init__(self, pool: FakePool, place: FakePlace, *, provisioner: str) -> None:
        self.pool = pool.name
        self.pace = pool.observe_seconds
        self.place = place
        self._provisioner = provisioner
        self._machines: Mapping[str, Machine] = {}

    def start(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` from now on when a machine is created or its delete begins. If a machine starts to run, ends by
        itself or is gone, only the next observation shows the change."""
        self.place.wakes.append(wake)

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return all machines of this pool.

        If no machine has changed, ``machines`` is the same object as in the previous snapshot.
        """
        entries = self.place.entries()
        ended = self.place.records()
        machines = self.place.machines([one for one in entries.values() if self._is_own(one) and one.name not in ended])
        machines |= self._find_strayed(entries, sought)
        if machines != self._machines:
            self._machines = machines
        others = [entries[name] for name in sought if name in entries.keys() - machines.keys() - ended]
        ours = frozenset(entry.name for entry in others if self._is_made_here(entry))
        return Snapshot(
            pool=self.pool,
            began_at=now,
            machines=self._machines,
            foreign=frozenset(entry.name for entry in others) - ours,
            name_collisions=ours,
            spec="fake",
            asked=frozenset(sought),
            ends={name: MachineEnd(LossCause.EXITED, ENDED) for name in ended if self._is_own(entries[name])},
            doubles={name: more for name, more in self.place.double_machines().items() if name in machines},
        )

    def _find_strayed(self, entries: Mapping[str, Entry], sought: Mapping[str, str]) -> dict[str, Machine]:
        """Return the machines that have lost their mark and that have a name and a uid in ``sought``, by name."""
        unmarked = [entries[name] for name, uid in sought.items() if name in entries and entries[name].has_strayed(uid)]
        return {name: replace(machine, is_strayed=True) for name, machine in self.place.machines(unmarked).items()}

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create the machines one after the other, with one call for each machine."""
        calls = [Call((create,), partial(self._create, create)) for create in creates]
        return run_calls(calls, workers=1, may_start=may_start)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Delete the machines one after the other, with one call for each machine."""
        calls = [Call((delete,), partial(self._delete, delete)) for delete in deletes]
        return run_calls(calls, workers=1, may_start=may_start)

    def close(self) -> None:
        """Do nothing, because there is no connection to close."""

    def _create(self, create: Create) -> Mapping[str, Failure]:
        self.place.create(create.name, Mark(self._provisioner, self.pool, create.name))
        return {}

    def _delete(self, delete: Delete) -> Mapping[str, Failure]:
        """Delete the machine with the uid that ``delete`` contains.

        If ``delete`` contains no uid, delete the machine with the name in ``delete``. This machine must have our mark.
        If ``delete.is_adopted`` is true, the machine may be another provider's machine, without our mark.
        """
        named = [self.place.entry(delete.name), *self.place.doubles()]
        entry = next((one for one in named if one and delete.uid in ("", one.uid)), None)
        if entry is not None and (entry.uid == delete.uid if delete.uid else delete.is_adopted or self._is_own(entry)):
            self.place.delete(entry, at_once=delete.is_forced)
        return {}

    def _is_made_here(self, entry: Entry) -> bool:
        """Return True if the machine has a mark of this provisioner."""
        return entry.mark is not None and entry.mark.provisioner == self._provisioner

    def _is_own(self, entry: Entry) -> bool:
        """Return True if the machine's mark names this pool and the machine itself. The mark of a copy names the
        original machine."""
        return entry.mark == (self._provisioner, self.pool, entry.name)


# --- the kind ---------------------------------------------------------------------------------------------------------


class Fake(Kind[FakePool]):
    """The kind ``fake``, as the registry loads it."""

    name: ClassVar = "fake"
    pool = FakePool
    distribution = extra("loop")
    longest_call = 0.0

    def factory(self, site: Site) -> Callable[[FakePool], Backend]:
        """Return a function that makes a backend for a pool. Backends of the same place share its machines."""
        places: dict[tuple[str, ...], FakePlace] = {}

        def backend(pool: FakePool) -> FakeBackend:
            return FakeBackend(pool, places.setdefault(pool.identity, FakePlace(pool)), provisioner=site.id)

        return backend

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return a problem if ``require_dns`` is set, because the names of fake machines do not resolve."""
        return [Problem("", "require_dns", "no name here can be resolved; leave it out")] * bool(
            body.get("require_dns")
        )


KIND = Fake()
