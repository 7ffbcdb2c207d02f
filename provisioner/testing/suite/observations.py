"""Promises about observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.backends import BackendError
from provisioner.testing.place import Place
from provisioner.testing.suite.shared import ONE, TWO
from provisioner.testing.waiting import until


def test_an_empty_place_is_seen_as_empty(place: Place) -> None:
    snapshot = place.observe()
    assert (snapshot.pool, dict(snapshot.machines), snapshot.foreign) == (place.pool, {}, frozenset())


def test_a_snapshot_begins_when_it_was_asked_for(place: Place) -> None:
    assert place.backend.observe(1234.5, {}).began_at >= 1234.5


def test_the_mapping_is_the_same_object_while_nothing_changes(place: Place) -> None:
    place.create_running(1)
    first = place.observe().machines
    assert place.observe().machines is first
    place.create(2)
    place.until_seen(TWO)
    assert TWO not in first


def test_a_second_backend_sees_the_same_machines(place: Place) -> None:
    place.create(1, 2)
    place.until_seen(ONE)
    place.until_seen(TWO)
    seen, same = place.another().observe(place.now(), {}).machines, place.observe().machines
    if not place.shows_start:
        seen, same = ({name: replace(one, launched=0) for name, one in found.items()} for found in (seen, same))
    assert dict(seen) == dict(same)


def test_the_spec_has_a_fingerprint_that_stays(place: Place) -> None:
    assert place.observe().spec
    assert place.observe().spec == place.another().observe(place.now(), {}).spec


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["black_out", "hang"])
def test_a_failed_observation_raises_and_a_later_one_is_complete_again(place: Place, fault: str) -> None:
    place.create_running(1)
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
