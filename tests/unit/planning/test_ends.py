"""Machines that run and end in their first minutes: which of them count, and the effects on their pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import (
    ErrorClass,
    Failure,
    Fingerprint,
    Limits,
    LossCause,
    Machine,
    MachineEnd,
    Memory,
    Notice,
    PendingReason,
    Phase,
    Plan,
    RequestStatus,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.planning.observe.reconciliation import reconcile
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    SEEN,
    STOCKOUT,
    TEMPLATE,
    draft_of,
    giving_back,
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

EARLY = 300.0
ONE = limits(pool("a", early_loss_seconds=EARLY, initial_window=4, spill_after_seconds=1e9))
TWO = limits(pool("a", early_loss_seconds=EARLY, initial_window=4), pool("b"))
ENDED = {"ended": RequestStatus.COMPLETE, "reported_at": BEFORE}
WHY = Failure(ErrorClass.OTHER, "Lost in its first 300 s: ImagePullBackOff")
DEAD = {"phase": Phase.GONE, "failure": BROKEN, "cause": LossCause.EXITED}
SUCCEEDED = running(0, Verdict.SUCCEEDED)
STOPS = machine(phase=Phase.STOPPING, cause=LossCause.UNKNOWN)


def at(seconds: float, *machines: Machine, **changes: Any) -> Snapshot:
    """Return an observation ``seconds`` after the machines of these tests were first seen running."""
    return snapshot(*machines, began=BEFORE + seconds, **changes)


def seen(known: Memory, *observations: Snapshot, limits: Limits = ONE) -> Memory:
    """Return the memory after the observations were applied one by one."""
    for observation in observations:
        draft = draft_of(known, observation, limits=limits, now=observation.began_at + 1)
        reconcile(draft)
        known = draft.memory()
    return known


def after(one: Slot, *observations: Snapshot, limits: Limits = ONE) -> Slot:
    return seen(memory(record(one, **ENDED)), *observations, limits=limits).requests[REQUEST].slots[0]


def window_of(known: Memory) -> Window:
    return known.windows["a", TEMPLATE]


@pytest.mark.parametrize(
    ("one", "observations", "early"),
    [
        pytest.param(SUCCEEDED, [at(30, machine(**DEAD))], True, id="its containers ended"),
        pytest.param(running(), [at(30, machine(**DEAD))], True, id="they did before the terminal answer"),
        pytest.param(SUCCEEDED, [at(30), at(31)], True, id="it vanished without a cause"),
        pytest.param(running(), [at(30), at(31)], True, id="it vanished before the terminal answer"),
        pytest.param(SUCCEEDED, [at(30, machine(fingerprint=Fingerprint(uid="x")))], True, id="it was made anew"),
        pytest.param(SUCCEEDED, [at(30, STOPS)], True, id="it stops without a cause"),
        pytest.param(running(), [at(30, STOPS)], True, id="it stops before the terminal answer"),
        pytest.param(SUCCEEDED, [at(299, machine(**DEAD))], True, id="just before its minutes were over"),
        pytest.param(SUCCEEDED, [at(300, machine(**DEAD))], False, id="just when its minutes were over"),
        pytest.param(SUCCEEDED, [at(299), at(330)], True, id="what shows that it vanished begins within them"),
        pytest.param(SUCCEEDED, [at(300), at(301)], False, id="what shows that it vanished begins after them"),
        pytest.param(slot(was_seen=True), [at(30, machine(**DEAD))], False, id="it never ran: it is a failed boot"),
        *(
            pytest.param(SUCCEEDED, [at(30, machine(**DEAD | {"cause": cause}))], False, id=f"it was: {cause}")
            for cause in (LossCause.PREEMPTED, LossCause.EVICTED, LossCause.NODE, LossCause.DELETED)
        ),
        pytest.param(SUCCEEDED, [at(30, machine(phase=Phase.STOPPING))], False, id="another client deletes it"),
        pytest.param(SUCCEEDED, [at(30, ends={name(): MachineEnd(LossCause.DELETED)})], False, id="deleted by others"),
        pytest.param(SUCCEEDED, [at(20, machine(notice=Notice(LossCause.PREEMPTED, NOW))), at(30), at(31)], False,
                     id="it vanished after a notice of its preemption"),
        pytest.param(SUCCEEDED, [at(20, replace(STOPS, cause=LossCause.PREEMPTED)), at(30, machine(**DEAD))], False,
                     id="it was dead after its preemption was announced"),
        pytest.param(slot(0, Verdict.RETURNED, ran_at=BEFORE), [at(30, machine(**DEAD))], False, id="HF gave it back"),
        pytest.param(slot(0, Verdict.CANCELLED, ran_at=BEFORE), [at(30, machine(**DEAD))], False,
                     id="it was cancelled"),
        pytest.param(SUCCEEDED, [at(30, machine())], False, id="it lives"),
        # Loop time goes on over a restart: when in the pause the machine ended is unknown.
        pytest.param(SUCCEEDED, [at(0.5, machine()), at(600, machine(**DEAD))], False, id="it ended in a pause"),
        pytest.param(SUCCEEDED, [at(0.5, machine()), at(600), at(601)], False, id="it vanished in a pause"),
    ],
)  # fmt: skip
def test_what_counts_as_an_early_loss(one: Slot, observations: list[Snapshot], early: bool) -> None:
    assert after(one, *observations).life.is_early_loss is early


def test_where_no_time_is_asked_for_no_loss_is_early() -> None:
    assert not after(
        SUCCEEDED, at(0.5, machine(**DEAD)), limits=limits(pool("a", early_loss_seconds=0.0))
    ).life.is_early_loss


def test_why_it_was_lost_is_reported_with_the_time_that_it_had() -> None:
    assert after(SUCCEEDED, at(30, machine(**DEAD))).failure == WHY
    assert window_of(seen(memory(record(running(), **ENDED), windows=narrow()), at(30, machine(**DEAD)))).failure == WHY


def test_a_machine_that_stops_counts_once_also_when_hostfactory_gives_it_back_before_it_is_gone() -> None:
    """A stopping machine must count once as an early loss, even if HF returns it before it has ended. HF may do so,
    because HF gets the seconds that the machine has left."""
    known = memory(record(SUCCEEDED, **ENDED), giving_back(name()))
    planned = plan(known, at(30, STOPS), limits=ONE, now=BEFORE + 31).memory
    one = planned.requests[REQUEST].slots[0]
    assert (one.verdict, one.life.is_early_loss, window_of(planned).window) == (Verdict.RETURNED, True, 2)
    assert window_of(seen(planned, at(40, STOPS), at(50), at(51))).window == 2


def test_a_machine_that_stops_and_is_lost_counts_once_whatever_was_known_of_it_before() -> None:
    first = seen(memory(record(running(0, Verdict.SUCCEEDED, cause=LossCause.UNKNOWN), **ENDED)), at(30, STOPS))
    assert (first.requests[REQUEST].slots[0].life.is_early_loss, window_of(first).window) == (True, 2)
    assert seen(first, at(31, STOPS)) is first, "an observation that says no more"
    known = seen(first, at(40, replace(STOPS, failure=BROKEN)), at(50, machine(**DEAD)))
    one = known.requests[REQUEST].slots[0]
    assert (one.verdict, one.failure, window_of(known).window) == (Verdict.LOST, WHY, 2)


def narrow(window: int = 1, **changes: Any) -> dict[tuple[str, str], Window]:
    return {("a", TEMPLATE): Window(window=window, **changes)}


def died(alive: int, dead: int, window: int, *, first: bool = False) -> Window:
    """Return the pool's window after ``dead`` of its machines ended at once and ``alive`` did not. The machines had
    started one after the other.

    ``first``: the oldest machines die, not the newest.
    """
    slots = [running(number, Verdict.SUCCEEDED, ran_at=BEFORE + number) for number in range(alive + dead)]
    gone = range(dead) if first else range(alive, alive + dead)
    observation = at(60, *(machine(number, **(DEAD if number in gone else {})) for number in range(alive + dead)))
    return window_of(seen(memory(record(*slots, **ENDED), windows=narrow(window)), observation))


@pytest.mark.parametrize(
    ("known", "closed"),
    [
        pytest.param(died(alive=0, dead=8, window=16), True, id="all of a window of machines"),
        pytest.param(died(alive=0, dead=4, window=16), False, id="all, but not half a window of them"),
        pytest.param(died(alive=4, dead=6, window=16), True, id="most of a window of machines"),
        pytest.param(died(alive=5, dead=5, window=15), False, id="half of a window of machines"),
        pytest.param(died(alive=30, dead=6, window=16), True, id="most of the newest, although many live from before"),
        pytest.param(died(alive=30, dead=6, window=16, first=True), False, id="as many of those before the newest"),
    ],
)
def test_a_window_closes_when_most_of_the_newest_machines_are_lost_early(known: Window, closed: bool) -> None:
    assert (known.early_loss == WHY, known.is_probing, known.level == 1, known.failure == WHY) == (closed,) * 4


@pytest.mark.parametrize("other", [{"pool": "b"}, {}], ids=["another pool", "another template"])
def test_machines_of_another_pool_or_template_say_nothing_of_a_window(other: dict[str, str]) -> None:
    alive = [running(number, Verdict.SUCCEEDED, OTHER, ran_at=BEFORE + 20, **other) for number in range(20)]
    dead = [running(number, Verdict.SUCCEEDED) for number in range(6)]
    template = TEMPLATE if other else "U"
    known = memory(
        record(*dead, **ENDED), record(*alive, id_=OTHER, template=template, **ENDED), windows=narrow(window=16)
    )
    shown = [machine(number, **DEAD) for number in range(6)]
    shown += [] if other else [machine(number, request=OTHER) for number in range(20)]
    assert window_of(seen(known, at(60, *shown))).early_loss == WHY


def test_each_early_loss_takes_back_what_its_machine_let_the_window_grow() -> None:
    assert died(alive=20, dead=3, window=20).window == 14


TRIED = Window(8, level=3, blocked_at=BEFORE - 50, retry_at=BEFORE - 20, is_probing=True, failure=WHY, early_loss=WHY,
               is_boot_failure=True)  # fmt: skip


def trial(*slots: Slot, observation: Snapshot, limits: Limits = ONE, **changes: Any) -> Plan:
    """Return the plan for a request of ten with these slots. Early losses have closed the pool's window."""
    known = memory(record(*slots, count=10), windows={("a", TEMPLATE): replace(TRIED, **changes)})
    observations = (
        (observation, snapshot(pool="b", began=observation.began_at)) if "b" in limits.pools else (observation,)
    )
    return plan(known, *observations, limits=limits, now=observation.began_at + 1)


