"""What happens beside the requests: orphans and the brake, requests HF forgot, records that may go."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from provisioner.draft import Draft
from provisioner.housekeeping import (
    CANCELLED_MESSAGE,
    adopt,
    cancel_unpolled,
    find_orphans,
    note_told,
    trim,
)
from provisioner.model import (
    Brake,
    BrakeReason,
    Contact,
    Delete,
    DeleteReason,
    Intent,
    Machine,
    Memory,
    RequestStatus,
    ReturnRecord,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.reflect import reflect
from provisioner.returns import DELETE_AGAIN
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
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
    pool("a"), pool("b", lag=30.0), orphan_grace=600.0, orphan_cap_per_hour=3, cancel_after=1800.0, retention=86400.0
)
RIPE = NOW - 600.0
ORPHAN = name(0, OTHER)
DONE = RequestStatus.COMPLETE


def orphans(count: int = 1) -> list[Machine]:
    return [machine(number, request=OTHER) for number in range(count)]


def noted(count: int = 1, since: float = RIPE) -> dict[str, float]:
    return {name(number, OTHER): since for number in range(count)}


def kept(known: Memory, *looks: Snapshot, busy: Iterable[str] = (), contact: Contact | None = None) -> Draft:
    """Orphans looked for after the slots were brought in line with the looks."""
    draft = draft_of(known, *looks, limits=LIMITS)
    reflect(draft)
    find_orphans(draft, contact or Contact(), frozenset(busy))
    return draft


# --- orphans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "began", "busy", "deleted"),
    [
        pytest.param(None, SEEN, (), False, id="new: noted, not deleted"),
        pytest.param(RIPE + 1, SEEN, (), False, id="within the grace period: kept"),
        pytest.param(RIPE, SEEN, (), True, id="after the grace period: deleted"),
        pytest.param(RIPE, RIPE, (), False, id="after the grace period, by the same look: kept"),
        pytest.param(RIPE, SEEN, ("a",), False, id="its pool is busy: kept"),
    ],
)
def test_an_orphan_goes_after_its_grace_period_when_seen_twice(
    since: float | None, began: float, busy: tuple[str, ...], deleted: bool
) -> None:
    known = memory(orphans={} if since is None else {ORPHAN: since})
    draft = kept(known, snapshot(*orphans(), began=began), snapshot(pool="b"), busy=busy)
    assert draft.deletes == ([Delete(ORPHAN, "a", DeleteReason.ORPHANED, "uid-0")] if deleted else [])
    assert draft.brake is None
    if since is None:
        assert draft.orphans == {ORPHAN: NOW}
        assert draft.due == NOW + 600.0


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
    known = memory(orphans=noted(5), orphan_deletes=recent)
    draft = kept(known, snapshot(*orphans(5)), snapshot(pool="b"))
    assert len(draft.deletes) == deletes
    assert len(draft.memory().orphan_deletes) == 3
    if recent == (NOW - 10,) * 3:
        assert draft.due == NOW - 10 + 3600


def test_an_orphan_that_stays_is_deleted_again_and_counts_again() -> None:
    first = kept(memory(orphans=noted()), snapshot(*orphans()), snapshot(pool="b"))
    again = RIPE + DELETE_AGAIN
    assert first.orphans == {ORPHAN: again}
    assert len(first.deletes) == 1
    assert kept(first.memory(), snapshot(*orphans()), snapshot(pool="b")).deletes == []


@pytest.mark.parametrize(
    ("looks", "remembered"),
    [
        pytest.param([snapshot(), snapshot(pool="b")], False, id="every pool seen, and it is nowhere: forgotten"),
        pytest.param([snapshot()], True, id="a pool is blind: remembered"),
        pytest.param([snapshot(*orphans()), snapshot(pool="b")], True, id="it is there: remembered"),
    ],
)
def test_what_is_remembered_of_an_orphan(looks: list[Snapshot], remembered: bool) -> None:
    assert kept(memory(orphans=noted(since=NOW - 5)), *looks).orphans == (noted(since=NOW - 5) if remembered else {})


def test_a_machine_of_a_known_slot_is_no_orphan() -> None:
    draft = kept(memory(record(running(0, Verdict.SUCCEEDED))), snapshot(machine(0)), snapshot(pool="b"))
    assert draft.orphans == {}


@pytest.mark.parametrize(
    ("ended", "orphan"),
    [
        pytest.param(None, False, id="of an open return request: no"),
        pytest.param(RequestStatus.COMPLETE_WITH_ERROR, True, id="of an ended one: yes"),
    ],
)
def test_a_named_machine_is_an_orphan(ended: RequestStatus | None, orphan: bool) -> None:
    known = memory(giving_back(ORPHAN, ended=ended))
    assert (ORPHAN in kept(known, snapshot(*orphans()), snapshot(pool="b")).orphans) is orphan


# --- the brake --------------------------------------------------------------------------------------------------------

LATCHED = Brake(BrakeReason.INTENT_LOST, BEFORE, "before")


def test_while_the_brake_holds_no_orphan_is_deleted_and_the_first_reason_stays() -> None:
    known = memory(orphans=noted(9), brake=LATCHED)
    draft = kept(known, snapshot(*orphans(9)), snapshot(pool="b"))
    assert draft.deletes == []
    assert draft.brake is LATCHED


@pytest.mark.parametrize(
    ("strange", "explained", "latched"),
    [
        pytest.param(5, 0, False, id="five orphans: never suspicious"),
        pytest.param(6, 0, True, id="six of six"),
        pytest.param(6, 54, False, id="six of sixty: a tenth"),
        pytest.param(7, 60, True, id="seven of sixty-seven: more than a tenth"),
    ],
)
def test_too_many_orphans_latch_the_brake(strange: int, explained: int, latched: bool) -> None:
    known = memory(record(*(running(number, Verdict.SUCCEEDED) for number in range(explained))), orphans=noted(strange))
    draft = kept(
        known, snapshot(*orphans(strange), *(machine(number) for number in range(explained))), snapshot(pool="b")
    )
    assert draft.brake == (
        Brake(BrakeReason.TOO_MANY_ORPHANS, NOW, f"{strange} of {strange + explained} machines have no request.", "a")
        if latched
        else None
    )
    assert bool(draft.deletes) is not latched


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
    draft = kept(memory(unseen_pools=unseen), snapshot(*orphans(there)), snapshot(pool="b"))
    assert (draft.brake.reason if draft.brake else None) is reason
    assert draft.memory().unseen_pools == left


@pytest.mark.parametrize(
    ("generation", "requests", "known", "reason"),
    [
        pytest.param(6, {}, memory(generation=7), BrakeReason.INTENT_OLDER, id="intent is older than one seen before"),
        pytest.param(7, {}, memory(record(slot()), generation=7), BrakeReason.REQUEST_LOST,
                     id="intent lacks a request that memory knows"),
        pytest.param(7, {}, memory(record(slot(0, Verdict.FAILED, gone=True), trimmed=True, ended=DONE), generation=7),
                     None, id="intent lacks a request that was trimmed"),
        pytest.param(8, {}, memory(generation=7), None, id="intent is newer"),
    ],
)  # fmt: skip
def test_what_intent_says_of_the_files(
    generation: int, requests: dict[str, object], known: Memory, reason: BrakeReason | None
) -> None:
    older: Intent = intent_of(known, generation=generation, requests=requests)
    made = plan(known, snapshot(), snapshot(pool="b"), limits=LIMITS, intent=older)
    assert (made.memory.brake.reason if made.memory.brake else None) is reason


def test_a_machine_of_an_open_request_that_memory_does_not_know_is_adopted_and_latches_the_brake() -> None:
    draft = draft_of(memory(record(count=5)), snapshot(machine(3)), limits=LIMITS)
    reflect(draft)
    adopt(draft)
    assert draft.brake is not None
    assert draft.brake.reason is BrakeReason.MEMORY_OLDER
    assert draft.unknown == {"a": []}
    taken = draft.slot(REQUEST, 3)
    assert taken is not None
    assert (taken.verdict, taken.pool, taken.seen, taken.submitted) == (Verdict.OPEN, "a", True, NOW)
    assert draft.requests[REQUEST].next_slot == 4


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(memory(record(count=5, ended=DONE)), id="its request has ended"),
        pytest.param(memory(), id="its request is unknown"),
        pytest.param(memory(record(slot(3, Verdict.FAILED, pool="b"), count=5)), id="its slot is another pool's"),
    ],
)
def test_a_machine_that_is_not_adopted(known: Memory) -> None:
    draft = draft_of(known, snapshot(machine(3)), limits=LIMITS)
    reflect(draft)
    adopt(draft)
    assert draft.unknown == {"a": [name(3)]}
    assert draft.brake is None


# --- hosts that HF lists and nobody knows -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "looks", "known", "lost"),
    [
        pytest.param({}, "ask", {}, False, id="once not seen: not yet"),
        pytest.param({ORPHAN: SEEN - 30}, "ask", {}, True, id="not seen twice, the lag apart: lost"),
        pytest.param({ORPHAN: SEEN - 29}, "ask", {}, False, id="not seen twice within the lag: not yet"),
        pytest.param({ORPHAN: SEEN - 30}, "blind", {}, False, id="a pool is blind: not yet"),
        pytest.param({ORPHAN: SEEN - 30}, "there", {}, False, id="it is there: not lost"),
        pytest.param({ORPHAN: SEEN - 30}, "ask", {"brake": LATCHED}, False, id="the brake holds: never"),
    ],
)
def test_a_host_of_our_shape_that_nobody_knows(
    first: dict[str, float], looks: str, known: dict[str, object], lost: bool
) -> None:
    seen = [snapshot(*(orphans() if looks == "there" else [])), snapshot(pool="b")][: 1 if looks == "blind" else 2]
    draft = kept(memory(strangers=first, **known), *seen, contact=Contact(inventory=frozenset({ORPHAN})))
    assert draft.memory().lost_strangers == ((ORPHAN,) if lost else ())


@pytest.mark.parametrize(
    ("host", "known"),
    [
        pytest.param("some-other-host", memory(strangers={"some-other-host": BEFORE}), id="not of our shape"),
        pytest.param(name(0), memory(record(running(0, Verdict.LOST, gone=True)), strangers={name(0): BEFORE}),
                     id="of a slot we know"),
        pytest.param(ORPHAN, memory(giving_back(ORPHAN), strangers={ORPHAN: BEFORE}), id="HF has given it back"),
    ],
)  # fmt: skip
def test_a_host_that_is_no_lost_stranger(host: str, known: Memory) -> None:
    draft = kept(known, snapshot(), snapshot(pool="b"), contact=Contact(inventory=frozenset({host})))
    assert draft.memory().lost_strangers == ()
    assert draft.memory().strangers == {}


def test_a_lost_stranger_that_hf_no_longer_lists_is_forgotten() -> None:
    known = memory(strangers={ORPHAN: BEFORE}, lost_strangers=(ORPHAN,))
    after = kept(known, snapshot(), snapshot(pool="b")).memory()
    assert (after.strangers, after.lost_strangers) == ({}, ())


# --- requests HF forgot -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "contact", "cancelling"),
    [
        pytest.param({}, Contact(active=NOW), True, id="never polled while HF makes other calls: announced"),
        pytest.param({}, Contact(active=NOW - 7200), False, id="HF is silent altogether: nothing"),
        pytest.param({}, Contact({REQUEST: NOW - 1799}, active=NOW), False, id="polled within 30 minutes: nothing"),
        pytest.param({}, Contact({REQUEST: NOW - 1800}, active=NOW), True, id="polled 30 minutes ago: announced"),
        pytest.param({}, Contact(since=NOW - 1799, active=NOW), False, id="not noticed for so long ourselves: nothing"),
        pytest.param({"read": NOW - 1799}, Contact(active=NOW), False, id="a young request: nothing"),
        pytest.param({"ended": DONE}, Contact(active=NOW), True, id="ended, and HF has not heard: announced"),
        pytest.param({"ended": DONE, "told_at": BEFORE}, Contact(active=NOW), False, id="HF has heard: never"),
        pytest.param({"cancelling": True}, Contact({REQUEST: NOW}, active=NOW), False, id="polled since: taken back"),
    ],
)
def test_a_cancel_is_announced_first(changes: dict[str, object], contact: Contact, cancelling: bool) -> None:
    old = record(running(0), slot(1), **({"read": NOW - 7200} | changes))
    draft = draft_of(memory(old), limits=LIMITS)
    cancel_unpolled(draft, contact)
    assert draft.requests[REQUEST].cancelling is cancelling
    assert draft.closes == []


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        pytest.param(slot(), Verdict.CANCELLED, id="open"),
        pytest.param(running(), Verdict.CANCELLED, id="running"),
        pytest.param(running(0, Verdict.SUCCEEDED), Verdict.RETURNED, id="succeeded"),
        pytest.param(slot(0, Verdict.FAILED), Verdict.FAILED, id="failed"),
        pytest.param(running(0, Verdict.LOST), Verdict.LOST, id="lost"),
    ],
)
def test_an_announced_cancel_closes_what_is_open_or_succeeded(one: Slot, verdict: Verdict) -> None:
    draft = draft_of(memory(record(one, read=NOW - 7200, cancelling=True)), limits=LIMITS)
    cancel_unpolled(draft, Contact(active=NOW))
    after = draft.record(REQUEST)
    assert (after.ended, after.message, after.cancelling) == (
        RequestStatus.COMPLETE_WITH_ERROR, CANCELLED_MESSAGE, False
    )  # fmt: skip
    assert after.slots[0].verdict is verdict
    if verdict in (Verdict.CANCELLED, Verdict.RETURNED):
        assert after.slots[0].delete is DeleteReason.CANCELLED


@pytest.mark.parametrize(
    ("ended", "contact", "told"),
    [
        pytest.param(DONE, Contact(told=frozenset({REQUEST})), True, id="a script printed the terminal answer"),
        pytest.param(DONE, Contact(inventory=frozenset({name(0)})), True, id="HF lists a machine of it"),
        pytest.param(DONE, Contact(inventory=frozenset({ORPHAN})), False, id="HF lists another machine"),
        pytest.param(None, Contact(told=frozenset({REQUEST})), False, id="there is no terminal answer"),
    ],
)
def test_whether_hf_knows_the_terminal_answer(ended: RequestStatus | None, contact: Contact, told: bool) -> None:
    draft = draft_of(memory(record(running(0), ended=ended)), limits=LIMITS)
    note_told(draft, contact)
    assert draft.requests[REQUEST].told_at == (NOW if told else None)


def test_hf_knows_the_end_of_a_return_when_a_script_printed_it() -> None:
    back = giving_back(name(0), ended=DONE)
    draft = draft_of(memory(back), limits=LIMITS)
    note_told(draft, Contact(inventory=frozenset({name(0)})))
    assert draft.returns[back.id].told_at is None
    note_told(draft, Contact(told=frozenset({back.id})))
    assert draft.returns[back.id].told_at == NOW


# --- records that may go ----------------------------------------------------------------------------------------------

LONG_AGO = NOW - 86400.0
BYGONE = running(0, Verdict.RETURNED, gone=True)


@pytest.mark.parametrize(
    ("one", "changes", "contact", "goes"),
    [
        pytest.param(BYGONE, {"told_at": LONG_AGO}, Contact(), True, id="told long ago, nothing left: it goes"),
        pytest.param(BYGONE, {"told_at": LONG_AGO + 1}, Contact(), False, id="told within the retention: stays"),
        pytest.param(BYGONE, {}, Contact(), False, id="HF has not heard: stays"),
        pytest.param(running(0, Verdict.RETURNED), {"told_at": LONG_AGO}, Contact(), False, id="a machine left: stays"),
        pytest.param(running(0, Verdict.SUCCEEDED), {"told_at": LONG_AGO}, Contact(), False, id="in use: stays"),
        pytest.param(BYGONE, {"told_at": LONG_AGO}, Contact(inventory=frozenset({name(0)})), False,
                     id="HF lists its machine: stays"),
        pytest.param(BYGONE, {"message": CANCELLED_MESSAGE, "ended_at": LONG_AGO}, Contact(), True,
                     id="cancelled long ago, unheard: it goes"),
    ],
)  # fmt: skip
def test_when_a_request_leaves_the_files(one: Slot, changes: dict[str, object], contact: Contact, goes: bool) -> None:
    known = memory(record(one, ended=DONE, **changes))
    draft = draft_of(known, limits=LIMITS)
    trim(draft, intent_of(known), contact)
    assert draft.forget == ([REQUEST] if goes else [])
    assert draft.requests[REQUEST].trimmed is goes


def test_a_request_leaves_in_three_steps() -> None:
    known = memory(record(BYGONE, ended=DONE, told_at=LONG_AGO))
    marked = draft_of(known, limits=LIMITS)
    trim(marked, intent_of(known), Contact())
    assert (marked.requests[REQUEST].trimmed, marked.forget) == (True, [REQUEST])
    recorded = marked.memory()
    again = draft_of(recorded, limits=LIMITS)
    trim(again, intent_of(known), Contact())
    assert (again.memory() is recorded, again.forget) == (True, [REQUEST])
    last = draft_of(recorded, limits=LIMITS)
    trim(last, intent_of(memory()), Contact())
    assert (last.memory().requests, last.forget) == ({}, [])


@pytest.mark.parametrize(
    ("back", "goes"),
    [
        pytest.param(giving_back(name(0), ended=DONE, told_at=LONG_AGO), True, id="told long ago"),
        pytest.param(giving_back(name(0), ended=DONE, told_at=LONG_AGO + 1), False, id="told within the retention"),
        pytest.param(giving_back(name(0), ended=DONE), False, id="HF has not heard"),
        pytest.param(giving_back(name(0)), False, id="still open"),
    ],
)
def test_when_a_return_request_leaves_the_files(back: ReturnRecord, goes: bool) -> None:
    known = memory(back)
    draft = draft_of(known, limits=LIMITS)
    trim(draft, intent_of(known), Contact())
    assert draft.forget == ([back.id] if goes else [])
    if goes:
        last = draft_of(draft.memory(), limits=LIMITS)
        trim(last, intent_of(memory()), Contact())
        assert last.memory().returns == {}


def test_a_request_stays_as_long_as_a_return_request_names_its_machine() -> None:
    known = memory(record(BYGONE, ended=DONE, told_at=LONG_AGO), giving_back(name(0), ended=DONE, told_at=NOW))
    draft = draft_of(known, limits=LIMITS)
    trim(draft, intent_of(known), Contact())
    assert draft.forget == []
    assert draft.due == NOW + LIMITS.retention
