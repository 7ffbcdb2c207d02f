"""Promises about machines of others, other pools and other provisioners."""

from __future__ import annotations

import threading

import pytest

from provisioner.backends import Backend, BackendError
from provisioner.model import Create, ErrorClass, Machine, Phase
from provisioner.testing.place import OTHER_REQUEST, REQUEST, How, Place, always
from provisioner.testing.suite.shared import ONE, TWO, UNKNOWN, errors
from provisioner.testing.waiting import until


def test_a_machine_that_others_deleted_is_absent(place: Place) -> None:
    place.create_running(1)
    place.remove(ONE)
    place.until_gone(ONE)
    assert place.observe().machines == {}, "and it stays so"


def test_foreign_machines_are_invisible_and_untouched(place: Place) -> None:
    place.spawn_foreign("web-1")
    place.spawn_foreign("hf-not-our-shape")
    place.create_running(1)
    assert list(place.observe().machines) == [ONE]
    assert place.delete("web-1").failure is None
    place.delete(ONE)
    place.until_gone(ONE)
    assert {"web-1", "hf-not-our-shape"} <= {*place.present()}


def test_a_name_that_others_use_is_neither_ours_nor_deleted(place: Place) -> None:
    place.spawn_foreign(ONE)
    place.create(1, 2)
    place.until_seen(TWO)
    machine = place.observe().machines.get(ONE)
    assert machine is None or machine.phase is not Phase.RUNNING
    assert place.delete(TWO).failure is None
    place.delete(ONE)
    until(lambda: place.present() == [ONE], place.patience)


def test_sought_machines_that_are_not_ours_are_foreign(place: Place) -> None:
    place.spawn_foreign("web-1")
    place.create_running(1)
    snapshot = place.observe(["web-1", "web-2", ONE, UNKNOWN])
    assert snapshot.foreign == {"web-1"}
    assert snapshot.asked == {"web-1", "web-2", ONE, UNKNOWN}
    assert place.observe().asked == frozenset()


def test_a_copy_of_a_machine_under_another_name_is_neither_ours_nor_gone_and_is_left_alone(place: Place) -> None:
    place.create_running(1)
    place.copy(ONE, UNKNOWN)

    def noticed() -> bool:
        asked = place.observe([UNKNOWN])
        return UNKNOWN in asked.foreign | asked.name_collisions

    until(noticed, place.patience)
    assert list(place.observe([UNKNOWN]).machines) == [ONE]
    assert place.delete(UNKNOWN).failure is None
    assert sorted(place.present()) == [ONE, UNKNOWN]


def test_a_machine_that_loses_what_marks_it_as_ours_is_found_by_its_name_and_uid(place: Place) -> None:
    uid = place.create_running(1).fingerprint.uid
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
    if refused is not None:  # if the delete would need too wide a right, the message contains a command
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


def neighbour(place: Place, which: str) -> Backend:
    """Return the backend of another pool or provisioner in the place. Skip the test if the place cannot have one."""
    made: Backend | None = getattr(place, which)()
    if made is None:
        pytest.skip(f"the place has no {which}")
    return made


@pytest.mark.parametrize("which", ["other_pool", "other_provisioner"])
def test_machines_of_another_pool_or_provisioner_are_not_ours(place: Place, which: str) -> None:
    other = neighbour(place, which)
    assert errors(other.create([Create(UNKNOWN, other.pool, "small", OTHER_REQUEST)], always)) == [None]
    place.create_running(1)

    def running() -> set[str]:
        """Return the names of the running machines of the other pool or provisioner."""
        seen = other.observe(place.now(), {}).machines
        return {name for name, machine in seen.items() if machine.phase is Phase.RUNNING}

    assert until(running, place.patience, what="the other's machine runs") == {UNKNOWN}, "and ours is not seen"
    snapshot = place.observe([UNKNOWN])
    assert snapshot.machines.keys() == {ONE}
    assert not snapshot.ends
    assert not snapshot.doubles
    assert place.delete(UNKNOWN).failure is None
    assert sorted(place.present()) == sorted([ONE, UNKNOWN])
    if place.end(UNKNOWN, How.EXIT):
        until(lambda: not running(), place.patience, what="the end of the other's machine")
        assert UNKNOWN not in place.observe([UNKNOWN]).ends


@pytest.mark.parametrize("which", ["other_pool", "other_provisioner"])
def test_a_name_that_a_machine_of_another_pool_or_provisioner_has_is_not_taken_for_ours(
    place: Place, which: str
) -> None:
    other = neighbour(place, which)
    assert errors(other.create([Create(ONE, other.pool, "small", REQUEST)], always)) == [None]
    place.create(1)

    def uid() -> str:
        machine = other.observe(place.now(), {}).machines.get(ONE)
        return machine.fingerprint.uid if machine else ""

    theirs = until(uid, place.patience, what="the other's machine")
    machine = place.observe().machines.get(ONE)
    assert machine is None or machine.fingerprint.uid != theirs
    assert place.delete(ONE).failure is None
    place.until_gone(ONE)
    until(lambda: place.present() == [ONE], place.patience, what="only the other's machine")
    assert uid() == theirs
