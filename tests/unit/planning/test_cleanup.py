"""Leftovers of closed slots: when they are deleted, stuck, or deleted by force."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from provisioner.model import (
    DESIRED,
    Delete,
    DeleteReason,
    Limits,
    LossCause,
    Machine,
    Notice,
    Phase,
    RequestStatus,
    Slot,
    Verdict,
)
from provisioner.planning.cleanup.delete_closed import DELETE_LATEST, UNKNOWN_GRACE, delete_closed
from provisioner.planning.core.draft import DELETE_AGAIN, Draft
from tests.unit.core import (
    BEFORE,
    NOW,
    REQUEST,
    draft_of,
    limits,
    machine,
    memory,
    name,
    pool,
    record,
    running,
    snapshot,
)

STUCK, FORCE = 60.0, 20.0
"""Seconds after the end of the grace period, in the pools of these tests."""
UNMOVED = NOW - UNKNOWN_GRACE - STUCK
"""Time of a machine's first delete. If no end of the machine is known at ``NOW``, it counts as stuck from then on."""
PODS = limits(pool("a", stuck_after_seconds=STUCK))
HARD = limits(pool("a", stuck_after_seconds=STUCK, force_after_seconds=FORCE))


def terminating(ends: float) -> Machine:
    """Return a stopping machine whose grace period ends at ``ends``."""
    return machine(phase=Phase.STOPPING, notice=Notice(LossCause.DELETED, ends))


def closed(sent: float | None = NOW - 1, **changes: object) -> Slot:
    return running(0, Verdict.RETURNED, delete=DeleteReason.RETURNED, delete_sent=sent, **changes)


def judged(one: Slot, seen: Machine, *, busy: Iterable[str] = (), limits: Limits = PODS, now: float = NOW) -> Draft:
    recorded = memory(record(one, ended=RequestStatus.COMPLETE, reported_at=BEFORE))
    draft = draft_of(recorded, snapshot(seen, began=now - 1), limits=limits, now=now)
    draft.busy |= frozenset(busy)
    delete_closed(draft)
    return draft


def after(draft: Draft) -> Slot:
    return draft.requests[REQUEST].slots[0]


@pytest.mark.parametrize(
    ("one", "seen", "stuck"),
    [
        pytest.param(closed(), terminating(NOW + 5), False, id="within its grace: no"),
        pytest.param(closed(), terminating(NOW - STUCK + 1), False, id="its grace ended a moment ago: no"),
        pytest.param(closed(), terminating(NOW - STUCK), True, id="its grace ended long ago: yes"),
        pytest.param(closed(), machine(), False, id="it runs, its delete is not applied yet: no"),
        pytest.param(closed(delete_begun=UNMOVED + 1), machine(), False, id="it runs on for a while: no"),
        pytest.param(closed(delete_begun=UNMOVED), machine(), True, id="it runs on whatever is sent: yes"),
        pytest.param(closed(delete_begun=UNMOVED), machine(phase=Phase.GONE), True, id="its object stays: yes"),
        pytest.param(closed(delete_begun=UNMOVED), terminating(NOW + 5), False, id="it has begun at last: no"),
        pytest.param(closed(delete_begun=UNMOVED), machine(phase=Phase.STOPPING), True, id="no end is known: yes"),
        pytest.param(closed(None), machine(), False, id="no delete was sent: no"),
        pytest.param(closed(is_stuck=True), terminating(NOW), True, id="a new loop counts its grace anew: it stays so"),
        pytest.param(closed(is_stuck=True), machine(), False, id="another machine under its name: no more"),
        *(
            pytest.param(running(0, verdict), terminating(NOW - STUCK), verdict not in DESIRED, id=f"a slot {verdict}")
            for verdict in Verdict
        ),
    ],
)
def test_when_a_machine_is_stuck(one: Slot, seen: Machine, stuck: bool) -> None:
    for busy in ([], ["a"]):
        draft = judged(one, seen, busy=busy)
        assert after(draft).deletion.is_stuck is stuck
        assert not (busy and draft.deletes)