def test_a_machine_that_runs_ends_no_back_off_and_is_the_only_one_while_it_is_on_trial() -> None:
    tried = trial(slot(was_seen=True), observation=at(10, machine()))
    assert tried.memory.requests[REQUEST].slots[0].ran_at is not None
    assert (window_of(tried.memory).level, window_of(tried.memory).early_loss) == (3, WHY)
    assert (tried.creates, tried.deferred) == ((), {("a", TEMPLATE, PendingReason.WINDOW): 9})
    still = trial(running(), observation=at(299, machine()))
    assert still.creates == ()
    assert still.due_at == pytest.approx(BEFORE + 300, abs=0.01), "when it has outlived its first minutes"
    assert len(trial(running(is_set_aside=True), observation=at(30)).creates) == 1, "one that was set aside is no probe"


def test_a_machine_that_outlives_its_first_minutes_opens_the_window() -> None:
    proven = trial(running(submitted_at=TRIED.blocked_at), observation=at(300, machine()))
    known = window_of(proven.memory)
    assert (known.window, known.level, known.is_probing, known.retry_at) == (8, 0, False, 0.0)
    assert (known.failure, known.early_loss) == (None, None)
    assert len(proven.creates) == 8


@pytest.mark.parametrize(
    ("one", "seen"),
    [
        pytest.param(running(submitted_at=TRIED.blocked_at - 1), machine(), id="asked for before the window closed"),
        pytest.param(running(), machine(phase=Phase.PENDING), id="it is not ready"),
        pytest.param(running(0, Verdict.LOST), machine(), id="it was lost, and another one has its name"),
        pytest.param(running(), machine(phase=Phase.STOPPING, cause=LossCause.NODE), id="it stops"),
    ],
)
def test_a_machine_that_is_no_proof_however_long_it_is_there(one: Slot, seen: Machine) -> None:
    assert window_of(trial(one, observation=at(400, seen)).memory).early_loss == WHY


