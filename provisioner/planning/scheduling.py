"""Asking for what is missing: which pool, how many now, under which name, and why not more.

Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import (
    Create,
    DeferReason,
    DeleteReason,
    ErrorClass,
    Failure,
    RequestRecord,
    Slot,
    TemplateLimits,
    Verdict,
    evolve,
)
from provisioner.names import NO_TEMPLATE, machine_name
from provisioner.planning import window
from provisioner.planning.draft import OWNED, SOON, Draft

SLOW = Failure(ErrorClass.OTHER, "The machine did not run in time; another pool was tried.")


def missing(record: RequestRecord) -> int:
    """Machines of a request that are neither there, nor on their way, nor given up."""
    return record.count - sum(
        slot.verdict in OWNED
        or slot.verdict is Verdict.CANCELLED
        or (slot.verdict is Verdict.FAILED and slot.submitted is None)
        for slot in record.slots.values()
    )


def waiting(record: RequestRecord) -> list[Slot]:
    """The slots of a request whose machines are to run and do not yet."""
    slots = record.slots.values()
    return [slot for slot in slots if slot.ran is None and slot.verdict is Verdict.OPEN and not slot.set_aside]


@dataclass(frozen=True, slots=True)
class Room:
    """How many machines a pool takes now, and what would stop one more."""

    machines: int
    reason: DeferReason
    waits: bool = False
    """Its next machine waits here instead of going to the next pool."""


class Places:
    """What every pool holds and has been asked for, kept up to date while a plan asks for more."""

    def __init__(self, draft: Draft, busy: Set[str]) -> None:
        self._draft = draft
        self.busy = busy
        self._held: set[tuple[str, str]] = set()
        """Where a machine was held back by the window in this plan."""
        self.occupied: Counter[tuple[str, str]] = Counter()
        """Observed + submitted machines, by pool and template."""
        self.pending: Counter[tuple[str, str]] = Counter()
        """Of open slots, those that do not run yet."""
        self.starting: Counter[tuple[str, str]] = Counter()
        """The same with those of closed slots: what max_pending bounds."""
        self.probes: Counter[tuple[str, str]] = Counter()
        """Of the pending, those asked for since the pool's back-off began; after early losses, running ones too."""
        self.desired: Counter[str] = Counter()
        """By template: what counts against HF's maxNumber."""
        # Machines were lost early there: what a probe tells that runs is not known yet.
        trials = {key for key, known in draft.pressures.items() if known.early_loss is not None}
        for record in draft.records():
            there = [slot for slot in record.slots.values() if not slot.gone]
            for pool, machines in Counter([slot.pool for slot in there]).items():
                self.occupied[pool, record.template] += machines
            self.desired[record.template] += sum([slot.verdict in OWNED for slot in there])
            for slot in there:
                if slot.ran is None:
                    self._count_starting(slot, record.template)
                elif trials and (key := (slot.pool, record.template)) in trials:
                    self.probes[key] += slot.verdict in OWNED and not slot.set_aside and self._is_probe(slot, key)

    def _count_starting(self, slot: Slot, template: str, machines: int = 1) -> None:
        key = (slot.pool, template)
        self.starting[key] += machines
        if slot.verdict is Verdict.OPEN:
            self.pending[key] += machines
            self.probes[key] += machines * self._is_probe(slot, key)

    def _is_probe(self, slot: Slot, key: tuple[str, str]) -> bool:
        known = self._draft.pressures.get(key)
        return bool(known and known.probing and slot.submitted is not None and slot.submitted >= known.blocked_at)

    def opened(self, slot: Slot, template: str, machines: int) -> None:
        """New slots, as many as ``machines``, of which each is like this one, take their places."""
        self.occupied[slot.pool, template] += machines
        self.desired[template] += machines
        self._count_starting(slot, template, machines)

    def released(self, slot: Slot, template: str) -> None:
        """An open slot that did not run is closed; its machine, if one was asked for, still takes its place."""
        key = (slot.pool, template)
        self.pending[key] -= 1
        self.desired[template] -= 1
        if slot.submitted is None:
            self.occupied[key] -= 1
            self.starting[key] -= 1

    def usable(self, pool: str, template: str) -> bool:
        """The pool may be sent creates now."""
        limits = self._draft.pool(pool)
        known = self._draft.pressure(pool, template)
        return (
            not limits.paused
            and pool in self._draft.snapshots
            and pool not in self.busy
            and not window.blocked(known, self._draft.now)
        )

    def takes(self, slot: Slot, template: str) -> bool:
        """The pool may be sent the create of a slot that is open already. While it is probed, one at a time.

        A probe whose answer is not known counts already, and may be sent again.
        """
        key = (slot.pool, template)
        if not self.usable(*key):
            return False
        if self._is_probe(slot, key):
            return True
        probing = self._draft.pressure(*key).probing
        if probing and self.probes[key]:
            return False
        self.probes[key] += probing
        return True

    def pausing(self, slot: Slot, template: str) -> bool:
        """The slot's pool takes no create just now: that of the slot, not sent yet, waits here, but not for long."""
        known = self._draft.pressure(slot.pool, template)
        spill_at = slot.opened + self._draft.pool(slot.pool).spill_after
        if window.pausing(known) and self._draft.now < spill_at:
            self._draft.wake_at(known.retry_at)
            self._draft.wake_at(spill_at)
            return True
        return slot.pool in self.busy

    def room(self, pool: str, template: str) -> Room:
        """How many more machines of the template the pool takes now."""
        draft, key = self._draft, (pool, template)
        limits, known = draft.pool(pool), draft.pressure(pool, template)
        if limits.paused:
            return Room(0, DeferReason.PAUSED)
        if pool not in draft.snapshots:
            return Room(0, DeferReason.BACKOFF)
        if window.blocked(known, draft.now):
            draft.wake_at(known.retry_at)
            return Room(0, DeferReason.BACKOFF)
        if pool in self.busy:
            return Room(0, DeferReason.WINDOW, waits=True)
        cap = self._cap_room(pool, key, limits.max_machines)
        starting = self.starting[key] + self.starting[pool, NO_TEMPLATE]
        free = min(window.room(known, self.pending[key], self.probes[key]), limits.max_pending - starting)
        if cap <= free:
            return Room(max(0, cap), DeferReason.CAP)
        return Room(max(0, free), DeferReason.WINDOW, waits=self._may_wait(key))

    def _cap_room(self, pool: str, key: tuple[str, str], cap: int | None) -> int:
        if cap is None:
            return MAX_NUMBER
        # A machine of which nobody knows the template may be of this one.
        nameless = self.occupied[pool, NO_TEMPLATE] + len(self._draft.unknown.get(pool, ()))
        return cap - self.occupied[key] - nameless

    def _may_wait(self, key: tuple[str, str]) -> bool:
        """A closed window is waited for, but not longer than ``spill_after``, and not while machines are on trial."""
        known = self._draft.pressure(*key)
        if known.early_loss is not None:
            return False
        return known.closed_since is None or self._draft.now < known.closed_since + self._draft.pool(key[0]).spill_after

    def hold(self, pool: str, template: str) -> None:
        """A machine is held back here by the window."""
        self._held.add((pool, template))

    def note_windows(self) -> None:
        """Remember since when each window has held machines back."""
        draft = self._draft
        for key in self._held | set(draft.pressures):
            known = draft.pressure(*key)
            since = (known.closed_since if known.closed_since is not None else draft.now) if key in self._held else None
            if since is not None:
                draft.wake_at(since + draft.pool(key[0]).spill_after)
            if since != known.closed_since:
                draft.set_pressure(*key, replace(known, closed_since=since))


