"""The promises of every backend (provisioner.backends.Backend), in every place."""

from __future__ import annotations

import threading

import pytest

from provisioner.backends import BackendError
from provisioner.model import Delete, DeleteReason, ErrorClass, Machine, Outcome, Phase
from tests.contract.places import OTHER_REQUEST, PREFIX, REQUEST, Place, always
from tests.support.waiting import until

ONE = f"{PREFIX}-{REQUEST}-000001"
TWO = f"{PREFIX}-{REQUEST}-000002"
UNKNOWN = f"{PREFIX}-{OTHER_REQUEST}-000001"


def errors(outcomes: list[Outcome]) -> list[ErrorClass | None]:
    return [outcome.failure.error if outcome.failure else None for outcome in outcomes]


# --- observations -----------------------------------------------------------------------------------------------------


def test_an_empty_place_is_seen_as_empty(place: Place) -> None:
    snapshot = place.observe()
    assert (snapshot.pool, dict(snapshot.machines), snapshot.foreign) == (place.pool, {}, frozenset())


def test_a_snapshot_begins_when_it_was_asked_for(place: Place) -> None:
    assert place.backend.observe(1234.5, {}).began_at >= 1234.5


def test_the_mapping_is_the_same_object_while_nothing_changes(place: Place) -> None:
    place.create(1)
    place.until_seen(ONE)
    first = place.observe().machines
    assert place.observe().machines is first
    place.create(2)
    place.until_seen(TWO)
    assert TWO not in first


def test_a_second_backend_sees_the_same_machines(place: Place) -> None:
    place.create(1, 2)
    place.until_seen(ONE)
    place.until_seen(TWO)
    assert dict(place.another().observe(place.now(), {}).machines) == dict(place.observe().machines)


def test_the_spec_has_a_fingerprint_that_stays(place: Place) -> None:
    assert place.observe().spec
    assert place.observe().spec == place.another().observe(place.now(), {}).spec


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["black_out", "hang"])
def test_a_failed_observation_raises_and_a_later_one_is_complete_again(place: Place, fault: str) -> None:
    place.create(1)
    place.until_seen(ONE)
    getattr(place, fault)()

    def fails() -> BaseException | None:
        try:
            place.observe()
        except BackendError as error:
            return error
        return None

    error = until(fails, place.patience, what="the observation fails")
    assert isinstance(error, BackendError)
    assert error.failure.error.is_ambiguous
    assert error.failure.text
    place.heal()

    def sees() -> bool:
        try:
            return ONE in place.observe().machines
        except BackendError:
            return False

    until(sees, place.patience, what="the observation is complete again")


# --- creates ----------------------------------------------------------------------------------------------------------


def test_a_created_machine_is_seen_and_then_runs_with_all_that_hf_needs(place: Place) -> None:
    assert errors(place.create(1)) == [None]
    machine = place.until_seen(ONE)
    assert machine.name == ONE
    assert machine.ip.count(".") == 3
    assert machine.launched > 1_600_000_000
    assert machine.fingerprint.uid
    assert machine.fingerprint.ip == machine.ip
    assert (machine.failure, machine.cause, machine.notice) == (None, None, None)


def test_ordinary_progress_is_no_difference_of_fingerprints(place: Place) -> None:
    place.create(1)
    first = until(lambda: place.observe().machines.get(ONE), place.patience)
    assert first is not None
    assert not first.fingerprint.differs(place.until_seen(ONE).fingerprint)


def test_many_creates_make_exactly_those_machines(place: Place) -> None:
    outcomes = place.create(*range(1, 41))
    assert [outcome.action for outcome in outcomes] == [place.create_of(number) for number in range(1, 41)]
    assert errors(outcomes) == [None] * 40
    until(lambda: len(place.observe().machines) == 40, place.patience)
    assert place.present() == {place.create_of(number).name for number in range(1, 41)}


def test_created_twice_is_one_machine_and_two_successes(place: Place) -> None:
    assert errors(place.create(1)) == [None]
    before = place.until_seen(ONE)
    assert errors(place.create(1)) == [None]
    assert place.present() == {ONE}
    assert place.until_seen(ONE).fingerprint == before.fingerprint


def test_created_again_by_a_successor_is_one_machine(place: Place) -> None:
    assert errors(place.create(1)) == [None]
    assert errors(place.another().create([place.create_of(1)], always)) == [None]
    assert place.present() == {ONE}


def test_nothing_is_sent_when_the_time_is_over(place: Place) -> None:
    before = place.creates()
    assert place.backend.create([place.create_of(1)], lambda: False) == []
    assert place.creates() == before
    assert place.present() == set()


@pytest.mark.parametrize("error", [ErrorClass.QUOTA, ErrorClass.DENIED, ErrorClass.INVALID])
def test_a_refusal_has_its_class_and_words_and_makes_nothing(place: Place, error: ErrorClass) -> None:
    place.fail_creates(error)
    (outcome,) = place.create(1)
    assert outcome.failure is not None
    assert outcome.failure.error is error
    assert len(outcome.failure.text) > 10
    assert place.present() == set()


