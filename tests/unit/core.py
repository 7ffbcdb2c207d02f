"""Small factories of the core's values. By default, they describe two pools at loop time NOW; a test changes only the
values that its rule is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from provisioner.model import (
    DESIRED,
    NO_HOLDS,
    DeleteReason,
    ErrorClass,
    Failure,
    Fingerprint,
    HfActivity,
    Holds,
    Intent,
    Limits,
    LossCause,
    Machine,
    Memory,
    ObservationFailed,
    Phase,
    Plan,
    PoolLimits,
    Request,
    RequestRecord,
    ReturnRecord,
    ReturnRequest,
    Slot,
    Snapshot,
    TemplateLimits,
    Transition,
    Unmet,
    Verdict,
)
from provisioner.names import machine_name
from provisioner.planning.allocate.capacity import Capacity
from provisioner.planning.allocate.fair_order import order_requests
from provisioner.planning.allocate.machine_requests import request_machines
from provisioner.planning.core.draft import Draft
from provisioner.planning.plan import PlanInputs, make_plan
from provisioner.planning.report.unmet import find_unmet
from tests.support.parts import alter, make_slot

NOW = 10_000.0
"""Loop time of a test's plan."""

SEEN = NOW - 1.0
"""The time at which a snapshot begins, unless the test sets another."""

BEFORE = NOW - 100.0
"""The time at which slots were opened, submitted and ran: before SEEN, and longer ago than a create may take."""

PREFIX = "hf"
REQUEST = "aaaaaaaaaa"
OTHER = "bbbbbbbbbb"
TEMPLATE = "T"