def ask(draft: Draft, record: RequestRecord, places: Places) -> None:
    """Ask for what the request misses, as far as pools, windows and caps allow; give up what can never be."""
    template = draft.limits.templates.get(record.template)
    if template is None or not template.pools:
        _give_up(
            draft, record, missing(record), Failure(ErrorClass.INVALID, f"Template {record.template} has no pools.")
        )
        return
    for slot in waiting(record):
        if slot.pool in draft.snapshots:
            _pursue(draft, record, slot, template, places)
    wanted = missing(draft.record(record.id))
    if wanted <= 0:
        return
    if draft.now >= record.deadline:
        _give_up(draft, record, wanted, _why_missing(draft, record, template))
        return
    maximum = MAX_NUMBER if template.max_machines is None else template.max_machines
    beyond = min(wanted, max(0, wanted - (maximum - places.desired[template.id])))
    if beyond:
        text = f"The template's maxNumber of {maximum} machines is reached (template {template.id})."
        _give_up(draft, record, beyond, Failure(ErrorClass.QUOTA, text))
    _spread(draft, record, template, wanted - beyond, places)


def _pursue(draft: Draft, record: RequestRecord, slot: Slot, template: TemplateLimits, places: Places) -> None:
    """An open slot that does not run: send its create, send it again, or withdraw it for another pool."""
    if slot.submitted is None:
        if places.takes(slot, template.id):
            _submit(draft, record, slot)
        elif not places.pausing(slot, template.id):
            places.released(slot, template.id)
            draft.close(record, slot, Verdict.WITHDRAWN)
        return
    pool = _spill_to(draft, slot, slot.submitted, template, places)
    if pool is not None:
        _withdraw(draft, record, slot, slot.submitted, template, places)
        _open(draft, record, pool, 1, places)
    elif not slot.accepted and not slot.seen:
        _repeat(draft, record, slot, places)