def test_the_first_refusal_stops_further_creates(place: Place) -> None:
    place.fail_creates(ErrorClass.QUOTA)
    before = place.creates()
    outcomes = place.create(*range(1, 201))
    assert set(errors(outcomes)) == {ErrorClass.QUOTA}
    assert place.creates() - before <= 32


def test_a_lost_response_is_ambiguous_and_the_repeat_finds_the_machine(place: Place) -> None:
    place.lose_responses()
    (outcome,) = place.create(1)
    assert outcome.failure is not None
    assert outcome.failure.error.is_ambiguous
    assert place.present() == {ONE}
    place.heal()
    assert errors(place.create(1)) == [None]
    assert place.present() == {ONE}


@pytest.mark.usefixtures("impatient")
def test_no_response_is_ambiguous(place: Place) -> None:
    """A place that is listed before each create gives no response to the list."""
    place.hang()
    (outcome,) = place.create(1)
    assert outcome.failure is not None
    assert outcome.failure.error.is_ambiguous


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queued_machine_shows_its_wait_and_no_failure_until_the_queue_releases_it(place: Place) -> None:
    if not place.hold():
        pytest.skip("the place has no queue")
    assert errors(place.create(1)) == [None]
    machine = place.until_seen(ONE, Phase.PENDING)
    assert machine.queued is not None
    assert machine.queued.reason
    assert machine.queued.since > 1_600_000_000
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


# --- ends that leave nothing, and names that are not unique -----------------------------------------------------------


def test_a_machine_that_left_only_a_record_has_ended_with_its_words(place: Place) -> None:
    place.create(1, 2)
    place.until_seen(ONE)
    place.until_seen(TWO)
    if not place.end(ONE):
        pytest.skip("the place keeps no records of machines that ended")
    place.until_gone(ONE)
    snapshot = place.observe()
    assert snapshot.ends.keys() == {ONE}
    assert snapshot.ends[ONE].is_proven
    assert snapshot.ends[ONE].failure is not None
    assert snapshot.machines.keys() == {TWO}


def test_of_two_objects_of_one_name_each_is_deleted_by_its_uid(place: Place) -> None:
    place.create(1)
    first = place.until_seen(ONE).fingerprint.uid
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


# --- deletes ----------------------------------------------------------------------------------------------------------


def test_a_deleted_machine_ends(place: Place) -> None:
    place.create(1, 2)
    machine = place.until_seen(ONE)
    assert place.delete(ONE, machine.fingerprint.uid).failure is None
    place.until_gone(ONE)
    until(lambda: place.present() == {TWO}, place.patience)


def test_a_machine_that_was_never_seen_is_deleted_by_its_name(place: Place) -> None:
    place.create(1)
    assert place.delete(ONE).failure is None
    until(lambda: place.present() == set(), place.patience)


def test_to_delete_what_is_not_there_is_a_success(place: Place) -> None:
    assert place.delete(ONE).failure is None
    assert place.delete(ONE, "1234").failure is None


def test_deleted_twice_is_a_success(place: Place) -> None:
    place.create(1)
    uid = place.until_seen(ONE).fingerprint.uid
    assert place.delete(ONE, uid).failure is None
    assert place.delete(ONE, uid).failure is None
    place.until_gone(ONE)


def test_another_machine_of_the_same_name_is_never_deleted(place: Place) -> None:
    place.create(1)
    before = place.until_seen(ONE)
    place.recreate(ONE)
    assert place.delete(ONE, before.fingerprint.uid).failure is None
    wait_for_other_machine(place, before)


def wait_for_other_machine(place: Place, before: Machine) -> Machine:
    """Wait for an observation of the other machine of this name, because lists may be late. Return the machine."""

    def other() -> Machine | None:
        seen = place.observe().machines.get(ONE)
        there = seen is not None and seen.phase is Phase.RUNNING and before.fingerprint.differs(seen.fingerprint)
        return seen if there else None

    snapshot = until(other, place.patience, what="the other machine is seen")
    assert snapshot is not None
    return snapshot


def test_force_ends_only_the_machine_with_the_given_uid(place: Place) -> None:
    place.create(1)
    before = place.until_seen(ONE)
    place.recreate(ONE)
    assert place.delete(ONE, before.fingerprint.uid, force=True).failure is None
    after = wait_for_other_machine(place, before)
    assert place.delete(ONE, after.fingerprint.uid, force=True).failure is None
    until(lambda: place.present() == set(), place.patience)


def test_of_foreign_machines_only_an_adopted_one_is_deleted(place: Place) -> None:
    place.spawn_foreign("sym-1")
    place.spawn_foreign("sym-2")
    until(lambda: place.observe(["sym-1", "sym-2"]).foreign == {"sym-1", "sym-2"}, place.patience)
    assert place.delete("sym-1", adopted=True).failure is None
    assert place.delete("sym-2").failure is None
    assert place.delete("sym-3", adopted=True).failure is None
    until(lambda: place.present() == {"sym-2"}, place.patience)
    assert place.observe(["sym-1", "sym-2"]).foreign == {"sym-2"}


