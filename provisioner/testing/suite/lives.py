"""Promises about the life of a machine: queues, ends, restarts, and names that are not unique."""

from __future__ import annotations

import pytest

from provisioner.model import ErrorClass, Machine, Phase
from provisioner.testing.place import How, Place
from provisioner.testing.suite.shared import ONE, TWO, errors
from provisioner.testing.waiting import until


def test_a_queued_machine_shows_its_wait_and_no_failure_until_the_queue_releases_it(place: Place) -> None:
    if not place.hold():
        pytest.skip("the place has no queue")
    assert errors(place.create(1)) == [None]
    machine = place.until_seen(ONE, Phase.PENDING)
    assert machine.queued is not None
    assert machine.queued.reason
    assert machine.queued.since > 1_600_000_000 if place.shows_since else machine.queued.since == 0
    assert machine.queued.expected_start == 0 or machine.queued.expected_start > machine.queued.since
    assert (machine.failure, machine.cause, machine.spills_at_once) == (None, None, False)
    assert errors(place.create(1)) == [None], "it exists"
    place.release()
    assert place.until_seen(ONE).queued is None


def test_a_queued_machine_is_deleted_as_any_other(place: Place) -> None:
    if not place.hold():
        pytest.skip("the place has no queue")
    place.create(1)
    uid = place.until_seen(ONE, Phase.PENDING).fingerprint.uid
    assert place.delete(ONE, uid).failure is None
    place.until_gone(ONE)


@pytest.mark.parametrize("reason", [ErrorClass.STOCKOUT, ErrorClass.QUOTA])
def test_a_machine_that_its_place_cannot_make_now_spills_with_the_reason(place: Place, reason: ErrorClass) -> None:
    if not place.starve(reason):
        pytest.skip("the place accepts no such create, or gives no such reason")
    assert errors(place.create(1)) == [None]

    def seen() -> Machine | None:
        machine = place.observe().machines.get(ONE)
        return machine if machine is not None and machine.spills_at_once else None

    machine = until(seen, place.patience, what="the reason")
    assert machine is not None
    assert machine.failure is not None
    assert machine.failure.error is reason
    assert machine.failure.text
    assert (machine.phase, machine.queued) == (Phase.PENDING, None)
    assert place.delete(ONE, machine.fingerprint.uid).failure is None
    place.until_gone(ONE)


@pytest.mark.parametrize("how", How)
def test_a_machine_that_ended_is_never_seen_as_live_and_leaves_nothing(place: Place, how: How) -> None:
    place.create(1, 2)
    uid = place.until_seen(ONE).fingerprint.uid
    place.until_seen(TWO)
    if not place.end(ONE, how):
        pytest.skip(f"no machine of the place ends by {how}")

    def ended() -> bool:
        machine = place.observe().machines.get(ONE)
        return machine is None or machine.phase is Phase.GONE or machine.fingerprint.uid not in ("", uid)

    until(ended, place.patience, what=f"the end by {how}")
    snapshot = place.observe()
    if how is How.EXIT and ONE not in snapshot.machines:
        assert snapshot.ends.keys() == {ONE}
        assert snapshot.ends[ONE].is_proven, "a record proves the end"
        assert snapshot.ends[ONE].failure is not None
    while (machine := place.observe().machines.get(ONE)) is not None:
        assert ended(), f"it is {machine.phase} again"
        assert place.delete(ONE, machine.fingerprint.uid).failure is None, "its leftovers are deleted"
        place.until_gone(ONE)
    assert place.observe().machines.keys() == {TWO}
    until(lambda: place.present() == [TWO], place.patience, what="nothing is left of it")


def test_a_machine_that_its_place_begins_again_is_gone_or_another(place: Place) -> None:
    before = place.create_running(1)
    if not place.restart(ONE):
        pytest.skip("the place begins no machine again")

    def gone() -> bool:
        machine = place.observe().machines.get(ONE)
        return machine is None or machine.phase is Phase.GONE or before.fingerprint.differs(machine.fingerprint)

    until(gone, place.patience, what="the end of the first machine")
    assert gone(), "it stays gone"


def test_of_two_objects_of_one_name_each_is_deleted_by_its_uid(place: Place) -> None:
    first = place.create_running(1).fingerprint.uid
    assert not place.observe().doubles
    if not place.double(ONE):
        pytest.skip("the place keeps names unique")
    doubles = until(lambda: place.observe().doubles, place.patience, what="the second object is seen")
    assert place.observe().machines[ONE].fingerprint.uid == first, "the object that ran first is preferred"
    (second,) = (one.fingerprint.uid for one in doubles[ONE])
    assert second not in ("", first)
    assert place.delete(ONE, second).failure is None
    until(lambda: not place.observe().doubles, place.patience, what="the second object is gone")
    assert place.observe().machines[ONE].fingerprint.uid == first
    assert place.double(ONE)
    third = until(lambda: place.observe().doubles, place.patience, what="the third object is seen")[ONE]
    assert place.delete(ONE, first).failure is None
    until(
        lambda: (machine := place.observe().machines.get(ONE)) and machine.fingerprint.uid == third[0].fingerprint.uid,
        place.patience,
        what="the other object takes the place of the first",
    )
