"""Unmet machines. The plan names each reason why a request has too few machines, and the numbers add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from provisioner.model import (
    Budget,
    ErrorClass,
    Failure,
    Hold,
    HoldKind,
    Holds,
    Limits,
    Memory,
    PendingReason,
    RequestStatus,
    Slot,
    TemplateLimits,
    Unmet,
    Verdict,
    Window,
)
from provisioner.names import NO_TEMPLATE
from provisioner.planning.report.unmet import TOTAL
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
    STOCKOUT,
    TEMPLATE,
    failed_observation,
    limits,
    machine,
    memory,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
    unmet_of,
    unsent,
)

DENIED = Failure(ErrorClass.DENIED, "pods is forbidden")
ALONE = limits(pool("a"))
BOOT = 600.0
"""The boot deadline of a pool."""


def backing_off(failure: Failure = STOCKOUT, **changes: Any) -> Window:
    """A window that backs off for another 20 s."""
    facts = {
        "window": 4,
        "level": 2,
        "blocked_at": NOW - 10,
        "retry_at": NOW + 20,
        "is_probing": True,
        "failure": failure,
    }
    return Window(**(facts | changes))


def unmet(recorded: Memory, allowed: Limits = ALONE, id_: str = REQUEST, **known: Any) -> list[Unmet]:
    """Return the unmet machines of the request."""
    return list(unmet_of(recorded, allowed, **known)[id_])


def wanted(*slots: Slot, count: int, window: Window | None = None, **changes: Any) -> Memory:
    """Return a memory with a request of ``count`` machines. ``window``: the window of pool ``a``."""
    windows = {("a", TEMPLATE): window} if window else {}
    return memory(record(*slots, count=count, **changes), windows=windows)


def reported(one: Unmet) -> dict[str, Any]:
    """Return the fields of an entry whose values are not the defaults."""
    facts, usual = asdict(one), asdict(Unmet("", PendingReason.UNKNOWN, 0))
    return {name: facts[name] for name in facts if facts[name] != usual[name]}


OUT = {"error": ErrorClass.STOCKOUT, "text": STOCKOUT.text}
SPILLS = limits(pool("a", spill_after_seconds=180.0), pool("b", is_paused=True))
BLIND = {"unseen": ["a"]}
TWO_START = [slot(number, was_seen=True) for number in range(2)]


def says(reason: str, machines: int, **more: Any) -> dict[str, Any]:
    """Return the expected fields of an unmet entry of pool ``a`` that began when the request was read. ``more``
    replaces fields."""
    return {"pool": "a", "reason": reason, "machines": machines, "since": BEFORE} | more


def by_window(reason: str, machines: int, **more: Any) -> dict[str, Any]:
    """Return the expected fields of an unmet entry of pool ``a``. Leave out ``since``, because memory's window has that
    moment."""
    return {"pool": "a", "reason": reason, "machines": machines} | more


UNSEEN = says("unseen", 2, error="unavailable")
BOOTS = {"next_try_at": BEFORE + BOOT}
CAPPED = memory(
    record(running(0), running(1), count=5),
    record(*(running(n, Verdict.SUCCEEDED, OTHER) for n in range(3)), id_=OTHER, ended=RequestStatus.COMPLETE),
    record(running(0, request="cccccccccc"), id_="cccccccccc", template=NO_TEMPLATE),
)
TOTALLED = memory(
    record(running(0), running(1), count=5),
    record(running(0, Verdict.SUCCEEDED, OTHER), id_=OTHER, template="U", ended=RequestStatus.COMPLETE),
)

ROOMLESS = wanted(slot(was_seen=True, failure=STOCKOUT), count=1)
NOT_UP = wanted(slot(was_seen=True, failure=BROKEN), count=1)
NOT_UP_SAYS = says("troubled", 1, error="other", text=BROKEN.text, **BOOTS)
STOP = Holds((Hold(HoldKind.STOP_ALL, who="ann"),))
FULL = {"full": {"b": 1}, "elsewhere": {"b": "cap"}}
IN_FULL = wanted(slot(was_seen=True), running(1, pool="b"), count=2)
SLOW = pool("a", spill_after_seconds=180.0)

REASONS = [
    pytest.param(wanted(count=3, window=backing_off()), ALONE, {},
                 by_window("backoff", 3), id="a back-off"),
    pytest.param(wanted(*TWO_START, count=5, window=Window(2, closed_since=NOW - 5)), ALONE, {},
                 by_window("window", 3, bound=2), id="a window"),
    pytest.param(wanted(*TWO_START, count=5, window=Window(2, closed_since=NOW - 5)), limits(), {},
                 by_window("window", 3, bound=2, spills_to="b", spills_at=NOW + 175),
                 id="a window, before the next pool"),
    pytest.param(wanted(*TWO_START, count=5, window=Window(2, closed_since=NOW - 200)), SPILLS, {},
                 by_window("window", 3, bound=2, elsewhere={"b": "paused"}),
                 id="a window that was waited for long enough"),
    pytest.param(wanted(slot(was_seen=True, submitted_at=NOW - 2), count=4, window=backing_off(retry_at=NOW - 3)),
                 ALONE, {},
                 by_window("window", 3, bound=1), id="a probe"),
    pytest.param(CAPPED, limits(pool("a", max_machines=7)), {"orphans": {"a": 1}},
                 says("cap", 3, bound=7), id="a cap"),
    pytest.param(TOTALLED, limits(pool("a", max_machines=9, max_machines_total=4)), {"orphans": {"a": 1}},
                 says("cap", 3, text=TOTAL, bound=4), id="a cap over all templates"),
    pytest.param(wanted(count=2), limits(pool("a", is_paused=True)), {}, says("paused", 2), id="a pause"),
    pytest.param(wanted(count=2), limits(), {"holds": STOP}, says("stopped", 2, elsewhere={"b": "stopped"}),
                 id="all is stopped"),
    pytest.param(wanted(count=2, window=backing_off()), SPILLS, {},
                 by_window("backoff", 2, elsewhere={"b": "paused"}),
                 id="a pause, and another pool's"),
    pytest.param(wanted(count=2), ALONE, BLIND, UNSEEN, id="a pool that is blind"),
    pytest.param(wanted(slot(0, was_seen=True), slot(1, failure=STOCKOUT), count=2), ALONE, BLIND, UNSEEN,
                 id="slots in a pool that is blind"),
    pytest.param(wanted(count=2), ALONE, {}, says("unanswered", 2, since=NOW, next_try_at=NOW + BOOT),
                 id="machines that this plan asks for"),
    pytest.param(wanted(running(0), count=3), limits(pool("a", price_per_hour=2.0), budget=Budget(per_hour=3.0)), {},
                 says("budget", 2, text="The provisioner's budget is used up (3.00 USD per hour)."), id="the budget"),
    pytest.param(wanted(unsent(), count=1,
                        window=backing_off(Failure(ErrorClass.THROTTLED, "slow down"), is_probing=False)), ALONE, {},
                 says("unsent", 1, since=NOW - 10, next_try_at=NOW + 20, error="throttled", text="slow down"),
                 id="a create that was not sent"),
    pytest.param(wanted(slot(is_accepted=False), count=1), ALONE, {},
                 says("unanswered", 1, since=NOW, next_try_at=NOW + BOOT),
                 id="a create without an answer"),
    pytest.param(wanted(slot(0), slot(1, was_seen=True, submitted_at=NOW - 5), count=2), ALONE, {},
                 says("starting", 2, **BOOTS), id="machines that start"),
    pytest.param(wanted(slot(1, tried=BROKEN, tries=1), count=1), ALONE, {},
                 says("starting", 1, error="other", text=BROKEN.text, **BOOTS),
                 id="a machine that starts in place of one that failed"),
    pytest.param(wanted(slot(was_seen=True, is_queued=True, queue_reason="Priority", tried=BROKEN, tries=1),
                        slot(1, was_seen=True, is_queued=True, queue_reason="Resources", submitted_at=BEFORE - 5),
                        window=backing_off(), count=2),
                 SPILLS, {}, says("queued", 2, since=BEFORE - 5, text="Resources"),
                 id="a queue: one entry, with the longest wait, and the machines keep their positions"),
    pytest.param(wanted(slot(was_seen=True, is_queued=True, failure=BROKEN), count=1), ALONE, {},
                 says("troubled", 1, error="other", text=BROKEN.text), id="a queue that is no normal wait"),
    pytest.param(wanted(slot(was_seen=True, is_queued=True), count=1),
                 limits(replace(SLOW, queue_spill_seconds=400.0), pool("b")), {},
                 says("queued", 1, spills_to="b", spills_at=BEFORE + 400), id="a queue that is left after a while"),
    pytest.param(ROOMLESS, SPILLS, {}, says("troubled", 1, elsewhere={"b": "paused"}, **BOOTS, **OUT),
                 id="no room, and the next pool is paused"),
    pytest.param(ROOMLESS, limits(), {"holds": STOP}, says("troubled", 1, elsewhere={"b": "stopped"}, **BOOTS, **OUT),
                 id="no room, and all is stopped"),
    pytest.param(ROOMLESS, limits(), {"unseen": ["b"]}, says("troubled", 1, elsewhere={"b": "unseen"}, **BOOTS, **OUT),
                 id="no room, and the next pool is not seen"),
    pytest.param(replace(ROOMLESS, windows={("b", TEMPLATE): backing_off()}), limits(), {},
                 says("troubled", 1, elsewhere={"b": "backoff"}, **BOOTS, **OUT),
                 id="no room, and the next pool backs off"),
    pytest.param(ROOMLESS, limits(pool("a"), pool("b", price_per_hour=2.0), budget=Budget(per_hour=1.0)), {},
                 says("troubled", 1, elsewhere={"b": "budget"}, **BOOTS, **OUT),
                 id="no room, and the budget has none for the next pool"),
    pytest.param(NOT_UP, limits(SLOW, pool("b", is_paused=True), pool("c")), {},
                 NOT_UP_SAYS | {"elsewhere": {"b": "paused"}, "spills_to": "c", "spills_at": BEFORE + 180},
                 id="the pool after a paused pool takes machines"),
    pytest.param(NOT_UP, limits(SLOW, pool("b")), {}, NOT_UP_SAYS | {"spills_to": "b", "spills_at": BEFORE + 180},
                 id="a machine that does not come up"),
    pytest.param(IN_FULL, limits(SLOW, pool("b", max_machines=1)), {},
                 says("starting", 1, **FULL, **BOOTS), id="the next pool is at its cap"),
    pytest.param(IN_FULL, limits(SLOW, pool("b", max_machines=1), pool("c")), {},
                 says("starting", 1, **FULL, spills_to="c", spills_at=BEFORE + 180, **BOOTS),
                 id="the pool after a full pool has room"),
    pytest.param(IN_FULL, limits(SLOW, pool("b", max_machines=2)), {},
                 says("starting", 1, spills_to="b", spills_at=BEFORE + 180, **BOOTS), id="the next pool has room"),
    pytest.param(memory(record(*TWO_START, running(2, pool="b"), count=5), windows={("a", TEMPLATE): Window(2)}),
                 limits(SLOW, pool("b", max_machines=1)), {},
                 by_window("window", 2, bound=2, **FULL),
                 id="a window before a full pool"),
    pytest.param(wanted(slot(is_set_aside=True), count=1), ALONE, {}, says("set_aside", 1),
                 id="a slot that was set aside"),
    pytest.param(wanted(unsent(0, Verdict.FAILED, failure=DENIED), running(1), count=2), ALONE, {},
                 says("given_up", 1, error="denied", text=DENIED.text), id="what was given up"),
]  # fmt: skip


@pytest.mark.parametrize(("recorded", "allowed", "known", "says"), REASONS)
def test_each_reason_is_named(recorded: Memory, allowed: Limits, known: dict[str, Any], says: dict[str, Any]) -> None:
    (one,) = (one for one in unmet(recorded, allowed, **known) if one.reason == says["reason"])
    assert reported(one) == says


def test_every_reason_has_a_case() -> None:
    assert {case.values[3]["reason"] for case in REASONS} == set(PendingReason) - {PendingReason.UNKNOWN}


def test_a_request_whose_machines_run_has_no_unmet_machine() -> None:
    recorded = memory(record(running(0)), record(id_=OTHER, ended=RequestStatus.COMPLETE_WITH_ERROR, count=3))
    assert unmet_of(recorded, ALONE) == {}


def test_machines_that_wait_behind_one_for_which_there_is_no_room_wait_for_the_pool() -> None:
    full, other = unmet(wanted(slot(was_seen=True, failure=STOCKOUT), count=3))
    assert (full.reason, full.machines, full.text) == (PendingReason.TROUBLED, 1, STOCKOUT.text)
    assert (other.reason, other.machines, other.since, other.next_try_at) == (PendingReason.BACKOFF, 2, BEFORE, None)


def test_machines_wait_for_calls_that_are_under_way_and_not_for_a_window_of_some_size() -> None:
    (one,) = plan(wanted(count=2), snapshot(), limits=ALONE, busy=["a"]).unmet[REQUEST]
    assert (one.reason, one.machines, one.bound) == (PendingReason.WINDOW, 2, None)


def test_who_asks_later_waits_behind_who_asks_first() -> None:
    older, newer = record(count=1, read_at=BEFORE), record(count=2, read_at=NOW, id_=OTHER)
    recorded = memory(newer, older, windows={("a", TEMPLATE): backing_off()})
    assert [one.behind for one in unmet(recorded)] == [""]
    assert [one.behind for one in unmet(recorded, id_=OTHER)] == [REQUEST]


def test_a_newer_request_does_not_have_the_room_that_an_older_one_takes() -> None:
    older, newer = record(count=3, read_at=BEFORE), record(count=3, read_at=NOW, id_=OTHER)
    recorded, allowed = memory(older, newer), limits(pool("a", initial_window=4))
    asked, held_back = PendingReason.UNANSWERED, PendingReason.WINDOW
    assert [(one.reason, one.machines) for one in unmet(recorded, allowed)] == [(asked, 3)]
    assert [(one.reason, one.machines) for one in unmet(recorded, allowed, OTHER)] == [(asked, 1), (held_back, 2)]


def test_machines_are_distinguished_by_pool_and_class_and_the_earliest_counts() -> None:
    recorded = wanted(
        slot(0, failure=BROKEN, submitted_at=NOW - 30),
        slot(1, failure=replace(BROKEN, text="another image"), submitted_at=NOW - 60),
        slot(2, failure=DENIED),
        slot(3, pool="b", failure=BROKEN),
        count=4,
    )
    ones = unmet(recorded, limits())
    assert sorted((one.pool, one.error, one.machines, one.since) for one in ones) == [
        ("a", ErrorClass.DENIED, 1, BEFORE),
        ("a", ErrorClass.OTHER, 2, NOW - 60),
        ("b", ErrorClass.OTHER, 1, BEFORE),
    ]


ERRORS = some.sampled_from([STOCKOUT, BROKEN, DENIED, Failure(ErrorClass.TIMEOUT, "late")])
TIMES = some.floats(NOW - 500, NOW + 500)
WINDOWS = some.builds(
    Window,
    window=some.integers(1, 6),
    level=some.integers(0, 2),
    blocked_at=TIMES,
    retry_at=TIMES,
    is_probing=some.booleans(),
    failure=some.none() | ERRORS,
    closed_since=some.none() | TIMES,
    early_loss=some.none() | some.just(BROKEN),
)
POOLS = some.builds(
    pool,
    max_machines=some.none() | some.integers(0, 12),
    max_pending=some.integers(1, 8),
    initial_window=some.integers(1, 6),
    is_paused=some.booleans(),
)


@some.composite
def worlds(draw: some.DrawFn, *, settled: bool = False) -> tuple[Memory, Limits, frozenset[str]]:
    """Return memory, limits and the pools that are not observed. ``settled``: each machine runs, or has failed and is
    gone."""
    template = TemplateLimits(TEMPLATE, tuple(draw(some.permutations("ab"))[: draw(some.integers(1, 2))]))
    templates = {TEMPLATE: template} if settled or draw(some.booleans()) else {}
    allowed = Limits("hf", {name: replace(draw(POOLS), name=name) for name in "ab"}, templates)
    records = []
    for id_ in draw(some.sampled_from([(REQUEST,), (REQUEST, OTHER)])):
        slots = [draw(_slots(number, id_, settled=settled)) for number in range(draw(some.integers(0, 6)))]
        wanted = sum(one.verdict is not Verdict.WITHDRAWN for one in slots)
        count = wanted + draw(some.integers(0, 6))
        records.append(record(*slots, id_=id_, count=count, read_at=draw(TIMES), deadline_at=NOW + 3600))
    windows = {(name, TEMPLATE): draw(WINDOWS) for name in draw(some.sets(some.sampled_from("ab")))}
    return memory(*records, windows=windows), allowed, frozenset(draw(some.sets(some.sampled_from("ab"))))


@some.composite
def _slots(draw: some.DrawFn, number: int, id_: str, *, settled: bool) -> Slot:
    where = {"pool": draw(some.sampled_from("ab"))}
    if draw(some.booleans()):
        return running(number, request=id_, **where)
    if settled:
        return slot(number, Verdict.FAILED, id_, is_gone=True, failure=STOCKOUT, **where)
    verdict = draw(
        some.sampled_from([Verdict.OPEN, Verdict.OPEN, Verdict.FAILED, Verdict.WITHDRAWN, Verdict.CANCELLED])
    )
    flags = {
        name: draw(some.booleans()) for name in ("was_seen", "is_queued", "is_accepted", "is_set_aside", "is_gone")
    }
    failure = {"failure": draw(some.none() | ERRORS), "tried": draw(some.none() | ERRORS)}
    return slot(number, verdict, id_, submitted_at=draw(some.none() | TIMES), **(where | flags | failure))


@given(worlds())
def test_the_numbers_add_up_to_the_machines_that_do_not_run(world: tuple[Memory, Limits, frozenset[str]]) -> None:
    recorded, allowed, unseen = world
    found = unmet_of(recorded, allowed, unseen)
    for id_, wants in recorded.requests.items():
        ones = found.get(id_, ())
        assert all(one.machines > 0 for one in ones)
        assert sum(one.machines for one in ones) == wants.count - sum(
            one.ran_at is not None for one in wants.slots.values()
        )


@given(worlds(settled=True))
def test_the_plan_defers_and_asks_for_the_machines_that_it_names(
    world: tuple[Memory, Limits, frozenset[str]],
) -> None:
    recorded, allowed, unseen = world
    allowed = replace(
        allowed, pools={name: replace(one, stale_after_seconds=NOW) for name, one in allowed.pools.items()}
    )
    observations = [
        failed_observation(name) if name in unseen else snapshot(*_machines(recorded, name), pool=name, began=SEEN)
        for name in "ab"
    ]
    planned = plan(recorded, *observations, limits=allowed)
    deferred, asked = Counter[tuple[str, str]](), Counter[str]()
    for one in (one for ones in planned.unmet.values() for one in ones):
        if one.reason is PendingReason.UNANSWERED:
            asked[one.pool] += one.machines
        else:
            reason = PendingReason.BACKOFF if one.reason is PendingReason.UNSEEN else one.reason
            deferred[one.pool, str(reason)] += one.machines
    assert deferred == {(where, str(reason)): count for (where, _, reason), count in planned.deferred.items()}
    assert asked == Counter(create.pool for create in planned.creates)


def _machines(recorded: Memory, where: str) -> Iterator[Any]:
    for wants in recorded.requests.values():
        for one in wants.slots.values():
            if one.pool == where and one.ran_at is not None:
                yield machine(one.number, request=wants.id)


def test_a_machine_that_ran_and_is_down_is_missing_with_its_reason() -> None:
    recorded = wanted(running(0, down_since=NOW - 60, failure=BROKEN), running(1), count=2)
    (one,) = unmet(recorded)
    assert (one.machines, one.reason, one.text) == (1, PendingReason.TROUBLED, BROKEN.text)