def test_a_probe_that_dies_early_backs_off_for_longer() -> None:
    tried = trial(running(), observation=at(30, machine(**DEAD)))
    known = window_of(tried.memory)
    assert (known.level, known.blocked_at, known.early_loss) == (4, BEFORE + 31, WHY)
    assert known.retry_at > BEFORE + 31
    assert (tried.creates, tried.deferred) == ((), {("a", TEMPLATE, PendingReason.BACKOFF): 10})


def test_a_probe_that_dies_together_with_older_machines_is_a_probe_that_died() -> None:
    old = running(1, submitted_at=TRIED.blocked_at - 1)
    known = window_of(trial(running(), old, observation=at(30, machine(0, **DEAD), machine(1, **DEAD))).memory)
    assert (known.level, known.window) == (4, 4)


def test_a_probe_that_is_preempted_says_nothing_and_the_next_one_is_tried() -> None:
    tried = trial(running(), observation=at(30, machine(**DEAD | {"cause": LossCause.PREEMPTED})))
    assert window_of(tried.memory).level == 3
    assert len(tried.creates) == 1


def test_a_trial_is_not_waited_for_where_another_pool_takes_machines() -> None:
    tried = trial(running(), observation=at(30, machine()), limits=TWO)
    assert [create.pool for create in tried.creates] == ["b"] * 9
    assert [create.pool for create in trial(observation=at(30), limits=TWO).creates] == ["a", *["b"] * 9]


def test_machines_on_trial_do_not_count_as_probes_of_another_back_off() -> None:
    """After a stock-out, the pool probes with a machine at a time. Once a machine runs, the next probe must not wait
    until this machine has outlived its first minutes."""
    known = {"early_loss": None, "is_boot_failure": False, "failure": STOCKOUT}
    assert len(trial(running(ran_at=BEFORE - 10), observation=at(30, machine()), **known).creates) == 1


def test_what_a_request_misses_at_its_deadline_fails_as_its_machines_did() -> None:
    dead = running(0, Verdict.FAILED, failure=WHY, is_gone=True)
    known = memory(record(dead, count=1, deadline_at=NOW), windows={("a", TEMPLATE): replace(TRIED, retry_at=NOW + 9)})
    given_up = plan(known, snapshot(began=SEEN), limits=ONE).memory.requests[REQUEST].slots[1]
    assert (given_up.verdict, given_up.failure) == (Verdict.FAILED, WHY)