def _spill_to(draft: Draft, slot: Slot, submitted: float, template: TemplateLimits, places: Places) -> str | None:
    """Another pool that takes the machine, if this one has had its time: of one that was held back, since it is not."""
    spill_at = (submitted if slot.lifted is None else slot.lifted) + draft.pool(slot.pool).spill_after
    draft.wake_at(spill_at)
    return _next_pool(slot, template, places) if draft.now >= spill_at else None


def _withdraw(
    draft: Draft, record: RequestRecord, slot: Slot, submitted: float, template: TemplateLimits, places: Places
) -> None:
    failure = slot.failure or SLOW
    known = draft.pressure(slot.pool, template.id)
    learned = window.failed(known, failure, submitted, draft.now, draft.limits, boot=True)
    draft.set_pressure(slot.pool, template.id, learned)
    places.released(slot, template.id)
    draft.close(record, slot, Verdict.WITHDRAWN, reason=DeleteReason.WITHDRAWN, failure=failure)


def _repeat(draft: Draft, record: RequestRecord, slot: Slot, places: Places) -> None:
    """Its outcome is unknown (a crash, a lost answer): a second create of the same name is harmless."""
    key = (slot.pool, record.template)
    known = draft.pressure(*key)
    if not places.usable(*key):
        draft.wake_at(known.retry_at)
    elif slot.submitted is not None and draft.snapshots[slot.pool].began <= slot.submitted:
        draft.wake_at(max(slot.submitted, draft.now) + SOON)  # a later look that says the same is no news
    elif places.takes(slot, record.template):
        _submit(draft, record, slot, again=True)


def _submit(draft: Draft, record: RequestRecord, slot: Slot, *, again: bool = False) -> None:
    draft.put(record.id, evolve(slot, submitted=draft.now))
    draft.creates.append(Create(slot.name, slot.pool, record.template, record.id, again))


def _next_pool(slot: Slot, template: TemplateLimits, places: Places) -> str | None:
    """The first pool after the slot's own that takes a machine now."""
    if slot.pool not in template.pools:
        return None
    later = template.pools[template.pools.index(slot.pool) + 1 :]
    return next((pool for pool in later if places.room(pool, template.id).machines > 0), None)


def _spread(draft: Draft, record: RequestRecord, template: TemplateLimits, wanted: int, places: Places) -> None:
    """Fill the pools in the template's order; what no pool takes is deferred where it would go first."""
    held: tuple[str, DeferReason] | None = None
    for pool in template.pools:
        if wanted <= 0:
            break
        room = places.room(pool, template.id)
        taken = min(wanted, room.machines)
        _open(draft, record, pool, taken, places)
        wanted -= taken
        if wanted > 0:
            held = held or (pool, room.reason)
            if room.reason is DeferReason.WINDOW:
                places.hold(pool, template.id)
            if room.waits:
                held = (pool, room.reason)
                break
    if wanted > 0 and held is not None:
        draft.deferred[held[0], template.id, held[1]] += wanted


def _open(draft: Draft, record: RequestRecord, pool: str, machines: int, places: Places) -> None:
    """Open slots and ask for their machines; both are recorded before the first call."""
    if machines <= 0:
        return
    first = draft.requests[record.id].next_slot
    draft.update(record.id, next_slot=first + machines)
    for number in range(first, first + machines):
        slot = Slot(
            name=machine_name(draft.limits.prefix, record.id, number),
            number=number,
            pool=pool,
            verdict=Verdict.OPEN,
            opened=draft.now,
            submitted=draft.now,
        )
        draft.put(record.id, slot)
        draft.creates.append(Create(slot.name, pool, record.template, record.id))
    places.opened(slot, record.template, machines)


def _give_up(draft: Draft, record: RequestRecord, machines: int, failure: Failure) -> None:
    """Machines that will never be: slots that fail without a create, so that HF hears the reason under a name."""
    if machines <= 0:
        return
    first = draft.requests[record.id].next_slot
    draft.update(record.id, next_slot=first + machines)
    pools = draft.limits.templates.get(record.template)
    pool = pools.pools[0] if pools and pools.pools else ""
    for number in range(first, first + machines):
        name = machine_name(draft.limits.prefix, record.id, number)
        slot = Slot(name=name, number=number, pool=pool, verdict=Verdict.OPEN, opened=draft.now)
        draft.close(record, slot, Verdict.FAILED, failure=failure)


def _why_missing(draft: Draft, record: RequestRecord, template: TemplateLimits) -> Failure:
    """The last failure of the request's own slots, else the trouble of its pools, else that time ran out."""
    failures = [slot.failure for slot in record.slots.values() if slot.verdict is Verdict.FAILED and slot.failure]
    if failures:
        return failures[-1]
    for pool in template.pools:
        if pool not in draft.snapshots:
            return Failure(ErrorClass.UNAVAILABLE, f"unobservable: pool {pool} could not be seen.")
        known = draft.pressure(pool, template.id).failure
        if known:
            return known
    return Failure(ErrorClass.TIMEOUT, "No pool had room for the machine before the request's deadline.")
