"""Orphans: machines without a request. The loop deletes them slowly, after a time, and not while the brake holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from provisioner.model import (
    Brake,
    BrakeReason,
    Delete,
    DeleteReason,
    HfActivity,
    Intent,
    Machine,
    Memory,
    RequestStatus,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.names import OPERATOR_ACCOUNT, SLOT_NUMBERS, SLURM_ACCOUNT
from provisioner.planning.allocate.machine_requests import NO_NUMBERS
from provisioner.planning.cleanup.orphans import find_orphans, find_unlisted, open_unrecorded_slots
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from provisioner.planning.observe.reconciliation import reconcile
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
    closes_of,
    draft_of,
    giving_back,
    intent_of,
    limits,
    machine,
    memory,
    name,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
)

LIMITS = limits(
    pool("a"),
    pool("b", lag_seconds=30.0),
    orphan_grace=600.0,
    orphan_cap_per_hour=3,
    cancel_after_seconds=1800.0,
    retention_seconds=86400.0,
)
RIPE = NOW - 600.0
ORPHAN = name(0, OTHER)
DONE = RequestStatus.COMPLETE


def orphans(count: int = 1) -> list[Machine]:
    return [machine(number, request=OTHER) for number in range(count)]


def noted(count: int = 1, since: float = RIPE) -> dict[str, float]:
    return {name(number, OTHER): since for number in range(count)}


def kept(
    remembered: Memory, *observations: Snapshot, busy: Iterable[str] = (), activity: HfActivity | None = None
) -> Draft:
    """Return the draft after slots were reconciled with the observations and orphans were searched."""
    draft = draft_of(remembered, *observations, limits=LIMITS)
    reconcile(draft)
    draft.busy |= frozenset(busy)
    find_orphans(draft, activity or HfActivity())
    return draft


# --- orphans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "began", "busy", "deleted"),
    [
        pytest.param(None, SEEN, (), False, id="new: noted, not deleted"),
        pytest.param(RIPE + 1, SEEN, (), False, id="within the grace period: kept"),
        pytest.param(RIPE, SEEN, (), True, id="after the grace period: deleted"),
        pytest.param(RIPE, RIPE, (), False, id="after the grace period, by the same observation: kept"),
        pytest.param(RIPE, SEEN, ("a",), False, id="its pool is busy: kept"),
    ],
)
def test_an_orphan_goes_after_its_grace_period_when_seen_twice(
    since: float | None, began: float, busy: tuple[str, ...], deleted: bool
) -> None:
    remembered = memory(orphans={} if since is None else {ORPHAN: since})
    draft = kept(remembered, snapshot(*orphans(), began=began), snapshot(pool="b"), busy=busy)
    assert draft.deletes == ([Delete(ORPHAN, "a", DeleteReason.ORPHANED, "uid-0")] if deleted else [])
    assert draft.brake is None
    if since is None:
        assert draft.orphans.since == {ORPHAN: NOW}
        assert draft.due_at == NOW + 600.0


@pytest.mark.parametrize(
    ("recent", "deletes"),
    [
        pytest.param((), 3, id="none within the hour: the cap"),
        pytest.param((NOW - 3599,), 2, id="one within the hour: one less"),
        pytest.param((NOW - 3600,), 3, id="one an hour ago: no longer counts"),
        pytest.param((NOW - 10,) * 3, 0, id="the cap was used up: none"),
    ],
)
def test_orphans_are_deleted_slowly(recent: tuple[float, ...], deletes: int) -> None:
    remembered = memory(orphans=noted(5), orphan_deletes=recent)
    draft = kept(remembered, snapshot(*orphans(5)), snapshot(pool="b"))
    assert len(draft.deletes) == deletes
    assert len(draft.memory().orphans.deletes) == 3
    if recent == (NOW - 10,) * 3:
        assert draft.due_at == NOW - 10 + 3600


def test_an_orphan_that_stays_is_deleted_again_and_counts_again() -> None:
    first = kept(memory(orphans=noted()), snapshot(*orphans()), snapshot(pool="b"))
    again = RIPE + DELETE_AGAIN
    assert first.orphans.since == {ORPHAN: again}
    assert len(first.deletes) == 1
    assert kept(first.memory(), snapshot(*orphans()), snapshot(pool="b")).deletes == []


@pytest.mark.parametrize(
    ("observations", "remembered"),
    [
        pytest.param([snapshot(), snapshot(pool="b")], False, id="every pool seen, and it is nowhere: forgotten"),
        pytest.param([snapshot()], True, id="a pool is blind: remembered"),
        pytest.param([snapshot(*orphans()), snapshot(pool="b")], True, id="it is there: remembered"),
    ],
)
def test_what_is_remembered_of_an_orphan(observations: list[Snapshot], remembered: bool) -> None:
    assert kept(memory(orphans=noted(since=NOW - 5)), *observations).orphans.since == (
        noted(since=NOW - 5) if remembered else {}
    )


@pytest.mark.parametrize(
    ("remembered", "seen", "activity", "orphans"),
    [
        pytest.param(memory(record(running(0, Verdict.SUCCEEDED))), machine(0), {}, [], id="of a known slot: no"),
        pytest.param(memory(giving_back(ORPHAN)), machine(0, request=OTHER), {}, [], id="of an open return: no"),
        pytest.param(memory(giving_back(ORPHAN, ended=RequestStatus.COMPLETE_WITH_ERROR)), machine(0, request=OTHER),
                     {}, [ORPHAN], id="of an ended return: yes"),
        pytest.param(memory(orphans=noted(1, BEFORE)), machine(0, request=OTHER),
                     {"listed_at": {ORPHAN: NOW - 3600}}, [], id="HF lists it, whatever our files say: no"),
    ],
)  # fmt: skip
def test_what_is_an_orphan(remembered: Memory, seen: Machine, activity: dict[str, Any], orphans: list[str]) -> None:
    draft = kept(remembered, snapshot(seen), snapshot(pool="b"), activity=HfActivity(**activity))
    assert (list(draft.orphans.since), draft.deletes, draft.brake) == (orphans, [], None)


# --- the brake --------------------------------------------------------------------------------------------------------

LATCHED = Brake(BrakeReason.INTENT_LOST, BEFORE, "before")


def test_while_the_brake_holds_no_orphan_is_deleted_and_the_first_reason_stays() -> None:
    remembered = memory(orphans=noted(9), brake=LATCHED)
    draft = kept(remembered, snapshot(*orphans(9)), snapshot(pool="b"))
    assert draft.deletes == []
    assert draft.brake is LATCHED


@pytest.mark.parametrize(
    ("strange", "explained", "accepted", "latched"),
    [
        pytest.param(5, 0, (), False, id="five orphans: never suspicious"),
        pytest.param(6, 0, (), True, id="six of six"),
        pytest.param(6, 54, (), False, id="six of sixty: a tenth"),
        pytest.param(7, 60, (), True, id="seven of sixty-seven: more than a tenth"),
        pytest.param(7, 0, tuple(noted(7)), False, id="an operator has seen them all"),
    ],
)
def test_too_many_orphans_latch_the_brake(
    strange: int, explained: int, accepted: tuple[str, ...], latched: bool
) -> None:
    known = record(*(running(number, Verdict.SUCCEEDED) for number in range(explained)))
    observations = snapshot(*orphans(strange), *(machine(number) for number in range(explained))), snapshot(pool="b")
    draft = kept(memory(known, orphans=noted(strange), accepted=accepted), *observations)
    text = f"{strange} of {strange + explained} machines have no request."
    assert draft.brake == (Brake(BrakeReason.TOO_MANY_ORPHANS, NOW, text, "a") if latched else None)
    assert len(draft.deletes) == (0 if latched else 3)


@pytest.mark.parametrize(
    ("unseen", "there", "reason", "left"),
    [
        pytest.param(("a", "b"), 1, BrakeReason.MEMORY_LOST, (), id="a new memory, and a machine of ours runs"),
        pytest.param(("a", "b"), 0, None, (), id="a new memory, and nothing of ours runs"),
        pytest.param(("b",), 1, None, (), id="the pool was seen before: an orphan as any"),
        pytest.param(("a", "c"), 0, None, ("c",), id="a pool that is still blind is judged when it is seen"),
    ],
)
def test_a_new_memory_beside_machines_of_ours(
    unseen: tuple[str, ...], there: int, reason: BrakeReason | None, left: tuple[str, ...]
) -> None:
    draft = kept(memory(unseen=unseen), snapshot(*orphans(there)), snapshot(pool="b"))
    assert (draft.brake.reason if draft.brake else None) is reason
    assert draft.memory().places.unseen == left


@pytest.mark.parametrize(
    ("generation", "requests", "remembered", "reason"),
    [
        pytest.param(6, {}, memory(generation=7), BrakeReason.INTENT_OLDER, id="intent is older than one seen before"),
        pytest.param(7, {}, memory(record(slot()), generation=7), BrakeReason.REQUEST_LOST,
                     id="intent lacks a request that memory knows"),
        pytest.param(7, {}, memory(record(slot(0, Verdict.FAILED, is_gone=True), is_trimmed=True, ended=DONE),
                     generation=7),
                     None, id="intent lacks a request that was trimmed"),
        pytest.param(8, {}, memory(generation=7), None, id="intent is newer"),
    ],
)  # fmt: skip
def test_what_intent_says_of_the_files(
    generation: int, requests: dict[str, object], remembered: Memory, reason: BrakeReason | None
) -> None:
    older: Intent = intent_of(remembered, generation=generation, requests=requests)
    made = plan(remembered, snapshot(), snapshot(pool="b"), limits=LIMITS, intent=older)
    assert (made.memory.brake.reason if made.memory.brake else None) is reason


def adopted(remembered: Memory, number: int = 3) -> Draft:
    draft = draft_of(remembered, snapshot(machine(number)), limits=LIMITS)
    reconcile(draft)
    open_unrecorded_slots(draft)
    return draft


def test_a_machine_of_an_open_request_that_memory_does_not_know_is_adopted_and_latches_the_brake() -> None:
    draft = adopted(memory(record(count=5)))
    assert draft.brake is not None
    assert draft.brake.reason is BrakeReason.MEMORY_OLDER
    assert draft.unknown == {"a": []}
    taken = draft.requests[REQUEST].slots[3]
    assert (taken.verdict, taken.pool, taken.observed.was_seen, taken.submitted_at) == (Verdict.OPEN, "a", True, NOW)
    assert draft.requests[REQUEST].next_slot == 4


def test_an_adopted_machine_never_makes_an_earlier_name_new_again() -> None:
    assert adopted(memory(record(slot(6, Verdict.FAILED), count=5))).requests[REQUEST].next_slot == 7


def test_an_adopted_machine_of_the_last_number_leaves_none_for_another() -> None:
    kept = record(running(0), count=3)
    draft = adopted(memory(kept), SLOT_NUMBERS - 1)
    made = plan(draft.memory(), snapshot(machine(0), machine(SLOT_NUMBERS - 1)), limits=LIMITS)
    after = made.memory.requests[REQUEST]
    assert (made.creates, sorted(after.slots), after.slots[0].name) == ((), [0, SLOT_NUMBERS - 1], name(0))
    assert (after.ended, after.message) == (RequestStatus.COMPLETE_WITH_ERROR, f"other: {NO_NUMBERS.text}")


@pytest.mark.parametrize(
    "remembered",
    [
        pytest.param(memory(record(count=5, ended=DONE)), id="its request has ended"),
        pytest.param(memory(), id="its request is unknown"),
        pytest.param(memory(record(slot(3, Verdict.FAILED, pool="b"), count=5)), id="its slot is another pool's"),
    ],
)
def test_a_machine_that_is_not_adopted(remembered: Memory) -> None:
    draft = adopted(remembered)
    assert (draft.unknown, draft.brake) == ({"a": [name(3)]}, None)


# --- hosts that HF lists and that are unknown -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "observations", "fields", "lost"),
    [
        pytest.param({}, "ask", {}, False, id="once not seen: not yet"),
        pytest.param({ORPHAN: SEEN - 30}, "ask", {}, True, id="not seen twice, the lag apart: lost"),
        pytest.param({ORPHAN: SEEN - 29}, "ask", {}, False, id="not seen twice within the lag: not yet"),
        pytest.param({ORPHAN: SEEN - 30}, "blind", {}, False, id="a pool is blind: not yet"),
        pytest.param({ORPHAN: SEEN - 30}, "there", {}, False, id="it is there: not lost"),
        pytest.param({ORPHAN: SEEN - 30}, "ask", {"brake": LATCHED}, False, id="the brake holds: never"),
    ],
)
def test_a_host_of_our_shape_that_is_unknown(
    first: dict[str, float], observations: str, fields: dict[str, object], lost: bool
) -> None:
    seen = [snapshot(*(orphans() if observations == "there" else [])), snapshot(pool="b")][
        : 1 if observations == "blind" else 2
    ]
    draft = kept(memory(unknown=first, **fields), *seen, activity=HfActivity(inventory=frozenset({ORPHAN})))
    assert draft.memory().hosts.lost == ((ORPHAN,) if lost else ())


@pytest.mark.parametrize(
    ("host", "remembered", "foreign"),
    [
        pytest.param("some-other-host", memory(unknown={"some-other-host": BEFORE}), (), id="not of our shape"),
        pytest.param(name(0), memory(record(running(0, Verdict.LOST, is_gone=True)), unknown={name(0): BEFORE}), (),
                     id="of a slot we know"),
        pytest.param(ORPHAN, memory(giving_back(ORPHAN), unknown={ORPHAN: BEFORE}), (), id="HF has given it back"),
        pytest.param(ORPHAN, memory(unknown={ORPHAN: BEFORE}), (ORPHAN,), id="it is there under another owner"),
        pytest.param("", memory(unknown={ORPHAN: BEFORE}, lost=(ORPHAN,)), (), id="HF lists it no more"),
    ],
)  # fmt: skip
def test_a_host_that_is_not_reported_as_lost(host: str, remembered: Memory, foreign: tuple[str, ...]) -> None:
    observations = [snapshot(), snapshot(pool="b", foreign=frozenset(foreign))]
    after = kept(remembered, *observations, activity=HfActivity(inventory=frozenset({host} - {""}))).memory()
    assert (after.hosts.unknown, after.hosts.lost) == ({}, ())


# --- machines HF forgot -----------------------------------------------------------------------------------------------

HOUR = 3600.0
GIVEN = running(0, Verdict.SUCCEEDED, ran_at=NOW - 100 * HOUR)
"""A machine that HF has had for a long time."""


def used(*slots: Slot, **changes: object) -> Memory:
    """Return a memory with a request whose end HF has read."""
    return memory(record(*slots, ended=DONE, reported_at=NOW - 99 * HOUR), **changes)


def lists(last: float = NOW, **changes: object) -> HfActivity:
    """Return the activity of an HF that has listed hosts for days, but none of ours.

    ``last``: time of the last list.
    """
    return HfActivity(
        **(
            {"since": NOW - 90 * HOUR, "started_at": NOW - 90 * HOUR, "last_call_at": NOW, "last_list_at": last}
            | changes
        )
    )  # type: ignore[arg-type]


def forgotten(remembered: Memory, activity: HfActivity, *observations: Snapshot, after: float | None = None) -> Draft:
    draft = draft_of(remembered, *(observations or (snapshot(machine()), snapshot(pool="b"))), limits=limits(
        pool("a"), pool("b"), orphan_cap_per_hour=3, delete_unlisted_after=after
    ))  # fmt: skip
    find_unlisted(draft, activity)
    return draft


NAMED = used(GIVEN, unlisted={name(0): NOW - 30 * HOUR})
NEVER_LISTED = [
    (memory(record(GIVEN, ended=DONE, reported_at=NOW - 99 * HOUR, rc_account=account)), lists(), None)
    for account in (OPERATOR_ACCOUNT, SLURM_ACCOUNT)
]


def test_each_plan_notes_what_no_list_names() -> None:
    activity = lists(listed_at={name(0): NOW - HOUR})
    noted = plan(used(GIVEN), snapshot(machine()), snapshot(pool="b"), limits=limits(), activity=activity)
    assert noted.memory.hosts.unlisted == {name(0): NOW - HOUR}


@pytest.mark.parametrize(
    ("remembered", "activity", "since"),
    [
        pytest.param(used(GIVEN), lists(listed_at={name(0): NOW - 60}), None, id="listed a minute ago: no"),
        pytest.param(used(GIVEN), lists(listed_at={name(0): NOW - HOUR + 1}), None,
                     id="within the hour: lists come in parts"),
        pytest.param(used(GIVEN), lists(listed_at={name(0): NOW - HOUR}), NOW - HOUR,
                     id="not for an hour: noted since then"),
        pytest.param(used(GIVEN), lists(listed_at={name(0): NOW - 2 * HOUR}, last=NOW - 1.5 * HOUR), None,
                     id="no list came either: no"),
        pytest.param(used(GIVEN), lists(started_at=NOW - 60, since=NOW - 60), None,
                     id="after a restart: not yet known"),
        pytest.param(NAMED, lists(started_at=NOW - 60, since=NOW - 60), NOW - 30 * HOUR,
                     id="a note survives a restart"),
        pytest.param(NAMED, lists(listed_at={name(0): NOW}), None, id="named again: taken back"),
        pytest.param(NAMED, lists(since=NOW - 60), None, id="HF was away: it has its time anew"),
        pytest.param(NAMED, HfActivity(), NOW - 30 * HOUR, id="HF does not call: the note stays"),
        pytest.param(memory(record(GIVEN, ended=DONE)), lists(), None, id="HF has not heard of it"),
        pytest.param(*NEVER_LISTED[0], id="the machine of an operator"),
        pytest.param(*NEVER_LISTED[1], id="the machine of a node of Slurm"),
        pytest.param(used(running(0, Verdict.RETURNED)), lists(), None, id="it was returned"),
        pytest.param(used(running(0, Verdict.SUCCEEDED, ran_at=NOW - 60)), lists(), None, id="it is new"),
    ],
)  # fmt: skip
def test_a_machine_that_no_list_names_is_noted(remembered: Memory, activity: HfActivity, since: float | None) -> None:
    draft = forgotten(remembered, activity)
    assert draft.memory().hosts.unlisted == ({} if since is None else {name(0): since})
    assert closes_of(draft) == []


@pytest.mark.parametrize(
    ("after", "since", "activity", "brake", "observations", "deleted"),
    [
        pytest.param(None, 500, lists(), None, (), False, id="not configured: shown only"),
        pytest.param(48, 47, lists(), None, (), False, id="not for so long"),
        pytest.param(48, 48, lists(), None, (), True, id="for so long"),
        pytest.param(48, 48, lists(last=NOW - 60), None, (), False, id="by HF's own lists not"),
        pytest.param(48, 48, lists(since=NOW - HOUR + 1, started_at=NOW - HOUR + 1), None, (), False,
                     id="not confirmed since a restart"),
        pytest.param(48, 48, lists(), Brake(BrakeReason.MEMORY_LOST, NOW, ""), (), False, id="the brake holds"),
        pytest.param(48, 50, lists(), None, (snapshot(pool="b"),), False, id="its pool cannot be seen"),
    ],
)  # fmt: skip
def test_an_unlisted_machine_is_deleted_only_if_configured(
    after: int | None,
    since: int,
    activity: HfActivity,
    brake: Brake | None,
    observations: tuple[Snapshot, ...],
    deleted: bool,
) -> None:
    known = used(GIVEN, unlisted={name(0): NOW - since * HOUR}, brake=brake)
    draft = forgotten(known, activity, *observations, after=after and after * HOUR)
    slots = draft.memory().requests[REQUEST].slots
    expected = (Verdict.LOST, DeleteReason.ORPHANED) if deleted else (Verdict.SUCCEEDED, None)
    assert (slots[0].verdict, slots[0].deletion.reason, len(closes_of(draft))) == (*expected, deleted)


def test_unlisted_machines_are_deleted_as_slowly_as_orphans_and_in_numbers_only_when_an_operator_saw_them() -> None:
    many = [running(number, Verdict.SUCCEEDED, ran_at=NOW - 100 * HOUR) for number in range(8)]
    pool_status = {one.name: NOW - 50 * HOUR for one in many}
    observation = snapshot(*(machine(number) for number in range(8)))
    recorded = forgotten(used(*many, unlisted=pool_status), lists(), observation, after=48 * HOUR)
    assert recorded.brake is not None
    assert recorded.brake.reason is BrakeReason.TOO_MANY_ORPHANS
    assert closes_of(recorded) == []
    seen = forgotten(
        used(*many, unlisted=pool_status, accepted=tuple(pool_status)), lists(), observation, after=48 * HOUR
    )
    assert seen.brake is None
    assert len(closes_of(seen)) == 3, "the cap of an hour"
