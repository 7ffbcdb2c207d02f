"""Capacity: the number of further machines that each pool takes now, by template. Each number has a reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import DESIRED, ErrorClass, Failure, PendingReason, PoolLimits, Slot, Verdict
from provisioner.names import NO_TEMPLATE
from provisioner.planning.allocate.budget import BudgetLeft
from provisioner.planning.core import window_and_backoff
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import lacks_room


@dataclass(frozen=True, slots=True)
class Room:
    """The number of further machines that a pool takes now, and the reason for the limit."""

    machines: int
    reason: PendingReason
    is_waited_for: bool = False
    """True if the next machine waits until this pool has room; False if it goes to the template's next pool."""


class Cap(NamedTuple):
    """A limit on the number of machines of a pool: either of one template or of all templates together."""

    size: int
    left: int
    """Number of machines that the cap still allows; negative if the cap was lowered."""
    is_total: bool
    """True for the limit of all templates together."""


class Capacity:
    """The present numbers of machines, by pool and template. The numbers show how many more machines a pool takes.

    The plan updates the numbers when it opens or closes slots.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._held_back: set[tuple[str, str]] = set()
        """Pools and templates whose window held a machine back in this plan."""
        self.occupied: Counter[tuple[str, str]] = Counter()
        """Observed and submitted machines, by pool and template."""
        self.in_pool: Counter[str] = Counter()
        """Observed and submitted machines, by pool."""
        self.pending: Counter[tuple[str, str]] = Counter()
        """Machines of open slots that do not run yet, by pool and template."""
        self.starting: Counter[tuple[str, str]] = Counter()
        """Machines of open and closed slots that do not run yet, by pool and template. ``max_pending`` limits them."""
        self.probes: Counter[tuple[str, str]] = Counter()
        """Pending machines that were requested since the pool's back-off began, by pool and template. After early
        losses, running machines count too."""
        self.desired: Counter[str] = Counter()
        """Machines that count towards HF's maxNumber, by template."""
        self._budget_left = BudgetLeft(draft, self.occupied)
        self._full: set[tuple[str, str]] = set()
        """Pools and templates with a machine that waits because its place has no room. A second machine would only wait
        too, so it is not requested."""
        # After early losses, only a machine that has outlived its first minutes proves that the pool works.
        trials = {key for key, current in draft.windows.items() if current.early_loss is not None}
        pools = defaultdict[str, list[str]](list)
        for record in draft.records():
            there = [slot for slot in record.slots.values() if not slot.deletion.is_gone]
            pools[record.template] += [slot.pool for slot in there]
            self._count(record.template, there, trials)
        for template, names in pools.items():
            self.occupied.update({(pool, template): machines for pool, machines in Counter(names).items()})
            self.in_pool.update(names)

    def _count(self, template: str, there: list[Slot], trials: Set[tuple[str, str]]) -> None:
        """Count those slots of one request whose machines may exist.

        ``trials``: pairs of pool and template that back off because of early losses. In such a pair, a machine that
        was requested since the back-off began counts as a probe even while it runs.
        """
        self.desired[template] += sum([slot.verdict in DESIRED for slot in there])
        for slot in there if trials else [slot for slot in there if slot.ran_at is None]:
            if slot.ran_at is None:
                self._count_starting(slot, template)
            elif (key := (slot.pool, template)) in trials:
                self.probes[key] += slot.verdict in DESIRED and not slot.is_set_aside and self._is_probe(slot, key)

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
        return bool(
            current and current.is_probing and slot.submitted_at is not None and slot.submitted_at >= current.blocked_at
        )

    def count_opened(self, slot: Slot, template: str, machines: int) -> None:
        """Count ``machines`` new slots, which all have the pool and the state of ``slot``."""
        self.occupied[slot.pool, template] += machines
        self.in_pool[slot.pool] += machines
        self.desired[template] += machines
        self._count_starting(slot, template, machines)

    def count_closed(self, slot: Slot, template: str) -> None:
        """Update the numbers for an open slot that this plan closes before its machine ran. If the slot's create was
        submitted, the machine still takes room."""
        key = (slot.pool, template)
        self.pending[key] -= 1
        self.desired[template] -= 1
        if slot.submitted_at is None:
            self.occupied[key] -= 1
            self.in_pool[slot.pool] -= 1
            self.starting[key] -= 1

    def is_usable(self, pool: str, template: str) -> bool:
        """Return whether creates may be sent to the pool now."""
        limits = self._draft.pool(pool)
        current = self._draft.window(pool, template)
        return (
            not limits.is_paused
            and pool in self._draft.snapshots
            and pool not in self._draft.busy
            and not window_and_backoff.is_blocked(current, self._draft.now)
        )

    def claim_create(self, slot: Slot, template: str) -> bool:
        """Return whether the create of an open slot may be sent to its pool. If it may be sent and the pool is being
        probed, count the slot as a probe.

        A probed pool gets one create at a time. If a probe's create has an unknown outcome, the create may be sent
        again. Such a probe is already counted.
        """
        key = (slot.pool, template)
        if not self.is_usable(*key):
            return False
        if self._is_probe(slot, key):
            return True
        probing = self._draft.window(*key).is_probing
        if probing and self.probes[key]:
            return False
        self.probes[key] += probing
        return True

    def is_pausing(self, slot: Slot, template: str) -> bool:
        """Return whether an unsent create waits for its own pool, so that no other pool gets the machine.

        The create waits while calls to the pool are under way. The create also waits while the pool backs off only
        because calls were throttled or unanswered. This second wait lasts at most ``spill_after_seconds``.
        """
        current = self._draft.window(slot.pool, template)
        spill_at = slot.opened_at + self._draft.pool(slot.pool).spill_after_seconds
        if window_and_backoff.is_pausing(current) and self._draft.now < spill_at:
            self._draft.wake_at(current.retry_at)
            self._draft.wake_at(spill_at)
            return True
        return slot.pool in self._draft.busy

    def room(self, pool: str, template: str) -> Room:
        """Return how many further machines of the template the pool takes now. Also return the reason for this
        limit."""
        draft, key = self._draft, (pool, template)
        limits, current = draft.pool(pool), draft.window(pool, template)
        if limits.is_paused:
            return Room(0, PendingReason.STOPPED if draft.holds.stop else PendingReason.PAUSED)
        if pool not in draft.snapshots:
            return Room(0, PendingReason.BACKOFF)
        if window_and_backoff.is_blocked(current, draft.now):
            draft.wake_at(current.retry_at)
            return Room(0, PendingReason.BACKOFF)
        if key in self._full:
            return Room(0, PendingReason.BACKOFF)
        if pool in self._draft.busy:
            return Room(0, PendingReason.WINDOW, is_waited_for=True)
        cap = self.cap(pool, template)
        left = MAX_NUMBER if cap is None else cap.left
        starting = self.starting[key] + self.starting[pool, NO_TEMPLATE]
        free = min(window_and_backoff.room(current, self.pending[key], self.probes[key]), limits.max_pending - starting)
        if (affordable := self._budget_left.machines(pool, template)) < min(left, free):
            return Room(affordable, PendingReason.BUDGET)
        if left <= free:
            return Room(max(0, left), PendingReason.CAP)
        return Room(max(0, free), PendingReason.WINDOW, is_waited_for=self._may_wait(key))

    def cap(self, pool: str, template: str) -> Cap | None:
        """Return the cap that allows the fewest further machines of the template; None if the pool has no cap."""
        limits, unexplained = self._draft.pool(pool), len(self._draft.unknown.get(pool, ()))
        # A machine of an unknown template may be of this template.
        of_template = self.occupied[pool, template] + self.occupied[pool, NO_TEMPLATE] + unexplained
        return tightest_cap(limits, of_template, self.in_pool[pool] + unexplained)

    def _may_wait(self, key: tuple[str, str]) -> bool:
        """Return whether a machine that a window holds back waits for this window. Otherwise the machine goes to the
        next pool.

        A machine waits at most ``spill_after_seconds``. After early losses, the machine does not wait.
        """
        current = self._draft.window(*key)
        if current.closed_since is None or current.early_loss is not None:
            return current.early_loss is None
        return self._draft.now < current.closed_since + self._draft.pool(key[0]).spill_after_seconds

    def note_held_back(self, pool: str, template: str) -> None:
        """Record that the window of a template in a pool holds a machine back."""
        self._held_back.add((pool, template))

    def note_windows(self) -> None:
        """Record, for each window, since when it has held machines back. Record new windows for a pool whose spec has
        changed."""
        draft = self._draft
        for key in self._held_back | set(draft.windows):
            current, since = draft.window(*key), None
            if key in self._held_back:
                since = draft.now if current.closed_since is None else current.closed_since
                draft.wake_at(since + draft.pool(key[0]).spill_after_seconds)
            changed = current if since == current.closed_since else replace(current, closed_since=since)
            draft.set_window(*key, changed)


def tightest_cap(limits: PoolLimits, of_template: int, in_pool: int) -> Cap | None:
    """Return the cap that allows the fewest further machines; None if the pool has no cap.

    ``of_template`` and ``in_pool``: the present numbers of machines.
    """
    caps_with_counts = ((limits.max_machines, of_template, False), (limits.max_machines_total, in_pool, True))
    caps = [Cap(size, size - machines, total) for size, machines, total in caps_with_counts if size is not None]
    return min(caps, key=lambda cap: cap.left, default=None)


def find_pool_failure(draft: Draft, pool: str, template: str) -> Failure | None:
    """Return the failure that keeps a pool from making machines of a template; None if there is no such failure.

    Either the loop cannot observe the pool, or the pool backs off from a failure.
    """
    if pool not in draft.snapshots:
        return Failure(ErrorClass.UNAVAILABLE, f"unobservable: pool {pool} could not be seen.")
    return draft.window(pool, template).failure
