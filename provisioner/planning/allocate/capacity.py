"""Capacity: how many more machines each pool takes for each template now, and what would stop one more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import DESIRED, ErrorClass, Failure, PendingReason, PoolLimits, Slot, Verdict
from provisioner.names import NO_TEMPLATE
from provisioner.planning.allocate.budget import Purse
from provisioner.planning.core import window
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import lacks_room


@dataclass(frozen=True, slots=True)
class Room:
    """How many machines a pool takes now, and what would stop one more."""

    machines: int
    reason: PendingReason
    waits: bool = False
    """The next machine waits for this pool instead of going to the next one."""


class Cap(NamedTuple):
    """Most machines that a pool may have, of a template or of all."""

    size: int
    left: int
    """What it leaves for more; negative where it was lowered."""
    total: bool
    """It is that over all templates."""


class Capacity:
    """What every pool holds and has been asked for, kept up to date while a plan asks for more."""

    def __init__(self, draft: Draft, busy: Set[str]) -> None:
        self._draft = draft
        self.busy = busy
        self._held: set[tuple[str, str]] = set()
        """Where a machine was held back by the window in this plan."""
        self.occupied: Counter[tuple[str, str]] = Counter()
        """Observed and submitted machines, by pool and template."""
        self.there: Counter[str] = Counter()
        """The same by pool, over all templates."""
        self.pending: Counter[tuple[str, str]] = Counter()
        """Of open slots, those that do not run yet."""
        self.starting: Counter[tuple[str, str]] = Counter()
        """The same with those of closed slots: what max_pending bounds."""
        self.probes: Counter[tuple[str, str]] = Counter()
        """Of the pending, those asked for since the pool's back-off began; after early losses, running ones too."""
        self.desired: Counter[str] = Counter()
        """By template: what counts against HF's maxNumber."""
        self._purse = Purse(draft, self.occupied)
        self._full: set[tuple[str, str]] = set()
        """Where a machine that is wanted waits for room: it is the probe, and another one would wait with it."""
        # Machines were lost early there: a probe that runs has proved nothing yet.
        trials = {key for key, current in draft.windows.items() if current.early_loss is not None}
        pools = defaultdict[str, list[str]](list)
        for record in draft.records():
            there = [slot for slot in record.slots.values() if not slot.deletion.gone]
            pools[record.template] += [slot.pool for slot in there]
            self._count(record.template, there, trials)
        for template, names in pools.items():
            self.occupied.update({(pool, template): machines for pool, machines in Counter(names).items()})
            self.there.update(names)

    def _count(self, template: str, there: list[Slot], trials: Set[tuple[str, str]]) -> None:
        """Count the slots of a request of which something may be there."""
        self.desired[template] += sum([slot.verdict in DESIRED for slot in there])
        for slot in there if trials else [slot for slot in there if slot.ran is None]:
            if slot.ran is None:
                self._count_starting(slot, template)
            elif (key := (slot.pool, template)) in trials:
                self.probes[key] += slot.verdict in DESIRED and not slot.set_aside and self._is_probe(slot, key)

    def _count_starting(self, slot: Slot, template: str, machines: int = 1) -> None:
        key = (slot.pool, template)
        self.starting[key] += machines
        if slot.verdict is Verdict.OPEN:
            self.pending[key] += machines
            if self._is_probe(slot, key):
                self.probes[key] += machines
            if lacks_room(slot, self._draft.snapshots):
                self._full.add(key)

    def _is_probe(self, slot: Slot, key: tuple[str, str]) -> bool:
        current = self._draft.windows.get(key)
        return bool(current and current.probing and slot.submitted is not None and slot.submitted >= current.blocked_at)

    def opened(self, slot: Slot, template: str, machines: int) -> None:
        """New slots, as many as ``machines``, of which each is like this one, take their room."""
        self.occupied[slot.pool, template] += machines
        self.there[slot.pool] += machines
        self.desired[template] += machines
        self._count_starting(slot, template, machines)

    def released(self, slot: Slot, template: str) -> None:
        """An open slot that did not run is closed; its machine, if one was asked for, still takes its room."""
        key = (slot.pool, template)
        self.pending[key] -= 1
        self.desired[template] -= 1
        if slot.submitted is None:
            self.occupied[key] -= 1
            self.there[slot.pool] -= 1
            self.starting[key] -= 1

    def usable(self, pool: str, template: str) -> bool:
        """The pool may be sent creates now."""
        limits = self._draft.pool(pool)
        current = self._draft.window(pool, template)
        return (
            not limits.paused
            and pool in self._draft.snapshots
            and pool not in self.busy
            and not window.blocked(current, self._draft.now)
        )

    def takes(self, slot: Slot, template: str) -> bool:
        """The pool may be sent the create of a slot that is open already; one at a time while it is probed.

        A probe whose outcome nobody knows counts already, and may be sent again.
        """
        key = (slot.pool, template)
        if not self.usable(*key):
            return False
        if self._is_probe(slot, key):
            return True
        probing = self._draft.window(*key).probing
        if probing and self.probes[key]:
            return False
        self.probes[key] += probing
        return True

    def pausing(self, slot: Slot, template: str) -> bool:
        """The slot's pool takes no create just now: an unsent create waits for it, until ``spill_after`` has passed."""
        current = self._draft.window(slot.pool, template)
        spill_at = slot.opened + self._draft.pool(slot.pool).spill_after
        if window.pausing(current) and self._draft.now < spill_at:
            self._draft.wake_at(current.retry_at)
            self._draft.wake_at(spill_at)
            return True
        return slot.pool in self.busy

    def room(self, pool: str, template: str) -> Room:
        """How many more machines of the template the pool takes now."""
        draft, key = self._draft, (pool, template)
        limits, current = draft.pool(pool), draft.window(pool, template)
        if limits.paused:
            return Room(0, PendingReason.PAUSED)
        if pool not in draft.snapshots:
            return Room(0, PendingReason.BACKOFF)
        if window.blocked(current, draft.now):
            draft.wake_at(current.retry_at)
            return Room(0, PendingReason.BACKOFF)
        if key in self._full:
            return Room(0, PendingReason.BACKOFF)
        if pool in self.busy:
            return Room(0, PendingReason.WINDOW, waits=True)
        cap = self.cap(pool, template)
        left = MAX_NUMBER if cap is None else cap.left
        starting = self.starting[key] + self.starting[pool, NO_TEMPLATE]
        free = min(window.room(current, self.pending[key], self.probes[key]), limits.max_pending - starting)
        if (affordable := self._purse.machines(pool, template)) < min(left, free):
            return Room(affordable, PendingReason.BUDGET)
        if left <= free:
            return Room(max(0, left), PendingReason.CAP)
        return Room(max(0, free), PendingReason.WINDOW, waits=self._may_wait(key))

    def cap(self, pool: str, template: str) -> Cap | None:
        """Return the cap that leaves the least to one more machine of the template; None if the pool has none."""
        limits, strange = self._draft.pool(pool), len(self._draft.unknown.get(pool, ()))
        # A machine of which nobody knows the template may be of this one.
        of_template = self.occupied[pool, template] + self.occupied[pool, NO_TEMPLATE] + strange
        return tightest_cap(limits, of_template, self.there[pool] + strange)

    def _may_wait(self, key: tuple[str, str]) -> bool:
        """A closed window is waited for, but not longer than ``spill_after``, and not while machines are on trial."""
        current = self._draft.window(*key)
        if current.early_loss is not None:
            return False
        return (
            current.closed_since is None
            or self._draft.now < current.closed_since + self._draft.pool(key[0]).spill_after
        )

    def hold(self, pool: str, template: str) -> None:
        """A machine is held back here by the window."""
        self._held.add((pool, template))

    def note_windows(self) -> None:
        """Remember since when each window has held machines back."""
        draft = self._draft
        for key in self._held | set(draft.windows):
            current, since = draft.window(*key), None
            if key in self._held:
                since = draft.now if current.closed_since is None else current.closed_since
                draft.wake_at(since + draft.pool(key[0]).spill_after)
            if since != current.closed_since:
                draft.set_window(*key, replace(current, closed_since=since))


def tightest_cap(limits: PoolLimits, of_template: int, in_pool: int) -> Cap | None:
    """Return the cap that leaves the least to one more machine, if so many are there; None if the pool has none."""
    held = ((limits.max_machines, of_template, False), (limits.max_machines_total, in_pool, True))
    caps = [Cap(size, size - machines, total) for size, machines, total in held if size is not None]
    return min(caps, key=lambda cap: cap.left, default=None)


def pool_trouble(draft: Draft, pool: str, template: str) -> Failure | None:
    """Why a pool makes no machine of a template: it cannot be seen, or what it backs off from."""
    if pool not in draft.snapshots:
        return Failure(ErrorClass.UNAVAILABLE, f"unobservable: pool {pool} could not be seen.")
    return draft.window(pool, template).failure