def test_a_delete_whose_response_is_lost_is_ambiguous_and_applied(place: Place) -> None:
    place.create(1)
    uid = place.until_seen(ONE).fingerprint.uid
    place.lose_responses()
    failure = place.delete(ONE, uid).failure
    assert failure is not None
    assert failure.error.is_ambiguous
    place.heal()
    until(lambda: place.present() == set(), place.patience)


def test_one_delete_that_fails_stops_no_other(place: Place) -> None:
    place.black_out()
    deletes = [Delete(name, place.pool, DeleteReason.RETURNED, "1234") for name in (ONE, TWO)]
    outcomes = place.backend.delete(deletes, always)
    assert [outcome.action for outcome in outcomes] == deletes
    assert None not in errors(outcomes)


def test_no_delete_is_sent_when_the_time_is_over(place: Place) -> None:
    place.create(1)
    place.until_seen(ONE)
    assert place.backend.delete([Delete(ONE, place.pool, DeleteReason.RETURNED)], lambda: False) == []
    assert place.present() == {ONE}


# --- others -----------------------------------------------------------------------------------------------------------


def test_a_machine_that_others_deleted_is_absent(place: Place) -> None:
    place.create(1)
    place.until_seen(ONE)
    place.remove(ONE)
    place.until_gone(ONE)
    assert place.observe().machines == {}, "and it stays so"


def test_foreign_machines_are_invisible_and_untouched(place: Place) -> None:
    place.spawn_foreign("web-1")
    place.spawn_foreign("hf-not-our-shape")
    place.create(1)
    place.until_seen(ONE)
    assert list(place.observe().machines) == [ONE]
    assert place.delete("web-1").failure is None
    place.delete(ONE)
    place.until_gone(ONE)
    assert {"web-1", "hf-not-our-shape"} <= place.present()


def test_a_name_that_others_use_is_neither_ours_nor_deleted(place: Place) -> None:
    place.spawn_foreign(ONE)
    place.create(1, 2)
    place.until_seen(TWO)
    machine = place.observe().machines.get(ONE)
    assert machine is None or machine.phase is not Phase.RUNNING
    assert place.delete(TWO).failure is None
    place.delete(ONE)
    until(lambda: place.present() == {ONE}, place.patience)


def test_sought_machines_that_are_not_ours_are_foreign(place: Place) -> None:
    place.spawn_foreign("web-1")
    place.create(1)
    place.until_seen(ONE)
    snapshot = place.observe(["web-1", "web-2", ONE, UNKNOWN])
    assert snapshot.foreign == {"web-1"}
    assert snapshot.asked == {"web-1", "web-2", ONE, UNKNOWN}
    assert place.observe().asked == frozenset()


def test_a_copy_of_a_machine_under_another_name_is_neither_ours_nor_gone_and_is_left_alone(place: Place) -> None:
    place.create(1)
    place.until_seen(ONE)
    place.copy(ONE, UNKNOWN)

    def noticed() -> bool:
        asked = place.observe([UNKNOWN])
        return UNKNOWN in asked.foreign | asked.name_collisions

    until(noticed, place.patience)
    assert list(place.observe([UNKNOWN]).machines) == [ONE]
    assert place.delete(UNKNOWN).failure is None
    assert place.present() == {ONE, UNKNOWN}


def test_a_machine_that_loses_what_marks_it_as_ours_is_found_by_its_name_and_uid(place: Place) -> None:
    place.create(1)
    uid = place.until_seen(ONE).fingerprint.uid
    place.stray(ONE)

    def asked(uid: str) -> Machine | None:
        return place.backend.observe(place.now(), {ONE: uid}).machines.get(ONE)

    place.until_gone(ONE)
    found = asked(uid)
    assert found is not None
    assert (found.phase, found.is_strayed, found.fingerprint.uid) == (Phase.RUNNING, True, uid)
    assert asked("another") is None
    asked(uid)
    refused = place.delete(ONE, uid).failure
    if refused is not None:  # if deleting it needs too wide a right, the message contains a command
        assert (refused.error, ONE in refused.text) == (ErrorClass.DENIED, True)
        place.remove_stray(ONE)
    until(lambda: asked(uid) is None, place.patience, what="its end")
    assert ONE not in place.present()


def test_sought_names_that_cannot_be_read_fail_the_observation(place: Place) -> None:
    place.black_out()
    with pytest.raises(BackendError):
        place.observe([UNKNOWN])


def test_observations_and_actions_may_run_at_the_same_time(place: Place) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def observe() -> None:
        try:
            while not done.is_set():
                place.observe()
        except BackendError as error:
            failures.append(error)

    observer = threading.Thread(target=observe)
    observer.start()
    for number in range(1, 21):
        place.create(number)
    done.set()
    observer.join(place.patience)
    assert not failures
    assert len(place.present()) == 20
