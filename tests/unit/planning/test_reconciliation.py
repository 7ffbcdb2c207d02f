"""Effects of a complete snapshot on slots."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from provisioner.model import (
    DESIRED,
    DeleteReason,
    ErrorClass,
    Failure,
    Fingerprint,
    Limits,
    LossCause,
    Machine,
    MachineEnd,
    Memory,
    Notice,
    Phase,
    RequestStatus,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.slots import count_missing
from provisioner.planning.observe.absence import LATE_CREATE, VANISHED
from provisioner.planning.observe.reconciliation import ENDED, REPLACED, STRAYED, reconcile
from tests.support.parts import alter
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    REQUEST,
    SEEN,
    STOCKOUT,
    TEMPLATE,
    closes_of,
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
    unsent,
)

LIMITS = limits(pool("a", early_loss_seconds=0.0), pool("b", early_loss_seconds=0.0))
"""Limits without early losses, which have tests of their own."""

SUCCEEDED = running(0, Verdict.SUCCEEDED)
WAITS, STOPS, DEAD = (machine(phase=phase) for phase in (Phase.PENDING, Phase.STOPPING, Phase.GONE))
ANOTHER = machine(fingerprint=Fingerprint(uid="x"))
BROKE = replace(WAITS, failure=BROKEN)


def drafted(remembered: Memory, observation: Snapshot, limits: Limits = LIMITS) -> Draft:
    draft = draft_of(remembered, observation, limits=limits, now=max(NOW, observation.began_at + 1))
    reconcile(draft)
    return draft


def reflected(one: Slot, *observations: Snapshot, limits: Limits = LIMITS) -> Slot:
    """Return the slot after the observations were applied one by one."""
    remembered = memory(record(one))
    for observation in observations:
        remembered = drafted(remembered, observation, limits).memory()
    return remembered.requests[REQUEST].slots[one.number]


# --- a machine that is there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "seen", "verdict", "reason"),
    [
        pytest.param(slot(), machine(phase=Phase.SUBMITTED), Verdict.OPEN, None, id="submitted: it may come"),
        pytest.param(slot(), WAITS, Verdict.OPEN, None, id="pending: it may come"),
        pytest.param(slot(), machine(), Verdict.OPEN, None, id="running: open until its request ends"),
        pytest.param(slot(), DEAD, Verdict.FAILED, DeleteReason.FAILED, id="dead: failed"),
        pytest.param(slot(), STOPS, Verdict.FAILED, DeleteReason.FAILED, id="stopping: failed"),
        pytest.param(running(), DEAD, Verdict.FAILED, DeleteReason.FAILED, id="ran, dead: failed"),
        pytest.param(running(), STOPS, Verdict.FAILED, DeleteReason.FAILED, id="ran, stopping: failed"),
        pytest.param(running(), ANOTHER, Verdict.FAILED, DeleteReason.FAILED, id="another one of its name: failed"),
        pytest.param(running(), WAITS, Verdict.OPEN, None, id="ran, not ready for a moment: nothing"),
        pytest.param(SUCCEEDED, machine(), Verdict.SUCCEEDED, None, id="succeeded, running: nothing"),
        pytest.param(SUCCEEDED, WAITS, Verdict.SUCCEEDED, None, id="succeeded, not ready for a moment: nothing"),
        pytest.param(SUCCEEDED, STOPS, Verdict.SUCCEEDED, None, id="succeeded, stopping: not lost before it is gone"),
        pytest.param(SUCCEEDED, DEAD, Verdict.LOST, DeleteReason.LOST, id="succeeded, dead: its leftovers are deleted"),
        pytest.param(SUCCEEDED, ANOTHER, Verdict.LOST, DeleteReason.LOST, id="succeeded, another of its name: lost"),
        pytest.param(slot(0, Verdict.WITHDRAWN, delete=DeleteReason.WITHDRAWN), machine(), Verdict.WITHDRAWN,
                     DeleteReason.WITHDRAWN, id="withdrawn, yet running: never reopened"),
        pytest.param(unsent(0, Verdict.FAILED, delete=None), machine(), Verdict.FAILED, DeleteReason.FAILED,
                     id="closed without a reason to delete, yet there: gets one"),
        pytest.param(running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, is_gone=True), machine(),
                     Verdict.RETURNED, DeleteReason.RETURNED, id="thought gone, and runs as before: there"),
        pytest.param(alter(SUCCEEDED, is_set_aside=True), DEAD, Verdict.SUCCEEDED, None, id="set aside: left alone"),
    ],
)  # fmt: skip
def test_a_machine_that_is_there(before: Slot, seen: Machine, verdict: Verdict, reason: DeleteReason | None) -> None:
    after = reflected(before, snapshot(seen))
    assert (after.verdict, after.deletion.reason) == (verdict, reason)
    assert not after.deletion.is_gone


def test_a_machine_that_runs_is_remembered_with_what_hf_needs() -> None:
    seen = machine(7, public_ip="198.51.100.7")
    after = reflected(slot(7), snapshot(seen))
    assert (after.ran_at, after.observed.ip, after.observed.public_ip, after.observed.launched) == (
        NOW,
        seen.ip,
        "198.51.100.7",
        seen.launched,
    )
    assert after.observed.fingerprint == seen.fingerprint


def test_what_hf_was_reported_of_a_machine_that_runs_is_never_reported_differently() -> None:
    more = Fingerprint(uid="uid-0", started="1")
    later = machine(ip="10.9.9.9", public_ip="198.51.100.9", launched=1, fingerprint=more)
    assert reflected(running(), snapshot(later)).observed.fingerprint == more
    after = reflected(running(), snapshot(later))
    assert (after.observed.ip, after.observed.public_ip, after.observed.launched) == (
        "10.0.0.0",
        "",
        machine().launched,
    )


@pytest.mark.parametrize(
    ("before", "seen", "failure"),
    [
        pytest.param(slot(), [BROKE], BROKEN, id="it waits for a reason"),
        pytest.param(slot(), [BROKE, machine()], None, id="it runs"),
        pytest.param(slot(), [BROKE, WAITS], None, id="its place says so no longer"),
        pytest.param(slot(), [machine(failure=BROKEN)], None, id="it runs, whatever its place still says"),
        pytest.param(
            slot(was_seen=True, failure=STOCKOUT), [replace(DEAD, failure=BROKEN)], BROKEN, id="the last reason"
        ),
    ],
)
def test_why_a_machine_does_not_run(before: Slot, seen: list[Machine], failure: Failure | None) -> None:
    observations = [snapshot(one, began=SEEN + at) for at, one in enumerate(seen)]
    assert reflected(before, *observations).failure == failure


def test_a_machine_of_a_slot_thought_unsent_counts_as_submitted() -> None:
    after = reflected(unsent(), snapshot(machine(phase=Phase.PENDING)))
    assert (after.submitted_at, after.observed.was_seen, after.observed.is_accepted) == (BEFORE, True, True)


@pytest.mark.parametrize("phase", [Phase.GONE, Phase.STOPPING])
def test_a_machine_that_ended_under_a_slot_thought_unsent_is_still_there_and_its_slot_is_replaced(phase: Phase) -> None:
    after = reflected(unsent(), snapshot(machine(phase=phase)))
    assert (after.verdict, after.deletion.reason, after.deletion.is_gone) == (
        Verdict.FAILED,
        DeleteReason.FAILED,
        False,
    )
    assert count_missing(record(after)) == 1


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        pytest.param(Notice(LossCause.PREEMPTED, NOW + 40), Notice(LossCause.PREEMPTED, NOW + 30), id="later: no news"),
        pytest.param(Notice(LossCause.PREEMPTED, NOW + 20), Notice(LossCause.PREEMPTED, NOW + 20), id="sooner"),
        pytest.param(Notice(LossCause.DELETED, NOW + 40), Notice(LossCause.DELETED, NOW + 40), id="of another kind"),
        pytest.param(None, None, id="withdrawn"),
    ],
)
def test_an_announced_end_does_not_move_to_later(seen: Notice | None, kept: Notice | None) -> None:
    """The announced end of a machine may become earlier but not later. A restarted loop counts the grace period from
    its own first observation, and so gets a later end than the recorded one."""
    noticed = reflected(SUCCEEDED, snapshot(machine(notice=Notice(LossCause.PREEMPTED, NOW + 30))))
    assert noticed.observed.notice == Notice(LossCause.PREEMPTED, NOW + 30)
    assert reflected(noticed, snapshot(machine(notice=seen))).observed.notice == kept


@pytest.mark.parametrize(
    ("before", "seen", "same"),
    [
        pytest.param(Fingerprint(uid="1"), Fingerprint(uid="1", ip="10.0.0.1"), True, id="a value that appears"),
        pytest.param(
            Fingerprint(uid="1", ip="10.0.0.1"), Fingerprint(uid="1"), True, id="a value that is not reported"
        ),
        pytest.param(Fingerprint(uid="1"), Fingerprint(uid="2"), False, id="another uid"),
        pytest.param(Fingerprint(created="1"), Fingerprint(created="2"), False, id="another creation"),
        pytest.param(Fingerprint(started="1"), Fingerprint(started="2"), False, id="another start"),
        pytest.param(Fingerprint(ip="1"), Fingerprint(ip="2"), False, id="another address"),
    ],
)
def test_the_same_machine_or_another_of_its_name(before: Fingerprint, seen: Fingerprint, same: bool) -> None:
    after = reflected(running(0, Verdict.SUCCEEDED, fingerprint=before), snapshot(machine(fingerprint=seen)))
    assert (after.verdict is Verdict.SUCCEEDED) is same
    assert (after.failure == REPLACED) is not same


def test_what_comes_before_a_machine_runs_may_be_one_attempt_after_the_other() -> None:
    attempts = [machine(phase=Phase.PENDING, fingerprint=Fingerprint(uid=uid)) for uid in ("1", "", "2")]
    observations = [snapshot(attempt, began=SEEN + at) for at, attempt in enumerate(attempts)]
    trying = reflected(slot(), *observations)
    assert (trying.verdict, trying.observed.fingerprint) == (Verdict.OPEN, Fingerprint(uid="2"))
    ran = reflected(trying, snapshot(machine(fingerprint=Fingerprint(uid="3", ip="10.0.0.3")), began=SEEN + 5))
    assert (ran.ran_at is not None, ran.observed.fingerprint) == (True, Fingerprint(uid="3", ip="10.0.0.3"))
    again = reflected(ran, snapshot(machine(fingerprint=Fingerprint(uid="4")), began=SEEN + 6))
    assert again.failure == REPLACED


def test_a_value_once_known_is_compared_even_after_an_observation_without_it() -> None:
    succeeded = running(0, Verdict.SUCCEEDED, fingerprint=Fingerprint(uid="1", ip="10.0.0.1"))
    without = snapshot(machine(fingerprint=Fingerprint(uid="1")))
    moved = snapshot(machine(fingerprint=Fingerprint(uid="1", ip="10.0.0.2")), began=SEEN + 5)
    assert reflected(succeeded, without, moved).verdict is Verdict.LOST


@pytest.mark.parametrize(
    ("seen", "failure", "cause"),
    [
        pytest.param(DEAD, ENDED, LossCause.UNKNOWN, id="nothing known"),
        pytest.param(replace(DEAD, failure=BROKEN, cause=LossCause.EVICTED), BROKEN, LossCause.EVICTED,
                     id="the place's own words and cause"),
        pytest.param(replace(ANOTHER, cause=LossCause.NODE), REPLACED, LossCause.NODE, id="another of its name"),
    ],
)  # fmt: skip
def test_why_a_machine_ended(seen: Machine, failure: Failure, cause: LossCause) -> None:
    after = reflected(SUCCEEDED, snapshot(seen))
    assert (after.failure, after.observed.cause, after.deletion.closed_at) == (failure, cause, NOW)


@pytest.mark.parametrize("cause", [None, LossCause.PREEMPTED])
def test_why_a_machine_stopped_before_its_request_ended(cause: LossCause | None) -> None:
    after = reflected(running(), snapshot(machine(phase=Phase.STOPPING, cause=cause)))
    assert (after.failure, after.observed.cause) == (ENDED, cause or LossCause.DELETED)


@pytest.mark.parametrize("last", [[], [machine(phase=Phase.STOPPING)]], ids=["and gone", "and stops on, untold why"])
def test_the_cause_reported_while_it_stopped_is_the_cause_of_its_loss(last: list[Machine]) -> None:
    stops = snapshot(machine(phase=Phase.STOPPING, cause=LossCause.PREEMPTED))
    empty = [snapshot(began=SEEN + seconds) for seconds in (5, 10)]
    after = reflected(running(0, Verdict.SUCCEEDED), stops, snapshot(*last, began=SEEN + 2), *empty)
    assert (after.verdict, after.observed.cause) == (Verdict.LOST, LossCause.PREEMPTED)


# --- absence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "lag", "observations", "verdict", "gone"),
    [
        pytest.param(SUCCEEDED, 0, [0], Verdict.SUCCEEDED, False, id="one observation without it proves nothing"),
        pytest.param(SUCCEEDED, 0, [0, 0], Verdict.SUCCEEDED, False, id="the same observation twice counts once"),
        pytest.param(SUCCEEDED, 0, [0, 1], Verdict.LOST, True, id="two observations prove it"),
        pytest.param(SUCCEEDED, 30, [0, 29], Verdict.SUCCEEDED, False, id="two observations within the lag do not"),
        pytest.param(SUCCEEDED, 30, [0, 30], Verdict.LOST, True, id="two observations the lag apart do"),
        pytest.param(SUCCEEDED, 30, [0, 15, 30], Verdict.LOST, True, id="an observation between changes nothing"),
        pytest.param(running(), 0, [0, 1], Verdict.FAILED, True, id="before the terminal answer it failed"),
        pytest.param(slot(), 0, [0, 1, 600], Verdict.OPEN, False, id="accepted and never seen: pending"),
        pytest.param(slot(0, was_seen=True), 0, [0, 1], Verdict.FAILED, True, id="seen pending, then vanished"),
        pytest.param(slot(0, Verdict.FAILED), 0, [0], Verdict.FAILED, False, id="closed: not yet known to be gone"),
        pytest.param(slot(0, Verdict.FAILED), 0, [0, 1], Verdict.FAILED, True, id="closed: gone"),
        pytest.param(alter(SUCCEEDED, is_set_aside=True), 0, [0, 1], Verdict.SUCCEEDED, False,
                     id="set aside: left alone"),
    ],
)  # fmt: skip
def test_a_machine_that_is_not_there(
    before: Slot, lag: float, observations: list[float], verdict: Verdict, gone: bool
) -> None:
    empty = (snapshot(began=SEEN + at) for at in observations)
    after = reflected(before, *empty, limits=limits(pool("a", lag_seconds=lag, early_loss_seconds=0.0)))
    assert (after.verdict, after.deletion.is_gone) == (verdict, gone)
    assert (after.failure == VANISHED) is (before.verdict is not after.verdict)


@pytest.mark.parametrize(
    ("before", "counts_from"),
    [
        pytest.param(slot(0, Verdict.RETURNED, closed_at=SEEN), SEEN, id="a close"),
        pytest.param(slot(0, Verdict.FAILED, is_accepted=False, submitted_at=SEEN, closed_at=SEEN), SEEN + LATE_CREATE,
                     id="a create without a good answer: it may still be under way"),
        pytest.param(slot(0, Verdict.FAILED, submitted_at=SEEN, closed_at=BEFORE), SEEN, id="an accepted create"),
    ],
)  # fmt: skip
def test_only_observations_begun_after_the_fact_count(before: Slot, counts_from: float) -> None:
    early = [snapshot(began=counts_from - 1), snapshot(began=counts_from)]
    assert not reflected(before, *early).deletion.is_gone
    assert reflected(before, *early).observed.absent_since is None
    late = [snapshot(began=counts_from + 1), snapshot(began=counts_from + 2)]
    assert reflected(before, *early, *late).deletion.is_gone


@pytest.mark.parametrize(
    ("before", "said", "cause"),
    [
        pytest.param(SUCCEEDED, LossCause.NODE, LossCause.NODE, id="lost: by the place's last words"),
        pytest.param(alter(SUCCEEDED, cause=LossCause.UNKNOWN), LossCause.NODE, LossCause.NODE,
                     id="better than what was seen"),
        pytest.param(alter(SUCCEEDED, cause=LossCause.PREEMPTED), LossCause.UNKNOWN, LossCause.PREEMPTED,
                     id="what was seen is better than no cause"),
        pytest.param(running(), LossCause.NODE, LossCause.NODE, id="failed before it was reported: the same"),
        pytest.param(running(0, Verdict.RETURNED), LossCause.NODE, None, id="we deleted it ourselves: no loss"),
    ],
)  # fmt: skip
def test_why_a_machine_ended_that_no_observation_saw_ending(
    before: Slot, said: LossCause, cause: LossCause | None
) -> None:
    after = reflected(before, snapshot(ends={name(0): MachineEnd(said)}), snapshot(began=SEEN + 1))
    assert after.observed.cause is cause


EXIT_CODE = Failure(ErrorClass.OTHER, "exit code 3")


@pytest.mark.parametrize(
    ("before", "end", "verdict"),
    [
        pytest.param(slot(), MachineEnd(LossCause.DELETED), Verdict.FAILED, id="it came and went between snapshots"),
        pytest.param(slot(is_accepted=False, submitted_at=SEEN), MachineEnd(LossCause.EXITED, EXIT_CODE),
                     Verdict.FAILED, id="its create was not answered"),
        pytest.param(running(), MachineEnd(LossCause.EXITED, EXIT_CODE), Verdict.FAILED, id="it ran"),
        pytest.param(SUCCEEDED, MachineEnd(LossCause.EXITED, EXIT_CODE), Verdict.LOST, id="HF has it"),
        pytest.param(SUCCEEDED, MachineEnd(failure=EXIT_CODE), Verdict.LOST, id="words without a cause"),
        pytest.param(SUCCEEDED, MachineEnd(), Verdict.SUCCEEDED, id="no cause and no words prove nothing"),
        pytest.param(running(0, Verdict.RETURNED), MachineEnd(LossCause.DELETED), Verdict.RETURNED, id="returned"),
    ],
)  # fmt: skip
def test_an_end_that_the_place_reports_proves_at_once_that_the_machine_is_gone(
    before: Slot, end: MachineEnd, verdict: Verdict
) -> None:
    lagging = limits(pool("a", lag_seconds=30.0, early_loss_seconds=0.0))
    unasked = snapshot(began=SEEN + 1, asked=frozenset(), ends={name(0): end})
    after = reflected(before, unasked, limits=lagging)
    assert (after.verdict, after.deletion.is_gone) == (verdict, end.is_proven)
    if verdict in (Verdict.FAILED, Verdict.LOST):
        assert (after.failure, after.observed.cause) == (end.failure or VANISHED, end.cause)


def test_a_machine_that_is_there_has_not_ended() -> None:
    seen = snapshot(machine(), ends={name(0): MachineEnd(LossCause.EXITED, EXIT_CODE)})
    assert reflected(SUCCEEDED, seen).verdict is Verdict.SUCCEEDED


def test_why_a_closed_slots_machine_does_not_go_is_what_its_place_said_last() -> None:
    closed = running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, hindrance=STOCKOUT)
    other = Failure(ErrorClass.OTHER, "it waits for its finalizers: example.com/a")
    observations = [snapshot(machine(phase=Phase.STOPPING)), snapshot(machine(phase=Phase.STOPPING, hindrance=other))]
    assert reflected(closed, observations[0]).deletion.hindrance == STOCKOUT
    assert reflected(closed, observations[1]).deletion.hindrance == other


def test_a_machine_that_reappears_was_never_absent() -> None:
    observations = [snapshot(), snapshot(machine(), began=SEEN + 1), snapshot(began=SEEN + 2)]
    after = reflected(SUCCEEDED, *observations)
    assert (after.verdict, after.observed.absent_since) == (Verdict.SUCCEEDED, SEEN + 2)


def test_what_appears_under_a_name_that_was_gone_is_deleted_and_proven_absent_anew() -> None:
    late = machine(fingerprint=Fingerprint(uid="late"))
    closed = running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, is_gone=True, absent_since=BEFORE)
    after = reflected(closed, snapshot(late))
    assert (after.verdict, after.deletion.is_gone, after.observed.absent_since, after.deletion.reason) == (
        Verdict.RETURNED, False, None, DeleteReason.RETURNED
    )  # fmt: skip
    assert not reflected(closed, snapshot(late), snapshot(began=SEEN + 1)).deletion.is_gone
    assert reflected(closed, snapshot(late), snapshot(began=SEEN + 1), snapshot(began=SEEN + 2)).deletion.is_gone


@pytest.mark.parametrize(
    ("remembered", "observation"),
    [
        pytest.param(memory(record(SUCCEEDED)), snapshot(pool="b"), id="its pool was not seen"),
        pytest.param(memory(record(running(0, Verdict.RETURNED, is_gone=True, absent_since=BEFORE))), snapshot(),
                     id="it is known to be gone"),
        pytest.param(memory(record(SUCCEEDED, running(1))), snapshot(machine(0), machine(1)), id="it runs as before"),
    ],
)  # fmt: skip
def test_what_is_no_news_changes_nothing(remembered: Memory, observation: Snapshot) -> None:
    draft = drafted(remembered, observation)
    assert draft.memory() is remembered
    assert not any(draft.unknown.values())


def test_a_pool_that_was_not_seen_hides_no_machine_in_another() -> None:
    draft = drafted(memory(record(running(0, pool="b"), slot(1))), snapshot(machine(1)))
    assert draft.requests[REQUEST].slots[1].ran_at == NOW


# --- what no slot explains --------------------------------------------------------------------------------------------


def test_a_machine_without_a_slot_in_its_pool_is_listed() -> None:
    assert drafted(memory(record(running(0))), snapshot(machine(0), machine(1))).unknown == {"a": [name(1)]}
    assert drafted(memory(record(running(0, pool="b"))), snapshot(machine(0))).unknown == {"a": [name(0)]}


# --- what it teaches about the pool -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "seen", "ran", "failed"),
    [
        pytest.param(slot(), machine(), 1, 0, id="it runs for the first time: a success"),
        pytest.param(running(), machine(), 0, 0, id="it runs on: nothing new"),
        pytest.param(slot(), DEAD, 0, 1, id="it died before it ran: a failure"),
        pytest.param(running(), DEAD, 0, 0, id="it died after it ran: not the boot's fault"),
        pytest.param(SUCCEEDED, DEAD, 0, 0, id="it was lost: not the boot's fault"),
    ],
)
def test_what_an_observation_teaches(before: Slot, seen: Machine, ran: int, failed: int) -> None:
    known_window = drafted(memory(record(before)), snapshot(seen)).window("a", TEMPLATE)
    assert (known_window.ran, known_window.failed) == (ran, failed)


BACKING_OFF = Window(window=10, level=1, is_probing=True, blocked_at=BEFORE + 10, failure=BROKEN, is_boot_failure=True)


@pytest.mark.parametrize(
    ("opened", "submitted", "ended"),
    [
        pytest.param(BEFORE, [BEFORE, BEFORE + 20], True, id="one of those that run was asked for since"),
        pytest.param(BEFORE, [BEFORE, BEFORE + 1], False, id="all were asked for before it"),
        pytest.param(BEFORE + 20, [None], True, id="when it was asked for is not known: since it was opened"),
    ],
)
def test_a_machine_that_runs_ends_a_backoff_that_began_before_it_was_asked_for(
    opened: float, submitted: list[float | None], ended: bool
) -> None:
    asked = [slot(number, opened_at=opened, submitted_at=when) for number, when in enumerate(submitted)]
    remembered = memory(record(*asked), windows={("a", TEMPLATE): BACKING_OFF})
    draft = drafted(remembered, snapshot(*map(machine, range(len(asked)))))
    assert (draft.window("a", TEMPLATE).level == 0) is ended


@pytest.mark.parametrize(("submitted", "level"), [(BEFORE, 1), (BEFORE + 20, 2)], ids=["before", "since"])
def test_a_machine_that_failed_deepens_a_backoff_only_if_it_was_asked_for_since_it_began(
    submitted: float, level: int
) -> None:
    remembered = memory(record(slot(submitted_at=submitted)), windows={("a", TEMPLATE): BACKING_OFF})
    assert drafted(remembered, snapshot(DEAD)).window("a", TEMPLATE).level == level


def test_a_terminal_answer_outlives_the_machine() -> None:
    draft = drafted(memory(record(SUCCEEDED, ended=RequestStatus.COMPLETE)), snapshot(DEAD))
    assert draft.memory().requests[REQUEST].ended is RequestStatus.COMPLETE
    assert [close.slot.verdict for close in closes_of(draft)] == [Verdict.LOST]


# --- a machine that stands without what makes it ours -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "verdict", "failure"),
    [
        pytest.param(slot(), Verdict.FAILED, STRAYED, id="made so: it failed"),
        pytest.param(running(), Verdict.OPEN, None, id="it ran before its request ended: it goes on"),
        pytest.param(SUCCEEDED, Verdict.SUCCEEDED, None, id="HF has it: it goes on"),
        pytest.param(running(0, Verdict.RETURNED, is_gone=True), Verdict.RETURNED, None, id="HF gave it back: it goes"),
    ],
)
def test_a_machine_without_our_mark(before: Slot, verdict: Verdict, failure: Failure | None) -> None:
    one = reflected(before, snapshot(machine(is_strayed=True)))
    assert (one.verdict, one.failure, one.deletion.is_gone) == (verdict, failure, False)
    assert (one.deletion.reason is None) is (verdict in DESIRED)
    back = reflected(one, snapshot(machine()))
    assert (one.observed.is_strayed, back.observed.is_strayed) == (failure is None, False), (
        "its name is asked for as long as that is so"
    )


@pytest.mark.parametrize("reported", [None, LossCause.UNKNOWN, LossCause.DELETED])
def test_a_machine_is_not_reported_as_gone_before_its_place_was_asked_for_its_name(reported: LossCause | None) -> None:
    ends = {name(0): MachineEnd(reported)} if reported else {}
    unasked = [snapshot(asked=frozenset(), ends=ends, began=SEEN + number) for number in range(3)]
    waiting = reflected(SUCCEEDED, *unasked)
    assert (waiting.verdict is Verdict.SUCCEEDED) is (reported is not LossCause.DELETED)
    assert reflected(waiting, snapshot(began=SEEN + 9, ends=ends)).verdict is Verdict.LOST


# --- machines that were reported to HF and do not run -----------------------------------------------------------------

DOWN, CRASHES = 900.0, Failure(ErrorClass.OTHER, "worker: CrashLoopBackOff: OOMKilled: exit code 137")


def crashing(number: int = 0) -> Machine:
    return machine(number, phase=Phase.PENDING, failure=CRASHES)


def looked(known: Memory, *machines: Machine, at: float = 0.0, **changes: float) -> Draft:
    allowed = limits(pool("a", **({"down_seconds": DOWN, "early_loss_seconds": 0.0} | changes)))
    draft = draft_of(known, snapshot(*machines, began=SEEN + at), limits=allowed, now=NOW + at)
    reconcile(draft)
    return draft


def grid(count: int = 1) -> Memory:
    slots = [running(number, Verdict.SUCCEEDED) for number in range(count)]
    return memory(record(*slots, ended=RequestStatus.COMPLETE, reported_at=BEFORE))


def test_a_machine_that_does_not_run_any_more_is_noted_with_the_reason_until_it_does() -> None:
    down = looked(grid(), crashing())
    one = down.requests[REQUEST].slots[0]
    assert (one.verdict, one.life.down_since, one.failure, down.due_at) == (Verdict.SUCCEEDED, NOW, CRASHES, NOW + DOWN)
    later = looked(down.memory(), crashing(), at=60.0)
    assert later.requests[REQUEST].slots[0].life.down_since == NOW
    again = looked(later.memory(), machine(), at=70.0).requests[REQUEST].slots[0]
    assert (again.verdict, again.life.down_since, again.failure) == (Verdict.SUCCEEDED, None, None)


@pytest.mark.parametrize(
    ("at", "limit", "verdict"),
    [
        pytest.param(DOWN - 1, DOWN, Verdict.SUCCEEDED, id="it has its time"),
        pytest.param(DOWN, DOWN, Verdict.LOST, id="its time is over"),
        pytest.param(DOWN * 9, 0.0, Verdict.SUCCEEDED, id="it has all time"),
    ],
)
def test_a_machine_that_does_not_run_again_in_time_is_lost(at: float, limit: float, verdict: Verdict) -> None:
    after = looked(looked(grid(), crashing()).memory(), crashing(), at=at, down_seconds=limit)
    one = after.requests[REQUEST].slots[0]
    assert one.verdict is verdict
    if verdict is Verdict.LOST:
        assert one.failure == Failure(ErrorClass.OTHER, f"The machine has not run for 900 s: {CRASHES.text}")


def test_a_machine_whose_name_does_not_resolve_to_us_is_not_down() -> None:
    """A running machine whose name does not resolve yet is shown as pending, because a loop has seen no name resolve
    right after its start. Such a machine must not count as down."""
    nameless = machine(phase=Phase.PENDING, failure=CRASHES, is_nameless=True)
    assert looked(grid(), nameless).requests[REQUEST].slots[0].life.down_since is None


def test_what_crashes_soon_after_it_ran_is_an_early_loss_however_late_it_is_given_up() -> None:
    after = looked(looked(grid(), crashing()).memory(), crashing(), at=DOWN, early_loss_seconds=NOW - BEFORE + 1)
    assert after.requests[REQUEST].slots[0].life.is_early_loss


@pytest.mark.parametrize(
    ("count", "down", "lost"),
    [
        pytest.param(20, 4, 4, id="a fifth"),
        pytest.param(20, 5, 0, id="more than a fifth"),
        pytest.param(2, 1, 1, id="one of a few"),
        pytest.param(2, 2, 0, id="all of a few"),
    ],
)
def test_where_many_do_not_run_at_once_none_is_lost(count: int, down: int, lost: int) -> None:
    machines = [crashing(number) if number < down else machine(number) for number in range(count)]
    after = looked(looked(grid(count), *machines).memory(), *machines, at=DOWN)
    assert Counter(one.verdict for one in after.requests[REQUEST].slots.values())[Verdict.LOST] == lost


# --- machines that have not long to live ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "phase", "left", "least", "verdict"),
    [
        pytest.param(slot(), Phase.RUNNING, 3599.0, 3600.0, Verdict.FAILED, id="too short"),
        pytest.param(slot(), Phase.PENDING, 3599.0, 3600.0, Verdict.FAILED, id="too short already while it boots"),
        pytest.param(running(), Phase.RUNNING, 3599.0, 3600.0, Verdict.OPEN, id="it runs already"),
        pytest.param(running(down_since=NOW), Phase.RUNNING, 3599.0, 3600.0, Verdict.OPEN, id="it runs again"),
        pytest.param(slot(), Phase.RUNNING, 3600.0, 3600.0, Verdict.OPEN, id="long enough"),
        pytest.param(slot(), Phase.RUNNING, 5.0, 0.0, Verdict.OPEN, id="any is long enough"),
        pytest.param(slot(), Phase.RUNNING, None, 3600.0, Verdict.OPEN, id="its end is unknown"),
        pytest.param(SUCCEEDED, Phase.RUNNING, 5.0, 3600.0, Verdict.SUCCEEDED, id="HF has it"),
    ],
)
def test_a_machine_that_its_place_ends_soon_is_no_new_one_for_hf(
    before: Slot, phase: Phase, left: float | None, least: float, verdict: Verdict
) -> None:
    wall = 1_900_000_000.0
    expires = None if left is None else wall + NOW - SEEN + left
    shown = replace(machine(before.number, phase=phase), expires_at=expires)
    draft = draft_of(
        memory(record(before)),
        snapshot(shown, began=SEEN, wall=wall),
        limits=limits(pool("a", least_life_seconds=least)),
        now=NOW,
    )
    reconcile(draft)
    after = draft.requests[REQUEST].slots[before.number]
    assert after.verdict is verdict
    if verdict is Verdict.FAILED:
        assert after.failure is not None
        assert "least_life_seconds of the pool is 3600" in after.failure.text
        assert after.deletion.reason is DeleteReason.FAILED
