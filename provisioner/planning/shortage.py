"""Shortage: why an open request has fewer machines than it wants, since when, and what it waits for.

It is told from memory and limits alone, without a cloud or a loop: what the next plan would hold back if every pool
still held what the slots tell. No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from provisioner.model import (
    DESIRED,
    DeferReason,
    ErrorClass,
    Failure,
    Limits,
    Machine,
    Memory,
    Phase,
    RequestRecord,
    Slot,
    Snapshot,
    TemplateLimits,
    Verdict,
    Window,
)
from provisioner.names import NO_TEMPLATE
from provisioner.planning.budget import spent
from provisioner.planning.capacity import Capacity
from provisioner.planning.deadlines import boots_by
from provisioner.planning.draft import Draft
from provisioner.planning.slots import gaps
from provisioner.planning.turns import turns

Key = tuple[str, str]
"""Pool and template."""

TOTAL = "max_machines_total, over all templates"
"""What stands in the way where that cap is used up."""


class Lack(StrEnum):
    """Why machines of a request do not run. The first five words are those of ``DeferReason``."""

    WINDOW = "window"
    CAP = "cap"
    BACKOFF = "backoff"
    PAUSED = "paused"
    BUDGET = "budget"
    UNSEEN = "unseen"
    """The pool cannot be seen, or its look is in doubt: it gets no actions."""
    NEXT = "next"
    """The next cycle asks for them."""
    UNSENT = "unsent"
    """Their pool was chosen, and their creates are known not to have been sent."""
    UNANSWERED = "unanswered"
    """Their creates were sent, and nothing is known of them yet."""
    STARTING = "starting"
    """They are there and do not run yet, and nobody says why."""
    GATED = "gated"
    """Somebody, such as a queue, holds them back on purpose."""
    TROUBLED = "troubled"
    """They were asked for, and their place has said why they do not run."""
    SET_ASIDE = "set_aside"
    """Nothing is done for them until a person has looked."""
    GIVEN_UP = "given_up"
    """They failed, and no other machine takes their place."""
    UNKNOWN = "unknown"
    """No loop has left the limits of their template."""


QUIET = frozenset({Lack.NEXT, Lack.UNANSWERED, Lack.STARTING})
"""What each machine goes through: no reason to worry."""

SPILLS = frozenset({Lack.UNSENT, Lack.UNANSWERED, Lack.STARTING, Lack.GATED, Lack.TROUBLED})
"""Whose slots are withdrawn for the next pool, some time."""


class Shortage(NamedTuple):
    """Machines that a request wants and that do not run, of one pool and for one reason. Times are loop time."""

    request: str
    template: str
    pool: str
    """Where they would go first; empty where no pool can be named."""
    lack: Lack
    machines: int
    error: ErrorClass | None = None
    """The class of what stands in their way; None where nobody has said."""
    text: str = ""
    """What stands in their way: the cloud's words, or the name of a cap over all templates."""
    since: float | None = None
    """Since when, where that is known; else since when they have been wanted."""
    next_try: float | None = None
    """When they, or others in their place, are asked for again; None: once what they wait for has come."""
    spills_to: str = ""
    """The pool that is asked next instead."""
    spills_at: float | None = None
    """When it is asked; None: as soon as it takes them."""
    behind: str = ""
    """The request that waits for the same and asks first."""
    bound: int | None = None
    """The size of the cap or window that is used up."""
    holders: Mapping[str, int] = {}
    """Machines that use up the cap, by request; those without a request under an empty name."""
    elsewhere: Mapping[str, Lack] = {}
    """The other pools, and why these take none."""

    @property
    def quiet(self) -> bool:
        """Nothing stands in their way."""
        return self.lack in QUIET and self.error is None


