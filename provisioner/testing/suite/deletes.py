"""Promises about deletes."""

from __future__ import annotations

from provisioner.model import Delete, DeleteReason
from provisioner.testing.place import Place, always
from provisioner.testing.suite.shared import ONE, TWO, errors, wait_for_other_machine
from provisioner.testing.waiting import until


def test_a_deleted_machine_ends(place: Place) -> None:
    place.create(1, 2)
    machine = place.until_seen(ONE)
    assert place.delete(ONE, machine.fingerprint.uid).failure is None
    place.until_gone(ONE)
    until(lambda: place.present() == [TWO], place.patience)


def test_a_machine_that_was_never_seen_is_deleted_by_its_name(place: Place) -> None:
    place.create(1)
    assert place.delete(ONE).failure is None
    until(lambda: place.present() == [], place.patience)


def test_to_delete_what_is_not_there_is_a_success(place: Place) -> None:
    assert place.delete(ONE).failure is None
    assert place.delete(ONE, "1234").failure is None


def test_deleted_twice_is_a_success(place: Place) -> None:
    uid = place.create_running(1).fingerprint.uid
    assert place.delete(ONE, uid).failure is None
    assert place.delete(ONE, uid).failure is None
    place.until_gone(ONE)


def test_another_machine_of_the_same_name_is_never_deleted(place: Place) -> None:
    before = place.create_running(1)
    place.recreate(ONE)
    assert place.delete(ONE, before.fingerprint.uid).failure is None
    wait_for_other_machine(place, before)


def test_force_ends_only_the_machine_with_the_given_uid(place: Place) -> None:
    before = place.create_running(1)
    place.recreate(ONE)
    assert place.delete(ONE, before.fingerprint.uid, force=True).failure is None
    after = wait_for_other_machine(place, before)
    assert place.delete(ONE, after.fingerprint.uid, force=True).failure is None
    until(lambda: place.present() == [], place.patience)


def test_of_foreign_machines_only_an_adopted_one_is_deleted(place: Place) -> None:
    place.spawn_foreign("sym-1")
    place.spawn_foreign("sym-2")
    until(lambda: place.observe(["sym-1", "sym-2"]).foreign == {"sym-1", "sym-2"}, place.patience)
    assert place.delete("sym-1", adopted=True).failure is None
    assert place.delete("sym-2").failure is None
    assert place.delete("sym-3", adopted=True).failure is None
    until(lambda: place.present() == ["sym-2"], place.patience)
    assert place.observe(["sym-1", "sym-2"]).foreign == {"sym-2"}


def test_a_delete_whose_response_is_lost_is_ambiguous_and_applied(place: Place) -> None:
    uid = place.create_running(1).fingerprint.uid
    place.lose_responses()
    failure = place.delete(ONE, uid).failure
    assert failure is not None
    assert failure.error.is_ambiguous
    place.heal()
    until(lambda: place.present() == [], place.patience)


def test_one_delete_that_fails_stops_no_other(place: Place) -> None:
    place.black_out()
    deletes = [Delete(name, place.pool, DeleteReason.RETURNED, "1234") for name in (ONE, TWO)]
    outcomes = place.backend.delete(deletes, always)
    assert [outcome.action for outcome in outcomes] == deletes
    assert None not in errors(outcomes)


def test_no_delete_is_sent_when_the_time_is_over(place: Place) -> None:
    place.create_running(1)
    assert place.backend.delete([Delete(ONE, place.pool, DeleteReason.RETURNED)], lambda: False) == []
    assert place.present() == [ONE]
