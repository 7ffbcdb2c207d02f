"""A memory while it is being changed by one plan: what did not change stays the very same object.

Verdicts change here and nowhere else, by the table in ``TRANSITIONS``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from provisioner.model import (
    NEVER,
    NO_HOLDS,
    Brake,
    BrakeReason,
    Create,
    Deferral,
    Delete,
    DeleteReason,
    Distrusted,
    Failure,
    Holds,
    Limits,
    LossCause,
    Memory,
    PendingReason,
    PoolLimits,
    RequestRecord,
    ReturnRecord,
    Slot,
    Snapshot,
    Transition,
    Verdict,
    Window,
    WindowChange,
)
from provisioner.planning.core import window
from provisioner.planning.core.holds import in_force
from provisioner.planning.core.slots import slot_named

TRANSITIONS: Mapping[Verdict, frozenset[Verdict]] = {
    # A slot stays open, also while its machine runs, until its request gets its terminal answer:
    # a machine that vanishes before that is failed and replaced, so HF never hears of it.
    Verdict.OPEN: frozenset({Verdict.SUCCEEDED, Verdict.FAILED, Verdict.WITHDRAWN, Verdict.CANCELLED}),
    # After the terminal answer HF owns the machine: it ends only by HF's return or by being lost.
    Verdict.SUCCEEDED: frozenset({Verdict.RETURNED, Verdict.LOST}),
    # HF hands a lost machine back through requestReturnMachines; it stays lost, the return merely ends the report.
    Verdict.LOST: frozenset(),
    Verdict.RETURNED: frozenset(),
    Verdict.FAILED: frozenset(),
    Verdict.WITHDRAWN: frozenset(),
    Verdict.CANCELLED: frozenset(),
}
"""The verdict table (law: a terminal answer stays). Anything else is a bug: the slot is set aside and the cycle goes
on."""


SOON = 0.001
"""Seconds from now that mean: with the next cycle, whether or not anything else changes."""

DELETE_AGAIN = 60.0
"""Seconds after which a delete is sent again when the machine is still there: a call that gets lost must not leave a
machine for ever."""


CHANGING = ("requests", "returns", "windows", "orphans", "hosts", "places", "usage", "brake", "generation")
"""Parts of a memory that a plan may change; a draft has attributes of the same names."""


class Draft:
    """Working copy of a memory, with everything else that a plan decides."""

    def __init__(
        self,
        memory: Memory,
        snapshots: dict[str, Snapshot],
        limits: Limits,
        now: float,
        wall: float | None = None,
        holds: Holds = NO_HOLDS,
    ) -> None:
        """``wall``: the wall clock at ``now``; None: as far ahead of loop time as when ``memory`` was written."""
        self.before = memory
        self.snapshots = snapshots
        """The pools that may be acted upon."""
        self.limits = in_force(limits, holds) if holds.current else limits
        self.holds = holds
        """Those that are held; ``self.limits`` pauses the pools that they hold."""
        self.now = now
        self.ahead = memory.written.ahead if wall is None else wall - now
        """Seconds from loop time to the wall clock, which says what day it is and nothing else."""
        self.asked: list[RequestRecord | ReturnRecord] = []
        """Requests and return requests that were read for the first time."""
        self.requests = dict(memory.requests)
        self.returns = dict(memory.returns)
        self.windows = dict(memory.windows)
        self.orphans, self.hosts, self.places = memory.orphans, memory.hosts, memory.places
        self.generation, self.brake, self.usage = memory.generation, memory.brake, memory.usage
        self.creates: list[Create] = []
        self.deletes: list[Delete] = []
        self.deferrals: dict[str, Deferral] = {}
        """Machines of each request that no pool takes now."""
        self.forget: list[str] = []
        self.due = NEVER
        self.unknown: dict[str, list[str]] = {}
        """Machines of ours in each pool that no slot explains."""
        self.distrusted: dict[str, Distrusted] = {}
        """Pools whose snapshot may not be acted upon."""
        self._slots: dict[str, dict[int, Slot]] = {}
        """Those of the requests of which a slot was put: what the records in ``requests`` hold."""

    @property
    def deferred(self) -> Mapping[tuple[str, str, PendingReason], int]:
        """The same by pool, template and reason."""
        totals = Counter[tuple[str, str, PendingReason]]()
        for id_, one in self.deferrals.items():
            totals[one.pool, self.requests[id_].template, one.reasons[one.pool]] += one.machines
        return totals

    def wake_at(self, when: float) -> None:
        """Something will have to be decided at ``when``."""
        if self.now < when < self.due:
            self.due = when

    def records(self) -> Iterator[RequestRecord]:
        """Every request, as changed so far; the caller may change them meanwhile."""
        for id_ in list(self.requests):
            yield self.requests[id_]

    def named(self, name: str) -> Slot | None:
        """The slot of this name, as changed so far."""
        return slot_named(self.requests, self.limits.prefix, name)

    def drop(self, id_: str) -> None:
        """Forget a request."""
        del self.requests[id_]
        self._slots.pop(id_, None)

    def update(self, id_: str, **changes: Any) -> None:
        """Change facts of a request (never its slots)."""
        self.requests[id_] = replace(self.requests[id_], **changes)

    def put(self, id_: str, *changed: Slot) -> None:
        """Replace or add slots of a request; the record that ``requests`` holds from the first time on has them all."""
        slots = self._slots.get(id_)
        if slots is None:
            record = self.requests[id_]
            slots = self._slots[id_] = dict(record.slots)
            self.requests[id_] = replace(record, slots=slots)
        for slot in changed:
            slots[slot.number] = slot

    def close(
        self,
        slot: Slot,
        verdict: Verdict,
        *,
        reason: DeleteReason | None = None,
        failure: Failure | None = None,
        cause: LossCause | None = None,
        gone: bool = False,
    ) -> Slot:
        """Give a slot its verdict; one that the table forbids sets the slot aside instead."""
        if verdict not in TRANSITIONS[slot.verdict]:
            changed = slot._replace(set_aside=True)
        else:
            gone = gone or (slot.submitted is None and not slot.observed.seen)
            changed = slot._replace(
                verdict=verdict,
                failure=failure or slot.failure,
                observed=slot.observed._replace(cause=cause or slot.observed.cause, notice=None),
                deletion=slot.deletion._replace(closed=self.now, reason=reason, gone=gone),
            )
            if not gone:
                self.wake_at(self.now + SOON)  # to see that it goes
        self.put(slot.request, changed)
        return changed

    def expiry(self, pool: str, expires: float | None) -> float | None:
        """Return the loop time of an end by the clock of a pool's place; None if unknown, or the pool is not seen."""
        snapshot = self.snapshots.get(pool)
        if expires is None or snapshot is None or snapshot.wall is None:
            return None
        return snapshot.began + expires - snapshot.wall

    @property
    def stopped(self) -> Set[str]:
        """Pools in which nothing may be made or deleted."""
        return self.limits.pools.keys() if self.holds.stop else frozenset()

    def pool(self, name: str) -> PoolLimits:
        """A pool's limits; those of a pool that left the configuration allow nothing new."""
        return self.limits.pools.get(name) or PoolLimits(name=name, max_machines=0, paused=True)

    def window(self, pool: str, template: str) -> Window:
        """Return the window of a template in a pool; a new one if the pool's spec changed."""
        snapshot = self.snapshots.get(pool)
        return window.current(self.windows.get((pool, template)), self.pool(pool), snapshot.spec if snapshot else "")

    def set_window(self, pool: str, template: str, changed: Window) -> None:
        """Remember the window of a template in a pool."""
        if self.windows.get((pool, template)) != changed:
            self.windows[pool, template] = changed

    def count_failed_boot(self, slot: Slot, failure: Failure) -> None:
        """Count in its window that a slot's machine did not run, although its create was taken or may have been."""
        key = slot.pool, self.requests[slot.request].template
        changed = window.failed(self.window(*key), failure, slot.asked_at, self.now, self.limits, boot=True)
        self.set_window(*key, changed)

    def latch(self, reason: BrakeReason, detail: str, pool: str = "") -> None:
        """Stop deleting orphans until a person says otherwise (law: the brake). The first reason stays."""
        if self.brake is None:
            self.brake = Brake(reason, self.now, detail, pool)

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The slots that changed so far."""
        return tuple(self._transitions())

    @property
    def window_changes(self) -> tuple[WindowChange, ...]:
        """The windows that changed so far."""
        former = self.before.windows
        return tuple(
            WindowChange(*key, former.get(key), one) for key, one in self.windows.items() if former.get(key) is not one
        )

    @property
    def closes(self) -> list[Transition]:
        """The slots that ended so far."""
        return [one for one in self._transitions() if one.closes]

    def _transitions(self) -> Iterator[Transition]:
        for id_, slots in self._slots.items():
            record, former = self.requests[id_], self.before.requests.get(id_)
            known = former.slots if former else {}
            for number, slot in slots.items():
                if (before := known.get(number)) is not slot:
                    yield Transition(record.template, record.read, before, slot)

    def memory(self) -> Memory:
        """The memory as it has to be recorded; the one before, when nothing changed."""
        new = {name: getattr(self, name) for name in CHANGING}
        changes = {name: value for name, value in new.items() if value != getattr(self.before, name)}
        return replace(self.before, **changes) if changes else self.before