def test_the_first_delete_of_a_machine_is_remembered() -> None:
    assert after(judged(closed(None), machine())).deletion.first_sent_at == NOW
    assert (
        after(judged(closed(NOW - DELETE_AGAIN, delete_begun=NOW - 99), machine())).deletion.first_sent_at == NOW - 99
    )


def test_a_machine_that_may_become_stuck_or_be_forced_is_looked_at_when_it_may() -> None:
    assert judged(closed(), terminating(NOW - STUCK + 7)).due_at == NOW + 7
    assert judged(closed(delete_begun=UNMOVED + 4), machine()).due_at == NOW + 4
    assert judged(closed(), terminating(NOW - FORCE + 3), limits=HARD).due_at == NOW + 3


def test_a_machine_that_stays_is_looked_at_when_its_delete_is_due_again() -> None:
    assert judged(closed(), machine(), limits=limits(pool("a"))).due_at == NOW - 1 + DELETE_AGAIN


def test_a_stuck_machine_is_deleted_again_and_again_ever_more_rarely_and_never_by_force() -> None:
    one, sent, times = closed(sent=None, closed_at=NOW), [], []
    for half_minute in range(100):
        now = NOW + 30.0 * half_minute
        draft = judged(one, terminating(NOW), now=now)
        one = after(draft)
        sent += draft.deletes
        times += [now] * len(draft.deletes)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert set(sent) == {Delete(name(), "a", DeleteReason.RETURNED, "uid-0")}
    assert (gaps[:3], gaps[-3:]) == ([DELETE_AGAIN] * 3, [DELETE_LATEST] * 3)
    assert gaps == sorted(gaps)
    assert one.deletion.is_stuck


@pytest.mark.parametrize(
    ("one", "seen", "forced"),
    [
        pytest.param(closed(), terminating(NOW - FORCE + 1), None, id="before its time: nothing"),
        pytest.param(closed(), terminating(NOW - FORCE), True, id="its time: at once, though a delete was just sent"),
        pytest.param(closed(is_forced=True), terminating(NOW - FORCE), None, id="forced a moment ago: waits"),
        pytest.param(closed(NOW - DELETE_AGAIN, is_forced=True), terminating(NOW - FORCE), True,
                     id="forced, and still there after a while: again"),
        pytest.param(closed(None, is_forced=True), terminating(NOW - FORCE), True,
                     id="its call was not made: made now"),
        pytest.param(closed(None), terminating(NOW - FORCE), False, id="deleted by others: first in peace"),
        pytest.param(closed(NOW - DELETE_AGAIN), machine(), False, id="it does not terminate: in peace"),
        pytest.param(closed(NOW - DELETE_AGAIN), machine(phase=Phase.STOPPING), False, id="no end is known: in peace"),
        *(
            pytest.param(running(0, verdict, delete_sent=BEFORE), terminating(NOW - 999),
                         verdict not in DESIRED or None, id=f"a slot {verdict}")
            for verdict in Verdict
        ),
    ],
)  # fmt: skip
def test_when_a_machine_is_deleted_by_force(one: Slot, seen: Machine, forced: bool | None) -> None:
    draft = judged(one, seen, limits=HARD)
    expected = [] if forced is None else [Delete(name(), "a", one.deletion.reason, "uid-0", is_forced=forced)]
    assert draft.deletes == expected
    assert after(draft).deletion.sent_at == (one.deletion.sent_at if forced is None else NOW)
    assert after(draft).deletion.is_forced is (one.deletion.is_forced if forced is None else forced)


def test_a_machine_that_even_force_does_not_end_is_asked_once_a_while() -> None:
    one, sent = closed(sent=None, closed_at=NOW), []
    for second in range(300):
        draft = judged(one, terminating(NOW), limits=HARD, now=NOW + second)
        one = after(draft)
        sent += [(second, delete.is_forced) for delete in draft.deletes]
    assert sent == [(0, False), (20, True), (80, True), (140, True), (210, True)]