@dataclass(frozen=True, slots=True)
class BesideMemory:
    """What the files tell beside memory of limits, pools and orphans."""

    limits: Limits
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Pools that cannot be seen or are in doubt, and why."""
    orphans: Mapping[str, int] = field(default_factory=dict)
    """How many machines without a request each pool holds: they count against its caps."""


class Trouble(NamedTuple):
    """The last failure in a pool for a template."""

    failure: Failure
    at: float
    """When its slot was closed or the pool began to back off; of a machine that still waits, when it was asked for."""
    since: float
    """When failures of this class began there, after the last machine that ran."""
    over: bool = False
    """A machine has begun to run there since, and the pool does not back off."""


def shortages(
    memory: Memory, beside: BesideMemory, now: float, last: Mapping[Key, Trouble] | None = None
) -> Mapping[str, list[Shortage]]:
    """What each open request is short of, in the order in which they ask; the machines add up to what does not run.

    ``last``: the ``troubles``, if they are known already.
    """
    return _Forecast(memory, beside, now, troubles(memory) if last is None else last).told()


def troubles(memory: Memory) -> Mapping[Key, Trouble]:
    """The last failure in each pool for each template, of those that the slots still tell and windows back off from."""
    failures = defaultdict[Key, list[tuple[float, Failure]]](list)
    ran = defaultdict[Key, float](float)
    for record in memory.requests.values():
        for slot in record.slots.values():
            key = (slot.pool, record.template)
            if slot.ran is not None and slot.verdict is not Verdict.FAILED:
                ran[key] = max(ran[key], slot.ran)
            elif slot.failure is not None and slot.submitted is not None:
                at = slot.submitted if slot.closed is None else slot.closed
                failures[key].append((at, slot.failure))
    for key, window in memory.pressures.items():
        if window.level and window.failure is not None:
            failures[key].append((window.blocked_at, window.failure))
    backs_off = {key for key, window in memory.pressures.items() if window.level}
    return {key: _last(failed, ran[key], over=key not in backs_off) for key, failed in failures.items()}


def _last(failed: list[tuple[float, Failure]], ran: float, *, over: bool) -> Trouble:
    at, failure = max(failed, key=lambda one: one[0])
    series = [when for when, one in failed if one.error is failure.error and when > ran]
    return Trouble(failure, at, min(series, default=at), over and ran > at)


class _Forecast:
    """What the next plan would hold back, request by request."""

    def __init__(self, memory: Memory, beside: BesideMemory, now: float, last: Mapping[Key, Trouble]) -> None:
        self._memory, self._beside, self._now = memory, beside, now
        self._draft = Draft(memory, _as_remembered(memory, beside, now), beside.limits, now)
        self._capacity = Capacity(self._draft, frozenset())
        for pool, machines in beside.orphans.items():
            self._draft.unknown[pool] = [""] * machines
        self._troubles = last
        self._first: dict[Key, str] = {}
        """Which request is the first that waits, by pool and template."""
        self._held_by: dict[Key, Mapping[str, int]] = {}
        """Who uses up each cap that was met."""

    def told(self) -> Mapping[str, list[Shortage]]:
        return {
            id_: [*self._slots(record), *self._gaps(record)]
            for id_ in turns(self._memory.requests.values())
            for record in (self._memory.requests[id_],)
        }

    # --- slots that do not run --------------------------------------------------------------------------------------

    def _slots(self, record: RequestRecord) -> Iterator[Shortage]:
        """Of the machines that have a slot: those of each pool, reason and class together."""
        groups = defaultdict[tuple[str, Lack, ErrorClass | None], list[Slot]](list)
        for slot in record.slots.values():
            if lack := self._lack(slot):
                failure = None if lack is Lack.UNSEEN else slot.failure or slot.tried
                groups[slot.pool, lack, failure.error if failure else None].append(slot)
        template = self._beside.limits.templates.get(record.template)
        for (pool, lack, _), slots in groups.items():
            since = min([slot.asked_at for slot in slots])
            one = Shortage(record.id, record.template, pool, lack, len(slots), since=since)
            yield self._spilling(self._explained(one, slots), slots, template)

    def _lack(self, slot: Slot) -> Lack | None:
        """The most telling reason why a slot's machine does not run; None where it does, or another is wanted."""
        if slot.verdict not in DESIRED:
            given_up = slot.verdict is Verdict.FAILED and slot.submitted is None
            return Lack.GIVEN_UP if given_up or slot.verdict is Verdict.CANCELLED else None
        if slot.ran is not None:
            return Lack.TROUBLED if slot.down is not None else None
        if slot.set_aside:
            return Lack.SET_ASIDE
        if slot.pool in self._beside.unseen:
            return Lack.UNSEEN
        if slot.submitted is None:
            return Lack.UNSENT
        if slot.gated:
            return Lack.GATED
        if slot.failure is not None:
            return Lack.TROUBLED
        return Lack.STARTING if slot.seen or slot.accepted else Lack.UNANSWERED

    def _explained(self, one: Shortage, slots: list[Slot]) -> Shortage:
        """With what stands in the way of these slots, and when their machines are asked for again."""
        if one.lack is Lack.UNSEEN:
            return one._replace(error=ErrorClass.UNAVAILABLE, text=self._beside.unseen[one.pool])
        if failure := slots[0].failure or slots[0].tried:
            one = one._replace(error=failure.error, text=failure.text)
        if one.lack in (Lack.SET_ASIDE, Lack.GIVEN_UP):
            return one
        if one.lack is Lack.UNSENT:
            due = max(self._now, self._draft.window(one.pool, one.template).retry_at)
            return self._obstructed(one)._replace(next_try=due)
        if slots[0].failure is None:
            one = self._obstructed(one)
        pool = self._draft.pool(one.pool)
        return one._replace(next_try=min([boots_by(slot, slot.asked_at, pool) for slot in slots]))

    def _obstructed(self, one: Shortage) -> Shortage:
        """With what the pool backs off from."""
        window = self._draft.window(one.pool, one.template)
        failure = window.failure if window.level else None
        if failure is None:
            return one
        trouble = self._troubles[one.pool, one.template]
        since = trouble.since if trouble.failure.error is failure.error else window.blocked_at
        return one._replace(error=failure.error, text=failure.text, since=since)

    def _spilling(self, one: Shortage, slots: list[Slot], template: TemplateLimits | None) -> Shortage:
        """With the pool that is asked instead, and when."""
        pools = template.pools if template else ()
        after = pools[pools.index(one.pool) + 1 :] if one.pool in pools else ()
        if not after or one.lack not in SPILLS:
            return one
        if slots[0].failure is not None and slots[0].failure.error.has_no_room:
            return one._replace(spills_to=after[0])
        asked = min([slot.asked_at if slot.lifted is None else slot.lifted for slot in slots])
        return one._replace(spills_to=after[0], spills_at=asked + self._draft.pool(one.pool).spill_after)

    # --- machines without a slot --------------------------------------------------------------------------------------

    def _gaps(self, record: RequestRecord) -> Iterator[Shortage]:
        wanted, template = len(gaps(record)), self._beside.limits.templates.get(record.template)
        one = Shortage(record.id, record.template, "", Lack.UNKNOWN, wanted, since=record.read)
        if template is None or not template.pools:
            yield from [one] if wanted else []
            return
        lacks: dict[str, Lack] = {}
        waits = False
        for pool in template.pools:
            if not wanted or waits:
                break
            room = self._capacity.room(pool, template.id)
            if taken := min(wanted, room.machines):
                asked = one._replace(pool=pool, lack=Lack.NEXT, machines=taken, next_try=self._now)
                yield self._obstructed(asked)
                self._take(pool, template.id, taken)
                wanted -= taken
            blind = pool in self._beside.unseen and room.reason is DeferReason.BACKOFF
            lacks[pool] = Lack.UNSEEN if blind else Lack(room.reason)
            waits = room.waits
        if wanted:
            yield self._held(one._replace(machines=wanted), template, lacks, waits=waits)

    def _take(self, pool: str, template: str, machines: int) -> None:
        self._capacity.opened(Slot("", 0, pool, Verdict.OPEN, self._now, self._now), template, machines)

    def _held(self, one: Shortage, template: TemplateLimits, lacks: Mapping[str, Lack], *, waits: bool) -> Shortage:
        """Machines that no pool takes: deferred as the plan does, at the pool that they wait for or else the first."""
        pool = list(lacks)[-1] if waits else template.pools[0]
        key = (pool, template.id)
        first = self._first.setdefault(key, one.request)
        elsewhere = {name: lack for name, lack in lacks.items() if name != pool}
        one = one._replace(
            pool=pool, lack=lacks[pool], elsewhere=elsewhere, behind="" if first == one.request else first
        )
        if one.lack is Lack.UNSEEN:
            return one._replace(error=ErrorClass.UNAVAILABLE, text=self._beside.unseen[pool])
        if one.lack is Lack.CAP:
            return self._capped(one)
        if one.lack is Lack.BUDGET:
            return one._replace(text=spent(self._beside.limits))
        return one if one.lack is Lack.PAUSED else self._backing_off(one, template)

    def _capped(self, one: Shortage) -> Shortage:
        """Machines that wait for others to go, with the cap that binds."""
        cap = self._capacity.cap(one.pool, one.template)
        total = cap is not None and cap.total
        held = one._replace(bound=cap and cap.size, holders=self._holders(one.pool, "" if total else one.template))
        return held._replace(text=TOTAL) if total else held

    def _backing_off(self, one: Shortage, template: TemplateLimits) -> Shortage:
        """Machines that wait for a window or a back-off, with what the pool said last."""
        key, window = (one.pool, one.template), self._draft.window(one.pool, one.template)
        one = self._obstructed(one)
        if one.lack is Lack.WINDOW:
            return self._closed(one, template, window)
        if one.error is None and (trouble := self._troubles.get(key)):
            one = one._replace(error=trouble.failure.error, text=trouble.failure.text, since=trouble.since)
        return one._replace(next_try=window.retry_at if window.retry_at > self._now else None)

    def _closed(self, one: Shortage, template: TemplateLimits, window: Window) -> Shortage:
        """Machines that wait for a window: how wide it is, and when the next pool is asked instead."""
        since = one.since if one.error or window.closed_since is None else window.closed_since
        one = one._replace(bound=1 if window.probing else window.window, since=since)
        after = template.pools[template.pools.index(one.pool) + 1 :]
        if not after or one.elsewhere.keys() >= set(after):
            return one
        closed = self._now if window.closed_since is None else window.closed_since
        return one._replace(spills_to=after[0], spills_at=closed + self._draft.pool(one.pool).spill_after)

    def _holders(self, pool: str, template: str) -> Mapping[str, int]:
        """Who uses up the cap of a template, or of all (empty), the most first."""
        key = (pool, template)
        if key not in self._held_by:
            held = Counter({"": self._beside.orphans.get(pool, 0)})
            for record in self._memory.requests.values():
                if not template or record.template in (template, NO_TEMPLATE):
                    held[record.id] = sum(slot.pool == pool and not slot.gone for slot in record.slots.values())
            self._held_by[key] = {id_: machines for id_, machines in held.most_common() if machines}
        return self._held_by[key]


def _as_remembered(memory: Memory, beside: BesideMemory, now: float) -> dict[str, Snapshot]:
    """Every pool that can be seen, holding what slots tell of machines that their place has no room for."""
    full = [
        slot
        for record in memory.requests.values()
        if record.ended is None
        for slot in record.slots.values()
        if slot.failure is not None and slot.failure.error.has_no_room and slot.ran is None and slot.seen
    ]
    there = {
        pool: {slot.name: Machine(slot.name, Phase.PENDING, no_room=True) for slot in full if slot.pool == pool}
        for pool in beside.limits.pools.keys() - beside.unseen.keys()
    }
    return {pool: Snapshot(pool, now, machines) for pool, machines in there.items()}
