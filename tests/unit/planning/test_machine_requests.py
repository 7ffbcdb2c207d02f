"""Scheduling: the pools and number of the machines to request, and why no more are requested."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from provisioner.hostfactory import MAX_NUMBER
from provisioner.model import (
    Create,
    DeleteReason,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    PendingReason,
    Phase,
    RequestRecord,
    Slot,
    Snapshot,
    Tries,
    Verdict,
    Window,
)
from provisioner.names import NO_TEMPLATE, SLOT_NUMBERS
from provisioner.planning.allocate import machine_requests
from provisioner.planning.allocate.machine_requests import MOST_LINES, NO_NUMBERS, SLOW, request_machines
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import count_free_numbers, count_missing, find_missing_tries
from provisioner.planning.finish.deadlines_and_ends import end_request
from provisioner.planning.report.answers import request_answer
from tests.support.parts import alter
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    capacity_of,
    draft_of,
    limits,
    machine,
    memory,
    name,
    pool,
    record,
    running,
    slot,
    snapshot,
    two_templates,
    unsent,
)

BACKING_OFF = Window(window=8, level=1, is_probing=True, blocked_at=NOW - 5, retry_at=NOW + 20, failure=STOCKOUT)
PROBING = replace(BACKING_OFF, retry_at=NOW - 1)
THROTTLED = Window(
    window=8, level=1, blocked_at=NOW - 1, retry_at=NOW + 1, failure=Failure(ErrorClass.THROTTLED, "too many requests")
)
SILENT = replace(BACKING_OFF, failure=Failure(ErrorClass.UNAVAILABLE, "connection refused"))
BOTH = (snapshot(pool="a"), snapshot(pool="b"))
SPILL = 180.0
OVER = "before the request's deadline"


def asked(
    known: Memory,
    *observations: Snapshot,
    limits: Limits,
    busy: Iterable[str] = (),
    unknown: dict[str, list[str]] | None = None,
    now: float = NOW,
) -> Draft:
    """Return the plan after all requests were served in order. By default, both pools are empty."""
    draft = draft_of(known, *(observations or BOTH), limits=limits, now=now)
    draft.unknown = unknown or {}
    capacity = capacity_of(draft, busy)
    for one in draft.records():
        request_machines(draft, one, capacity, OVER if now >= one.deadline_at else "")
    capacity.note_windows()
    return draft


def asked_of(
    one: RequestRecord,
    first: Mapping[str, Any] = MappingProxyType({}),
    second: Mapping[str, Any] = MappingProxyType({}),
    *,
    seen: tuple[Snapshot, ...] = BOTH,
    known_window: Window | None = None,
    next_window: Window | None = None,
    busy: str = "",
) -> Draft:
    """Return the plan after a request was served by the pools ``a`` and then ``b``. ``first`` and ``second``: the
    settings of these pools."""
    windows = {("a", TEMPLATE): known_window, ("b", TEMPLATE): next_window}
    known = memory(one, windows={key: window for key, window in windows.items() if window})
    pools = pool("a", **({"spill_after_seconds": SPILL} | first)), pool("b", **second)
    return asked(known, *seen, limits=limits(*pools), busy=busy)


def created(draft: Draft) -> dict[str, int]:
    return dict(Counter(create.pool for create in draft.creates))


def slots(draft: Draft) -> dict[int, Slot]:
    return dict(draft.memory().requests[REQUEST].slots)


def verdicts(draft: Draft) -> dict[Verdict, int]:
    return dict(Counter(one.verdict for one in slots(draft).values()))


# --- pool order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "given", "expected", "wait"),
    [
        pytest.param({}, {}, {"a": 5}, {}, id="the first pool takes what it can"),
        pytest.param({"max_machines": 2}, {}, {"a": 2, "b": 3}, {}, id="full: the rest goes on"),
        pytest.param({"max_machines": 0}, {}, {"b": 5}, {}, id="no room at all: all goes on"),
        pytest.param({"max_machines": 0}, {"busy": "b"}, {}, {"b": 5}, id="no room, the second busy: they wait for it"),
        pytest.param({"is_paused": True}, {}, {"b": 5}, {}, id="paused: all goes on"),
        pytest.param({}, {"known_window": BACKING_OFF}, {"b": 5}, {}, id="backing off: all goes on"),
        pytest.param({}, {"known_window": PROBING}, {"a": 1}, {"a": 4}, id="probing: one, the others wait"),
        pytest.param({}, {"seen": BOTH[1:]}, {"b": 5}, {}, id="blind: gets nothing"),
        pytest.param({}, {"busy": "a"}, {}, {"a": 5}, id="busy: they wait for it"),
        pytest.param({}, {"busy": "b"}, {"a": 5}, {}, id="the second busy: no matter"),
        pytest.param({"initial_window": 2}, {}, {"a": 2}, {"a": 3}, id="a closed window is not full: they wait for it"),
        pytest.param({"max_pending": 2}, {}, {"a": 2}, {"a": 3}, id="max_pending binds as the window does"),
    ],
)
def test_where_five_machines_are_asked_for(
    first: dict[str, Any], given: dict[str, Any], expected: dict[str, int], wait: dict[str, int]
) -> None:
    draft = asked_of(record(count=5), first, **given)
    assert created(draft) == expected
    assert dict(draft.deferred) == {(where, TEMPLATE, PendingReason.WINDOW): count for where, count in wait.items()}


def test_a_pool_whose_cap_and_window_are_both_reached_is_full() -> None:
    assert created(asked_of(record(slot(), count=3), {"max_machines": 1, "initial_window": 1})) == {"b": 2}


@pytest.mark.parametrize(
    ("both", "known_window", "reason"),
    [
        pytest.param({"is_paused": True}, None, PendingReason.PAUSED, id="paused"),
        pytest.param({"max_machines": 0}, None, PendingReason.CAP, id="full"),
        pytest.param({}, BACKING_OFF, PendingReason.BACKOFF, id="backing off"),
    ],
)
def test_what_no_pool_takes_is_deferred_in_the_first(
    both: dict[str, object], known_window: Window | None, reason: PendingReason
) -> None:
    windows = {(one, TEMPLATE): known_window for one in "ab"} if known_window else {}
    draft = asked(memory(record(count=5), windows=windows), limits=limits(pool("a", **both), pool("b", **both)))
    assert draft.creates == []
    assert dict(draft.deferred) == {("a", TEMPLATE, reason): 5}
    assert slots(draft) == {}


@pytest.mark.parametrize(
    "slots", [[], [slot(is_accepted=False, submitted_at=NOW - 30)]], ids=["new", "of unknown outcome"]
)
def test_a_back_off_is_checked_again_when_it_ends(slots: list[Slot]) -> None:
    known = memory(record(*slots, count=1), windows={("a", TEMPLATE): BACKING_OFF})
    assert asked(known, limits=limits(pool("a"))).due_at == BACKING_OFF.retry_at


def test_new_slots_have_the_next_numbers_and_are_submitted_when_recorded() -> None:
    draft = asked(memory(record(slot(0, Verdict.FAILED), running(1), count=3)), limits=limits(pool("a")))
    assert draft.creates == [Create(name(number), "a", TEMPLATE, REQUEST) for number in (2, 3)]
    assert draft.memory().requests[REQUEST].next_slot == 4
    assert [slots(draft)[number] for number in (2, 3)] == [
        Slot(name(number), "a", Verdict.OPEN, opened_at=NOW, submitted_at=NOW) for number in (2, 3)
    ]


# --- a closed window, and how long it is waited for -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        pytest.param(None, {"a": 2}, id="just closed: they wait"),
        pytest.param(NOW - SPILL + 1, {"a": 2}, id="closed for less than spill_after: they wait"),
        pytest.param(NOW - SPILL, {"a": 2, "b": 3}, id="closed for spill_after: they go on"),
    ],
)
def test_a_closed_window_is_waited_for_up_to_spill_after(since: float | None, expected: dict[str, int]) -> None:
    draft = asked_of(record(count=5), known_window=Window(window=2, closed_since=since))
    assert created(draft) == expected
    assert draft.window("a", TEMPLATE).closed_since == (since or NOW)
    assert draft.due_at == ((since or NOW) + SPILL if since != NOW - SPILL else float("inf"))


def test_a_window_that_holds_nothing_back_forgets_that_it_did() -> None:
    draft = asked_of(record(count=2), known_window=Window(window=2, closed_since=BEFORE))
    assert draft.memory().windows["a", TEMPLATE].closed_since is None


# --- a slot that does not run in time ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "second", "given", "withdrawn"),
    [
        pytest.param({"submitted_at": NOW - SPILL + 1}, {}, {}, False, id="before spill_after: it may still come"),
        pytest.param({"submitted_at": NOW - SPILL}, {}, {}, True, id="after spill_after: the next pool takes it"),
        pytest.param({"submitted_at": NOW - SPILL}, {"is_paused": True}, {}, False, id="the next is paused: it stays"),
        pytest.param({"submitted_at": NOW - SPILL}, {"max_machines": 0}, {}, False, id="the next is full: it stays"),
        pytest.param({"submitted_at": NOW - SPILL}, {}, {"next_window": BACKING_OFF}, False,
                     id="the next backs off: it stays"),
        pytest.param({"submitted_at": NOW - SPILL}, {}, {"seen": BOTH[:1]}, False, id="the next is blind: it stays"),
        pytest.param({"submitted_at": NOW - SPILL}, {}, {"seen": BOTH[1:]}, False,
                     id="its own pool is blind: it stays"),
        pytest.param({"released_at": NOW - SPILL + 1}, {}, {}, False, id="just freed: this pool has its time"),
        pytest.param({"released_at": NOW - SPILL}, {}, {}, True, id="freed for spill_after: the next pool takes it"),
    ],
)  # fmt: skip
def test_a_slot_is_withdrawn_only_when_another_pool_takes_it(
    age: dict[str, float], second: dict[str, Any], given: dict[str, Any], withdrawn: bool
) -> None:
    late = slot(**({"submitted_at": NOW - 10 * SPILL} | age), was_seen=True, failure=STOCKOUT)
    draft = asked_of(record(late), {}, second, **given)
    assert created(draft) == ({"b": 1} if withdrawn else {})
    assert draft.due_at > NOW
    after = slots(draft)[0]
    if withdrawn:
        assert (after.verdict, after.deletion.reason, after.failure) == (
            Verdict.WITHDRAWN,
            DeleteReason.WITHDRAWN,
            STOCKOUT,
        )
        assert draft.window("a", TEMPLATE).failure == STOCKOUT
    else:
        assert after == late


WAITS = machine(0, Phase.PENDING, failure=STOCKOUT, spills_at_once=True)


@pytest.mark.parametrize(
    ("no_room", "count", "expected"),
    [
        pytest.param(True, 1, {"b": 1}, id="no room: it goes on to the next pool at once"),
        pytest.param(False, 1, {}, id="it only boots: it stays"),
        pytest.param(True, 5, {"b": 5}, id="no room: it is the probe, and the others go elsewhere"),
        pytest.param(False, 5, {"a": 4}, id="it only boots: it holds back no other"),
    ],
)
def test_a_machine_that_waits_for_room(no_room: bool, count: int, expected: dict[str, int]) -> None:
    waiting = record(slot(submitted_at=NOW - 1, was_seen=True, failure=STOCKOUT), count=count)
    waits = snapshot(replace(WAITS, spills_at_once=no_room))
    assert created(asked_of(waiting, seen=(waits, BOTH[1]))) == expected


def test_a_pool_without_room_and_without_another_keeps_its_waiting_machines_as_they_are() -> None:
    waits = snapshot(WAITS)
    waiting = memory(record(slot(submitted_at=NOW - SPILL - 1, was_seen=True, failure=STOCKOUT), count=3))
    draft = asked(waiting, waits, limits=limits(pool("a", spill_after_seconds=SPILL)))
    assert created(draft) == {}
    assert verdicts(draft) == {Verdict.OPEN: 1}
    assert dict(draft.deferred) == {("a", TEMPLATE, PendingReason.BACKOFF): 2}


def test_a_slot_withdrawn_without_a_known_reason_says_that_it_was_slow() -> None:
    draft = asked(memory(record(slot(submitted_at=NOW - SPILL, was_seen=True))), limits=limits())
    assert slots(draft)[0].failure == SLOW


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(running(0, submitted_at=NOW - 9999), id="it runs"),
        pytest.param(slot(0, pool="b", submitted_at=NOW - 9999, was_seen=True), id="its pool is the template's last"),
        pytest.param(slot(0, pool="c", submitted_at=NOW - 9999, was_seen=True), id="its pool left the template"),
        pytest.param(slot(0, submitted_at=NOW - 9999, was_seen=True, is_set_aside=True), id="it is set aside"),
    ],
)
def test_a_slot_that_is_never_withdrawn(one: Slot) -> None:
    draft = asked(memory(record(one)), *BOTH, snapshot(pool="c"), limits=limits())
    assert slots(draft) == {0: one}
    assert draft.creates == []


def test_a_slot_that_is_withdrawn_counts_no_more_against_max_number() -> None:
    late = slot(submitted_at=NOW - SPILL, was_seen=True)
    draft = asked(memory(record(late, count=2)), limits=limits(pool("a", is_paused=True), pool("b"), maximum=2))
    assert verdicts(draft) == {Verdict.WITHDRAWN: 1, Verdict.OPEN: 2}


def test_a_plan_is_due_when_a_slot_may_go_to_the_next_pool() -> None:
    assert asked_of(record(slot(submitted_at=NOW - 30, was_seen=True))).due_at == NOW - 30 + SPILL


def test_only_as_many_are_withdrawn_as_the_next_pool_takes() -> None:
    late = [slot(number, submitted_at=NOW - SPILL, was_seen=True) for number in range(5)]
    draft = asked(memory(record(*late)), limits=limits(pool("a"), pool("b", max_machines=2)))
    assert verdicts(draft) == {Verdict.WITHDRAWN: 2, Verdict.OPEN: 5}
    assert created(draft) == {"b": 2}


# --- creates that were not sent, or whose outcome is unknown ----------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "given", "sent", "verdict"),
    [
        pytest.param({}, {}, True, Verdict.OPEN, id="the pool takes it: it is sent"),
        pytest.param({}, {"known_window": BACKING_OFF}, False, Verdict.WITHDRAWN, id="it backs off: another slot"),
        pytest.param({}, {"known_window": THROTTLED}, False, Verdict.OPEN, id="throttled: it waits"),
        pytest.param({}, {"known_window": SILENT}, False, Verdict.OPEN, id="no response: it waits"),
        pytest.param({"is_paused": True}, {}, False, Verdict.WITHDRAWN, id="the pool is paused: another slot"),
        pytest.param({}, {"seen": BOTH[1:]}, False, Verdict.OPEN, id="the pool is blind: it waits"),
        pytest.param({}, {"busy": "a"}, False, Verdict.OPEN, id="the pool is busy: it waits"),
        pytest.param({"spill_after_seconds": 1.0}, {"known_window": THROTTLED}, False, Verdict.WITHDRAWN,
                     id="the pool is too busy for longer than spill_after: another slot"),
    ],
)  # fmt: skip
def test_a_slot_that_was_never_sent(first: dict[str, Any], given: dict[str, Any], sent: bool, verdict: Verdict) -> None:
    draft = asked_of(record(unsent(opened_at=NOW - 1)), first, **given)
    assert (Create(name(0), "a", TEMPLATE, REQUEST) in draft.creates) is sent
    after = slots(draft)[0]
    assert (after.verdict, after.submitted_at) == (verdict, NOW if sent else None)
    if verdict is Verdict.WITHDRAWN:
        assert after.deletion.is_gone
        assert created(draft) == {"b": 1}


@pytest.mark.parametrize(
    ("known_window", "others"),
    [
        pytest.param(replace(SILENT, retry_at=NOW - 1), Verdict.OPEN, id="it did not answer: they wait"),
        pytest.param(PROBING, Verdict.WITHDRAWN, id="it had no stock: they give way"),
    ],
)
def test_of_slots_that_were_never_sent_one_is_the_probe(known_window: Window, others: Verdict) -> None:
    draft = asked_of(record(*(unsent(number, opened_at=NOW - 1) for number in range(3))), known_window=known_window)
    assert draft.creates == [Create(name(0), "a", TEMPLATE, REQUEST)]
    assert [one.verdict for one in slots(draft).values()] == [Verdict.OPEN, others, others]


@pytest.mark.parametrize(
    ("opened", "due"),
    [
        pytest.param(NOW - 1, THROTTLED.retry_at, id="when the pool may be asked again"),
        pytest.param(NOW - SPILL + 0.5, NOW + 0.5, id="when the slot has waited long enough"),
    ],
)
def test_when_a_slot_that_waits_for_a_pool_that_is_too_busy_is_checked_again(opened: float, due: float) -> None:
    known = memory(record(unsent(opened_at=opened)), windows={("a", TEMPLATE): THROTTLED})
    assert asked(known, *BOTH, limits=limits()).due_at == due


@pytest.mark.parametrize("room", [{"max_machines": 1}, {"max_pending": 1}, {"initial_window": 1}], ids=str)
def test_a_slot_that_was_never_sent_leaves_its_place_to_the_next(room: dict[str, int]) -> None:
    lone = limits(pool("a", **room), maximum=1)
    known = memory(record(unsent(opened_at=NOW - 1)), windows={("a", TEMPLATE): BACKING_OFF})
    draft = draft_of(known, *BOTH, limits=lone)
    capacity = capacity_of(draft)
    request_machines(draft, draft.requests[REQUEST], capacity)
    assert verdicts(draft) == {Verdict.WITHDRAWN: 1}
    draft.windows["a", TEMPLATE] = Window(window=1)
    assert capacity.room("a", TEMPLATE).machines == 1


UNKNOWN = slot(is_accepted=False, submitted_at=NOW - 30)


@pytest.mark.parametrize(
    ("changes", "known_window", "began", "repeated"),
    [
        pytest.param({}, None, NOW - 1, True, id="no answer, never seen: repeated"),
        pytest.param({}, None, NOW - 30, False, id="no observation since: not yet"),
        pytest.param({}, BACKING_OFF, NOW - 1, False, id="the pool backs off: not yet"),
        pytest.param({}, PROBING, NOW - 1, True, id="the pool is probed: it is the probe"),
        pytest.param({}, replace(PROBING, blocked_at=NOW - 30), NOW - 1, True, id="it was the probe already"),
        pytest.param({"is_accepted": True}, None, NOW - 1, False, id="accepted: pending, never repeated"),
        pytest.param({"was_seen": True}, None, NOW - 1, False, id="seen: never repeated"),
    ],
)
def test_a_create_of_unknown_outcome(
    changes: dict[str, bool], known_window: Window | None, began: float, repeated: bool
) -> None:
    draft = asked_of(record(alter(UNKNOWN, **changes)), seen=(snapshot(began=began),), known_window=known_window)
    assert draft.creates == ([Create(name(0), "a", TEMPLATE, REQUEST, is_repeated=True)] if repeated else [])
    assert slots(draft)[0].submitted_at == (NOW if repeated else NOW - 30)
    assert len(slots(draft)) == 1


def test_a_probe_of_unknown_outcome_that_is_repeated_is_still_the_only_one() -> None:
    probed = replace(PROBING, blocked_at=NOW - 30)
    known = memory(record(UNKNOWN, unsent(1), count=3), windows={("a", TEMPLATE): probed})
    draft = asked(known, limits=limits(pool("a")))
    assert draft.creates == [Create(name(0), "a", TEMPLATE, REQUEST, is_repeated=True)]


@pytest.mark.parametrize(("known_window", "creates"), [(None, 3), (PROBING, 1)], ids=["all at once", "once per probe"])
def test_creates_of_unknown_outcome_are_repeated(known_window: Window | None, creates: int) -> None:
    unknown = [slot(number, is_accepted=False, submitted_at=NOW - 30) for number in range(3)]
    draft = asked_of(record(*unknown), seen=BOTH[:1], known_window=known_window)
    assert [create.is_repeated for create in draft.creates] == [True] * creates


# --- caps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        pytest.param(slot(0), True, id="submitted"),
        pytest.param(running(0), True, id="running"),
        pytest.param(running(0, Verdict.SUCCEEDED), True, id="succeeded"),
        pytest.param(slot(0, Verdict.FAILED), True, id="closed, and may still be there"),
        pytest.param(running(0, Verdict.RETURNED), True, id="returned, and not yet gone"),
        pytest.param(slot(0, Verdict.FAILED, is_gone=True), False, id="closed and gone"),
        pytest.param(running(0, pool="b"), False, id="in another pool"),
    ],
)
def test_what_counts_against_a_pools_cap(one: Slot, counts: bool) -> None:
    known = memory(record(one, id_=OTHER, count=1, ended="complete"), record(count=9))
    draft = draft_of(known, *BOTH, limits=limits(pool("a", max_machines=4)))
    capacity = capacity_of(draft)
    request_machines(draft, draft.requests[REQUEST], capacity)
    assert created(draft) == {"a": 3 if counts else 4}
    assert dict(draft.deferred) == {("a", TEMPLATE, PendingReason.CAP): 6 if counts else 5}


@pytest.mark.parametrize(
    ("most", "unknown", "made"),
    [
        pytest.param({"max_machines_total": 7}, (), {TEMPLATE: 5, "U": 2}, id="the second gets what the first leaves"),
        pytest.param({"max_machines_total": 7}, ("x", "y"), {TEMPLATE: 5}, id="machines without a request count"),
        pytest.param({"max_machines_total": 7, "max_machines": 3}, (), {TEMPLATE: 3, "U": 3}, id="each has its own"),
        pytest.param({"max_machines_total": 4, "max_machines": 3}, (), {TEMPLATE: 3, "U": 1}, id="the lower binds"),
        pytest.param({"max_machines": 4}, ("x", "y"), {TEMPLATE: 2, "U": 2}, id="machines without a request, by each"),
    ],
)
def test_the_caps_of_two_templates(most: dict[str, int], unknown: tuple[str, ...], made: dict[str, int]) -> None:
    known = memory(record(count=5), record(id_=OTHER, count=5, template="U"))
    draft = asked(known, limits=two_templates(pool("a", **most)), unknown={"a": list(unknown)})
    assert Counter(create.template for create in draft.creates) == made
    assert {reason for _, _, reason in draft.deferred} == {PendingReason.CAP}
    assert sum(draft.deferred.values()) == 10 - sum(made.values())


def test_a_machine_that_still_goes_counts_against_the_cap_over_all_templates() -> None:
    going = record(slot(0, Verdict.FAILED, OTHER), id_=OTHER, template="U", ended="complete")
    draft = draft_of(memory(going, record(count=5)), *BOTH, limits=two_templates(pool("a", max_machines_total=4)))
    request_machines(draft, draft.requests[REQUEST], capacity_of(draft))
    assert created(draft) == {"a": 3}


def test_a_slot_that_is_withdrawn_unsent_leaves_its_place_to_another_template() -> None:
    paused, shared = pool("a", is_paused=True), pool("b", max_machines_total=1)
    known = memory(record(unsent(0, pool="b")), record(id_=OTHER, count=1, template="U"))
    known = replace(known, windows={("b", TEMPLATE): BACKING_OFF})
    draft = asked(known, limits=two_templates(paused, shared))
    assert Counter(create.template for create in draft.creates) == {"U": 1}


def test_max_pending_counts_closed_slots_that_may_still_start() -> None:
    known = memory(record(slot(0, Verdict.FAILED), slot(1), count=5))
    draft = asked(known, limits=limits(pool("a", max_pending=3)))
    assert created(draft) == {"a": 1}


# --- what will never be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maximum", "there", "wanted", "creates", "failed"),
    [
        pytest.param(3, 0, 5, 3, 2, id="what fits is made, the rest fails at once"),
        pytest.param(3, 3, 2, 0, 2, id="nothing fits: all fails at once"),
        pytest.param(3, 4, 2, 0, 2, id="more there than maxNumber, which was lowered: only what is wanted fails"),
        pytest.param(5, 0, 5, 5, 0, id="just enough: nothing fails"),
        pytest.param(None, 0, 5, 5, 0, id="unlimited: nothing fails"),
    ],
)
def test_beyond_max_number(maximum: int | None, there: int, wanted: int, creates: int, failed: int) -> None:
    others = [running(number, Verdict.SUCCEEDED, OTHER) for number in range(there)]
    known = memory(record(*others, id_=OTHER), record(count=wanted))
    draft = asked(known, limits=limits(pool("a", initial_window=99), maximum=maximum))
    assert len(draft.creates) == creates
    given_up = [one for one in slots(draft).values() if one.verdict is Verdict.FAILED]
    assert len(given_up) == failed
    for one in given_up:
        assert (one.submitted_at, one.deletion.is_gone, one.failure is not None) == (None, True, True)
        assert one.failure is not None
        assert f"maxNumber of {maximum}" in one.failure.text
        assert one.failure.error is ErrorClass.QUOTA
    assert count_missing(draft.requests[REQUEST]) == 0


def test_an_unlimited_template_ends_at_hfs_own_maximum() -> None:
    draft = asked(
        memory(record(count=MAX_NUMBER + 1)), limits=limits(pool("a", initial_window=20_000, max_pending=20_000))
    )
    assert len(draft.creates) == MAX_NUMBER
    assert verdicts(draft) == {Verdict.OPEN: MAX_NUMBER, Verdict.FAILED: 1}


@pytest.mark.parametrize(
    ("templates", "problem"),
    [
        pytest.param(False, "the loop has no template T; bring ", id="that is not configured"),
        pytest.param(True, "template T has no pools; name some ", id="without pools"),
    ],
)
def test_a_template_with_nowhere_to_go_fails_at_once(templates: bool, problem: str) -> None:
    nowhere = limits(pool("a"))
    nowhere = replace(
        nowhere, templates={TEMPLATE: replace(nowhere.templates[TEMPLATE], pools=())} if templates else {}
    )
    draft = asked(memory(record(count=2)), limits=nowhere)
    assert verdicts(draft) == {Verdict.FAILED: 2}
    (failure,) = {one.failure for one in slots(draft).values()}
    assert failure is not None
    assert (failure.error, failure.text.startswith(problem)) == (ErrorClass.INVALID, True)


@pytest.mark.parametrize(
    ("one", "given", "failure"),
    [
        pytest.param(slot(0, Verdict.FAILED, failure=BROKEN), {"known_window": BACKING_OFF}, BROKEN,
                     id="why its last slot failed"),
        pytest.param(slot(0, Verdict.WITHDRAWN, failure=SLOW), {"known_window": BACKING_OFF}, STOCKOUT,
                     id="else why its pool backs off"),
        pytest.param(slot(0, Verdict.WITHDRAWN), {"seen": BOTH[1:]},
                     Failure(ErrorClass.UNAVAILABLE, "unobservable: pool a could not be seen."),
                     id="else that a pool is blind"),
        pytest.param(slot(0, Verdict.WITHDRAWN), {},
                     Failure(ErrorClass.TIMEOUT, "No pool had room for the machine before the request's deadline."),
                     id="else that no pool had room"),
    ],
)  # fmt: skip
def test_what_is_missing_at_the_deadline_fails_with_the_real_reason(
    one: Slot, given: dict[str, Any], failure: Failure
) -> None:
    draft = asked_of(record(one, count=2, deadline_at=NOW), **given)
    assert draft.creates == []
    assert [slots(draft)[number].failure for number in (1, 2)] == [failure, failure]
    assert count_missing(draft.requests[REQUEST]) == 0


@pytest.mark.parametrize(("wanted", "lines"), [(MOST_LINES, MOST_LINES), (MOST_LINES + 1, 1), (100_000, 1)])
def test_what_can_never_be_given_is_one_line_where_it_is_much(wanted: int, lines: int) -> None:
    draft = asked(memory(record(count=4 + wanted)), limits=limits(pool("a", initial_window=4), maximum=4))
    made, refused = [
        [one for one in slots(draft).values() if one.verdict is each] for each in (Verdict.OPEN, Verdict.FAILED)
    ]
    assert (len(made), len(refused), count_missing(draft.requests[REQUEST])) == (4, lines, 0)
    assert {one.failure.error for one in refused if one.failure} == {ErrorClass.QUOTA}
    assert (f"So {wanted:,} machines" in str(refused[0].failure)) is (lines == 1)
    again = asked(draft.memory(), limits=limits(pool("a", initial_window=4), maximum=4))
    assert again.memory().requests[REQUEST].slots == draft.requests[REQUEST].slots, "nothing is given up twice"


class Gaps(list[Tries]):
    """The missing machines of a request. If code visits them one by one although they are many, the test fails."""

    def __iter__(self) -> Iterator[Tries]:
        assert len(self) <= MOST_LINES, "the work grows with what HF asks for"
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return Gaps(part) if isinstance(at, slice) else part


@pytest.mark.parametrize("tries", [0, 3])
def test_what_can_never_be_given_costs_no_work_for_each_machine(monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    """If a file was altered, intent may have ten thousand requests of a hundred thousand machines each. Machines that
    can never be made must not slow a cycle down."""
    monkeypatch.setattr(machine_requests, "find_missing_tries", lambda record: Gaps(find_missing_tries(record)))
    few = limits(pool("a", initial_window=4), maximum=4)
    template = replace(few.templates[TEMPLATE], tries=tries)
    draft = asked(memory(record(count=100_000)), limits=replace(few, templates={TEMPLATE: template}))
    assert (len(draft.creates), count_missing(draft.requests[REQUEST])) == (4, 0)


def test_of_machines_that_were_tried_each_keeps_its_line() -> None:
    failed = [slot(number, Verdict.FAILED, failure=BROKEN) for number in range(MOST_LINES + 5)]
    draft = asked(memory(record(*failed, count=3 * MOST_LINES + 5, deadline_at=NOW)), limits=limits())
    lines = [one for one in slots(draft).values() if one.submitted_at is None]
    assert (len(lines), count_missing(draft.requests[REQUEST])) == (MOST_LINES + 6, 0)


# --- slot numbers -----------------------------------------------------------------------------------------------------

LAST = SLOT_NUMBERS - 1


def answered(draft: Draft) -> dict[str, Any]:
    """Return the request's terminal answer, after a check that the names of its machines are valid and have the right
    numbers."""
    record = draft.requests[REQUEST]
    assert [one.name for one in record.slots.values()] == [name(number) for number in record.slots]
    assert max(record.slots) <= LAST
    end_request(draft, record)
    answer: dict[str, Any] = json.loads(request_answer(draft.requests[REQUEST]).text)
    return answer


@pytest.mark.parametrize(("left", "creates"), [(4, 3), (3, 0), (1, 0)])
def test_a_request_whose_slot_numbers_are_used_up_ends_and_says_why(left: int, creates: int) -> None:
    failed = slot(1, Verdict.FAILED, failure=BROKEN)
    one = record(slot(0, Verdict.CANCELLED), failed, count=4, next_slot=SLOT_NUMBERS - left)
    draft = asked(memory(one), limits=limits(pool("a", initial_window=9)))
    assert len(draft.creates) == creates
    assert slots(draft)[0] == one.slots[0], "no slot is replaced by another"
    if not creates:
        answer = answered(draft)
        assert (answer["status"], count_missing(draft.requests[REQUEST])) == ("complete_with_error", 0)
        lines = [one["message"] for one in answer["machines"] if one["name"] != name(0)]
        text = f"other: {NO_NUMBERS.text}" + " So 3 machines of the request are not made." * (left == 1)
        assert lines == [text] * left


@pytest.mark.parametrize("over", [False, True], ids=["before its deadline", "at its deadline"])
def test_a_request_without_any_slot_number_says_why_in_its_message(over: bool) -> None:
    one = record(running(0), running(LAST), count=4, deadline_at=NOW if over else NOW + 1)
    draft = asked(memory(one), limits=limits())
    answer = answered(draft)
    reason = "timeout: No pool had room" if over else f"other: {NO_NUMBERS.text}"
    assert (draft.creates, answer["status"]) == ([], "complete_with_error")
    assert answer["message"].startswith(reason)
    assert sorted(one["name"] for one in answer["machines"]) == [name(0), name(LAST)]


@pytest.mark.parametrize(("left", "lines"), [(4, 4), (3, 1), (1, 1)])
def test_machines_that_are_given_up_share_a_line_where_numbers_are_scarce(left: int, lines: int) -> None:
    failed = [slot(number, Verdict.FAILED, failure=BROKEN) for number in range(4)]
    draft = asked(memory(record(*failed, deadline_at=NOW, next_slot=SLOT_NUMBERS - left)), limits=limits())
    assert len(slots(draft)) - 4 == lines
    answer = answered(draft)
    assert count_missing(draft.requests[REQUEST]) == 0
    assert BROKEN.text in answer["message"]
    assert ("So 4 machines" in answer["message"]) is (lines == 1)


@pytest.mark.parametrize(("left", "spills"), [(2, True), (1, False)])
def test_the_last_slot_number_is_kept_to_say_why(left: int, spills: bool) -> None:
    one = record(slot(0, submitted_at=NOW - SPILL), next_slot=SLOT_NUMBERS - left)
    draft = asked_of(one)
    assert created(draft) == ({"b": 1} if spills else {})
    assert slots(draft)[0].verdict is (Verdict.WITHDRAWN if spills else Verdict.OPEN)
    assert count_free_numbers(draft.requests[REQUEST]) == 1


def test_each_machine_is_reported_with_its_own_failure_and_what_has_none_with_the_last_of_its_request() -> None:
    failed = [slot(number, Verdict.FAILED, failure=why) for number, why in enumerate([STOCKOUT, BROKEN])]
    draft = asked(memory(record(*failed, count=3, deadline_at=NOW)), limits=limits())
    assert [slots(draft)[number].failure for number in (2, 3, 4)] == [BROKEN, STOCKOUT, BROKEN]


def test_an_open_machine_elsewhere_does_not_explain_a_full_window() -> None:
    """A window belongs to one pool and template. A machine of another template does not fill the window."""
    two = two_templates(pool("a", initial_window=2))
    pending = record(slot(0, request=OTHER), slot(1, request=OTHER), id_=OTHER, template="U")
    draft = asked(memory(pending, record(count=2)), snapshot(machine(0, request=OTHER)), limits=two)
    assert Counter(create.template for create in draft.creates) == {TEMPLATE: 2}


@pytest.mark.parametrize("cap", ["max_machines", "max_pending"])
def test_a_machine_of_an_unknown_template_may_be_of_any(cap: str) -> None:
    """If requests were recovered from the names of running machines, their templates are unknown. So their machines
    must count under the cap of each template."""
    nameless = record(slot(0, request=OTHER), slot(1, request=OTHER), id_=OTHER, template=NO_TEMPLATE, count=0)
    draft = asked(memory(nameless, record(count=9)), limits=limits(pool("a", **{cap: 4})))
    assert len(draft.creates) == 2
