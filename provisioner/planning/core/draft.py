"""The draft of a plan: a working copy of memory that one plan changes. Unchanged parts of memory stay the same objects.

Only this module changes verdicts. ``TRANSITIONS`` lists the allowed changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
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
from provisioner.planning.core import window_and_backoff
from provisioner.planning.core.holds import limits_under_holds
from provisioner.planning.core.slots import find_slot

TRANSITIONS: Mapping[Verdict, frozenset[Verdict]] = {
    # HF returns a lost machine by requestReturnMachines. The slot stays lost; the loop only stops reporting the loss.
    **dict.fromkeys(Verdict, frozenset()),
    # A slot stays open until its request gets the terminal answer, even if its machine already runs.
    # A machine that vanishes before then has failed and is replaced. Its loss is not reported to HF.
    Verdict.OPEN: frozenset({Verdict.SUCCEEDED, Verdict.FAILED, Verdict.WITHDRAWN, Verdict.CANCELLED}),
    # After the terminal answer HF owns the machine, so the slot ends only by a return or a loss.
    Verdict.SUCCEEDED: frozenset({Verdict.RETURNED, Verdict.LOST}),
}
"""Allowed changes of verdicts (law: a terminal answer stays). Any other change is a bug: the draft sets the slot
aside, and the cycle goes on."""


SOON = 0.001
"""Seconds until the next cycle if a plan needs another cycle although its inputs do not change."""

DELETE_AGAIN = 60.0
"""Seconds after which a delete is sent again if the machine still exists, because the first call may have been lost."""


CHANGING = ("requests", "returns", "windows", "orphans", "hosts", "places", "usage", "brake", "generation", "doubles")
"""The parts of a memory that a plan may change. A draft has an attribute of the same name for each."""


class Draft:
    """A working copy of memory, with the plan's other decisions: creates, deletes, deferrals and the next plan's
    time."""

    def __init__(
        self,
        memory: Memory,
        snapshots: dict[str, Snapshot],
        limits: Limits,
        now: float,
        wall: float | None = None,
        holds: Holds = NO_HOLDS,
    ) -> None:
        """Begin a draft.

        ``wall``: the wall clock at ``now``, in epoch seconds. If None, the difference between wall clock and loop time
        that memory recorded still applies.
        """
        self.before = memory
        self.snapshots = snapshots
        """Snapshots that may be acted upon, by pool."""
        self.limits = limits_under_holds(limits, holds) if holds.current else limits
        self.holds = holds
        """Holds in effect. In ``self.limits``, the pools to which they apply are paused."""
        self.busy = frozenset(limits.pools if holds.stop else ())
        """Pools that get no creates and deletes now: all pools if an operator has stopped all, and the pools whose last
        actions are still under way. The caller adds the latter pools."""
        self.now = now
        self.ahead = memory.written.ahead if wall is None else wall - now
        """Seconds by which the wall clock is ahead of loop time; used only to find the date."""
        self.newly_read: list[RequestRecord | ReturnRecord] = []
        """Requests and return requests that were read for the first time."""
        self.requests = dict(memory.requests)
        self.returns = dict(memory.returns)
        self.windows, self.doubles = dict(memory.windows), dict(memory.doubles)
        self.orphans, self.hosts, self.places = memory.orphans, memory.hosts, memory.places
        self.generation, self.brake, self.usage = memory.generation, memory.brake, memory.usage
        self.creates: list[Create] = []
        self.deletes: list[Delete] = []
        self.deferrals: dict[str, Deferral] = {}
        """By request id: the machines of the request that no pool takes now."""
        self.forget: list[str] = []
        self.due_at = NEVER
        self.unknown: dict[str, list[str]] = {}
        """Machines of ours in each pool that no slot explains."""
        self.distrusted: dict[str, Distrusted] = {}
        """Pools whose snapshot may not be acted upon."""
        self._slots: dict[str, dict[int, Slot]] = {}
        """Slots by number, for each request whose slots the draft has changed. The records in ``requests`` contain the
        same objects."""

    @property
    def deferred(self) -> Mapping[tuple[str, str, PendingReason], int]:
        """Return the number of deferred machines by pool, template and reason."""
        totals = Counter[tuple[str, str, PendingReason]]()
        for id_, one in self.deferrals.items():
            totals[one.pool, self.requests[id_].template, one.reasons[one.pool]] += one.machines
        return totals

    def wake_at(self, when: float) -> None:
        """Ask for a plan at ``when``. A moment in the past has no effect."""
        if self.now < when < self.due_at:
            self.due_at = when

    def is_due(self, when: float) -> bool:
        """Return whether the moment ``when`` has come. If it has not, ask for a plan at this moment."""
        self.wake_at(when)
        return self.now >= when

    def records(self) -> Iterator[RequestRecord]:
        """Yield every request, with the changes so far. The caller may change requests while it iterates."""
        for id_ in list(self.requests):
            yield self.requests[id_]

    def slots(self) -> Iterator[tuple[RequestRecord, Slot]]:
        """Yield every slot with its request. Both contain the changes so far."""
        return ((record, slot) for record in self.records() for slot in record.slots.values())

    def find_slot(self, name: str) -> Slot | None:
        """Return the slot with this name, with the changes so far; None if it is unknown."""
        return find_slot(self.requests, self.limits.prefix, name)

    def forget_request(self, id_: str) -> None:
        """Forget a request."""
        del self.requests[id_]
        self._slots.pop(id_, None)

    def update_record(self, id_: str, **changes: Any) -> None:
        """Change fields of a request, but not its slots."""
        self.requests[id_] = replace(self.requests[id_], **changes)

    def put_slots(self, id_: str, *changed: Slot) -> None:
        """Replace or add slots of a request. The first call copies the slots of the request, and later calls change
        the copy."""
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
        """Close a slot with a verdict, and return the changed slot. If ``TRANSITIONS`` forbids the verdict, keep the
        old verdict and mark the slot as set aside, so that no action is planned for it."""
        if verdict not in TRANSITIONS[slot.verdict]:
            changed = slot._replace(is_set_aside=True)
        else:
            gone = gone or (slot.submitted_at is None and not slot.observed.was_seen)
            changed = slot._replace(
                verdict=verdict,
                failure=failure or slot.failure,
                observed=slot.observed._replace(cause=cause or slot.observed.cause, notice=None),
                deletion=slot.deletion._replace(closed_at=self.now, reason=reason, is_gone=gone),
            )
            if not gone:
                self.wake_at(self.now + SOON)  # the next plan sends the delete
        self.put_slots(slot.request, changed)
        return changed

    def expiry(self, pool: str, expires: float | None) -> float | None:
        """Return the moment in loop time at which the place will end a machine.

        Return None if the moment is unknown or the pool is not observed. ``expires``: the same moment in epoch seconds
        by the place's clock.
        """
        snapshot = self.snapshots.get(pool)
        if expires is None or snapshot is None or snapshot.wall is None:
            return None
        return snapshot.began_at + expires - snapshot.wall

    def pool(self, name: str) -> PoolLimits:
        """Return the limits of a pool. If the configuration has no such pool, the limits allow no new machine."""
        return self.limits.pools.get(name) or PoolLimits(name=name, max_machines=0, is_paused=True)

    def window(self, pool: str, template: str) -> Window:
        """Return the window of a template in a pool; a new window if the pool's spec has changed."""
        snapshot = self.snapshots.get(pool)
        spec = snapshot.spec if snapshot else ""
        return window_and_backoff.update(self.windows.get((pool, template)), self.pool(pool), spec)

    def set_window(self, pool: str, template: str, changed: Window) -> None:
        """Record the window of a template in a pool."""
        if self.windows.get((pool, template)) != changed:
            self.windows[pool, template] = changed

    def count_failed_boot(self, slot: Slot, failure: Failure) -> None:
        """Count a failed boot against the window of the slot's pool and template.

        A boot has failed if the machine did not run although its create was accepted, or was perhaps carried out.
        """
        key = slot.pool, self.requests[slot.request].template
        before, asked_at = self.window(*key), slot.asked_at
        changed = window_and_backoff.after_failure(before, failure, asked_at, self.now, self.limits, boot=True)
        self.set_window(*key, changed)

    def latch(self, reason: BrakeReason, detail: str, pool: str = "") -> None:
        """Latch the brake. Orphans are then not deleted until an operator releases the brake (law: the brake).

        If the brake is already latched, its first reason stays, with one exception. IDENTITY_CONFLICT replaces
        TOO_MANY_ORPHANS, because the other provisioner explains why there are too many orphans.
        """
        is_explained = reason is BrakeReason.IDENTITY_CONFLICT and self.brake is not None
        if self.brake is None or (is_explained and self.brake.reason is BrakeReason.TOO_MANY_ORPHANS):
            self.brake = Brake(reason, self.now if self.brake is None else self.brake.since, detail, pool)

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """Return the changes of slots so far."""
        return tuple(self._transitions())

    @property
    def window_changes(self) -> tuple[WindowChange, ...]:
        """Return the changes of windows so far."""
        former = self.before.windows
        changed = {key: one for key, one in self.windows.items() if former.get(key) is not one}
        return tuple(WindowChange(*key, former.get(key), one) for key, one in changed.items())

    def _transitions(self) -> Iterator[Transition]:
        for id_, slots in self._slots.items():
            record, former = self.requests[id_], self.before.requests.get(id_)
            known = former.slots if former else {}
            for number, slot in slots.items():
                if (before := known.get(number)) is not slot:
                    yield Transition(record.template, record.read_at, before, slot)

    def memory(self) -> Memory:
        """Return the memory to record. If the plan changed no part of memory, return the original object."""
        new = {name: getattr(self, name) for name in CHANGING}
        changes = {name: value for name, value in new.items() if value != getattr(self.before, name)}
        return replace(self.before, **changes) if changes else self.before
