"""Promises about creates."""

from __future__ import annotations

import pytest

from provisioner.model import ErrorClass
from provisioner.testing.place import Place, always
from provisioner.testing.suite.shared import ONE, TWO, errors
from provisioner.testing.waiting import until


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
    assert sorted(place.present()) == [place.create_of(number).name for number in range(1, 41)]


def test_each_machine_learns_its_own_name_also_beside_another_on_its_host(place: Place) -> None:
    place.create(1, 2)
    for name in (ONE, TWO):
        place.until_seen(name)
        environment = place.environment(name)
        if environment is None:
            pytest.skip("the place shows no environment, because a host has its machine's name")
        assert environment.get("HF_MACHINE_NAME") == name


def test_created_twice_is_one_machine_and_two_successes(place: Place) -> None:
    assert errors(place.create(1)) == [None]
    before = place.until_seen(ONE)
    assert errors(place.create(1)) == [None]
    assert place.present() == [ONE]
    assert place.until_seen(ONE).fingerprint == before.fingerprint


def test_created_again_by_a_successor_is_one_machine(place: Place) -> None:
    assert errors(place.create(1)) == [None]
    assert errors(place.another().create([place.create_of(1)], always)) == [None]
    assert place.present() == [ONE]


def test_nothing_is_sent_when_the_time_is_over(place: Place) -> None:
    before = place.creates()
    assert place.backend.create([place.create_of(1)], lambda: False) == []
    assert place.creates() == before
    assert place.present() == []


@pytest.mark.parametrize("error", [ErrorClass.QUOTA, ErrorClass.DENIED, ErrorClass.INVALID])
def test_a_refusal_has_its_class_and_words_and_makes_nothing(place: Place, error: ErrorClass) -> None:
    place.fail_creates(error)
    (outcome,) = place.create(1)
    assert outcome.failure is not None
    assert outcome.failure.error is error
    assert len(outcome.failure.text) > 10
    assert place.present() == []


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
    assert place.present() == [ONE]
    place.heal()
    assert errors(place.create(1)) == [None]
    assert place.present() == [ONE]


@pytest.mark.usefixtures("impatient")
def test_no_response_is_ambiguous(place: Place) -> None:
    """A create without a response must fail with an ambiguous error, because the machine may exist. If a
    backend lists the place first, a list without a response must cause the same error."""
    place.hang()
    (outcome,) = place.create(1)
    assert outcome.failure is not None
    assert outcome.failure.error.is_ambiguous