STOCKOUT = Failure(ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED")
BROKEN = Failure(ErrorClass.OTHER, "ImagePullBackOff")
UNREADY = Failure(ErrorClass.OTHER, "ContainersNotReady: containers with unready status: [worker]")


def name(number: int = 0, request: str = REQUEST) -> str:
    return machine_name(PREFIX, request, number)


ASKED = frozenset(name(number, request) for number in range(40) for request in (REQUEST, OTHER))
"""The names that an observation asks for, unless the test says otherwise."""


# --- limits -----------------------------------------------------------------------------------------------------------


def pool(name: str = "a", **changes: Any) -> PoolLimits:
    return replace(PoolLimits(name), **changes)


def limits(*pools: PoolLimits, maximum: int | None = None, **changes: Any) -> Limits:
    """Return limits of one template over the pools in their order; by default over ``a`` and ``b``."""
    pools = pools or (pool("a"), pool("b"))
    template = TemplateLimits(TEMPLATE, tuple(one.name for one in pools), maximum)
    made: Limits = alter(Limits(PREFIX, {one.name: one for one in pools}, {TEMPLATE: template}), **changes)
    return made


def two_templates(*pools: PoolLimits, **changes: Any) -> Limits:
    """Return the limits with a second template ``U``, which has these ``changes``."""
    one = limits(*pools)
    return replace(one, templates=one.templates | {"U": replace(one.templates[TEMPLATE], id="U", **changes)})


# --- what changed -----------------------------------------------------------------------------------------------------


def ended(
    number: int, verdict: Verdict, failure: Failure | None = None, cause: LossCause | None = None, **where: str
) -> Transition:
    """Return the change by which a slot ends. ``where``: the slot's pool and template."""
    now = slot(number, verdict, failure=failure, cause=cause, pool=where.get("pool", "a"))
    return Transition(where.get("template", TEMPLATE), BEFORE, slot(number), now)


def transitions(former: Memory | None, now: Memory | None) -> list[Transition]:
    """Return the changes of the slots of a memory since a former memory."""
    if former is None or now is None:
        return []
    before = {one.name: one for _, one in former.slots}
    return [
        Transition(of.template, of.read_at, before.get(one.name), one)
        for of, one in now.slots
        if before.get(one.name) is not one
    ]


# --- what is remembered -----------------------------------------------------------------------------------------------


def slot(number: int = 0, verdict: Verdict = Verdict.OPEN, request: str = REQUEST, **changes: Any) -> Slot:
    """Return a slot whose create was accepted and whose machine was not seen yet. If ``verdict`` closes the slot, its
    machine is to be deleted as failed."""
    closed = {} if verdict in DESIRED else {"closed_at": BEFORE, "delete": DeleteReason.FAILED}
    defaults: dict[str, Any] = {"pool": "a", "opened_at": BEFORE, "submitted_at": BEFORE, "is_accepted": True}
    return make_slot(name(number, request), verdict=verdict, **(defaults | closed | changes))


def running(number: int = 0, verdict: Verdict = Verdict.OPEN, request: str = REQUEST, **changes: Any) -> Slot:
    """Return a slot whose machine runs, as ``machine(number)`` makes it."""
    seen = machine(number, request=request)
    facts = {
        "was_seen": True,
        "ran_at": BEFORE,
        "fingerprint": seen.fingerprint,
        "ip": seen.ip,
        "launched": seen.launched,
    }
    return slot(number, verdict, request, **(facts | changes))


def unsent(number: int = 0, verdict: Verdict = Verdict.OPEN, **changes: Any) -> Slot:
    """Return a slot for which no call was ever made."""
    return slot(number, verdict, **({"submitted_at": None, "is_accepted": False} | changes))


def record(*slots: Slot, id_: str = REQUEST, **changes: Any) -> RequestRecord:
    """Return a request's record with these slots. By default, the request is for as many machines as there are
    slots."""
    defaults: dict[str, Any] = {
        "template": TEMPLATE,
        "count": len(slots),
        "read_at": BEFORE,
        "deadline_at": BEFORE + 3600.0,
    }
    if changes.get("ended"):
        defaults |= {"ended_at": BEFORE}
    numbers = {one.number: one for one in slots}
    defaults |= {"slots": numbers, "next_slot": max(numbers, default=-1) + 1}
    return RequestRecord(id_, **(defaults | changes))


def giving_back(*names: str, id_: str = "ret-aaaaaaaaaa", **changes: Any) -> ReturnRecord:
    return ReturnRecord(id_, names, **({"read_at": BEFORE, "deadline_at": BEFORE + 3600.0} | changes))


def memory(*records: RequestRecord | ReturnRecord, **changes: Any) -> Memory:
    requests = {one.id: one for one in records if isinstance(one, RequestRecord)}
    returns = {one.id: one for one in records if isinstance(one, ReturnRecord)}
    facts = {"generation": 1, "requests": requests, "returns": returns} | changes
    made: Memory = alter(Memory("demo"), **facts)
    return made


def intent_of(remembered: Memory, **changes: Any) -> Intent:
    """Return the intent that this memory has read."""
    requests = {one.id: Request(one.id, one.template, one.count, 0.0) for one in remembered.requests.values()}
    backs = {one.id: ReturnRequest(one.id, one.names, 0.0) for one in remembered.returns.values()}
    return Intent(
        **(
            {"provisioner": "demo", "generation": remembered.generation, "requests": requests, "returns": backs}
            | changes
        )
    )


# --- what is seen -----------------------------------------------------------------------------------------------------


def machine(number: int = 0, phase: Phase = Phase.RUNNING, request: str = REQUEST, **changes: Any) -> Machine:
    facts = {"fingerprint": Fingerprint(uid=f"uid-{number}"), "ip": f"10.0.0.{number % 250}", "launched": 1_700_000_000}
    return Machine(name(number, request), phase, **(facts | changes))


def snapshot(*machines: Machine, pool: str = "a", began: float = SEEN, **changes: Any) -> Snapshot:
    """Return a complete observation of a pool with these machines. By default, the observation has also asked for each
    machine of the two requests by name."""
    return Snapshot(pool, began, {one.name: one for one in machines}, **({"asked": ASKED} | changes))


def failed_observation(pool: str = "a") -> ObservationFailed:
    return ObservationFailed(pool, SEEN, Failure(ErrorClass.UNAVAILABLE, "no route to host"))


# --- putting them together --------------------------------------------------------------------------------------------


def draft_of(
    remembered: Memory, *snapshots: Snapshot, limits: Limits, now: float = NOW, holds: Holds = NO_HOLDS
) -> Draft:
    return Draft(remembered, {one.pool: one for one in snapshots}, limits, now, holds=holds)


def closes_of(draft: Draft) -> list[Transition]:
    """Return those changes of slots in a draft that close a slot."""
    return [one for one in draft.transitions if one.is_closed]


def capacity_of(draft: Draft, busy: Iterable[str] = ()) -> Capacity:
    draft.busy |= frozenset(busy)
    return Capacity(draft)


def unmet_of(
    remembered: Memory,
    limits: Limits,
    unseen: Iterable[str] = (),
    orphans: Mapping[str, int] | None = None,
    holds: Holds = NO_HOLDS,
) -> Mapping[str, tuple[Unmet, ...]]:
    """Return the unmet machines that a plan publishes if each observed pool shows what the slots say. ``unseen``: pools
    without an observation. ``orphans``: number by pool."""
    full = [
        slot
        for _, slot in remembered.slots
        if slot.failure and slot.failure.error.has_no_room and slot.observed.was_seen
    ]
    machines = {one.name: Machine(one.name, Phase.PENDING, spills_at_once=True) for one in full if one.ran_at is None}
    observations = [Snapshot(name, NOW, machines) for name in limits.pools.keys() - set(unseen)]
    draft = draft_of(remembered, *observations, limits=limits, holds=holds)
    draft.unknown = {pool: [""] * count for pool, count in (orphans or {}).items()}
    capacity, order = capacity_of(draft), order_requests(draft.records())
    for id_ in order:
        request_machines(draft, draft.requests[id_], capacity)
    capacity.note_windows()
    return find_unmet(draft, capacity, order)


def plan(
    remembered: Memory,
    *observations: Snapshot | ObservationFailed,
    limits: Limits,
    intent: Intent | None = None,
    activity: HfActivity | None = None,
    busy: Iterable[str] = (),
    now: float = NOW,
    holds: Holds = NO_HOLDS,
) -> Plan:
    """Return the plan for a memory. By default, its intent is the intent that the memory has read."""
    world = PlanInputs(
        intent or intent_of(remembered),
        {one.pool: one for one in observations},
        activity or HfActivity(since=now, last_call_at=now),
        frozenset(busy),
        holds=holds,
    )
    return make_plan(world, remembered, limits, now)
